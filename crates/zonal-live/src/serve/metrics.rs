//! The metrics: OpenMetrics 1.0, or the older text format of Prometheus for clients that accept only that.
//!
//! Amounts of memory are in bytes, and times in seconds, as OpenMetrics requires. While the source cannot be read,
//! `zonal_up` is 0 and the state of the allocator is left out, so that no old values are recorded.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use super::MetricDetail;
use super::tick::Tick;
use crate::sample::{Counter, Locality, PagesetSample, Sample, ZoneSample};

/// For counts and states.
const NO_UNIT: Option<&str> = None;
const BYTES: Option<&str> = Some("bytes");
const SECONDS: Option<&str> = Some("seconds");
/// For shares. OpenMetrics has this name in the singular.
const RATIO: Option<&str> = Some("ratio");

/// A text format of metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The text format 0.0.4 of Prometheus.
    Prometheus,
}

impl Format {
    /// Returns the format for an `Accept` header: OpenMetrics, unless only the older format is named.
    pub(crate) fn accepted(accept: Option<&str>) -> Self {
        let names = |name: &str| accept.is_some_and(|accept| accept.contains(name));
        match !names("application/openmetrics-text") && names("text/plain") {
            true => Self::Prometheus,
            false => Self::OpenMetrics,
        }
    }

    /// Returns the content type.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Returns all metrics.
pub(crate) fn render(tick: &Tick, clients: usize, detail: MetricDetail, format: Format) -> String {
    let mut writer = Writer { text: String::new(), format };
    server(&mut writer, tick, clients);
    if tick.is_up() {
        let sample = &*tick.sample;
        zones(&mut writer, sample);
        locality(&mut writer, sample);
        nodes(&mut writer, sample);
        totals(&mut writer, sample);
        match detail {
            MetricDetail::Zones => {}
            MetricDetail::Cpus => pagesets(&mut writer, sample),
        }
    }
    match format {
        Format::OpenMetrics => writer.text + "# EOF\n",
        Format::Prometheus => writer.text,
    }
}

/// Labels of a series and its value.
type Series<V> = (Vec<(&'static str, String)>, V);

/// Writes metrics, each with all of its series.
struct Writer {
    text: String,
    format: Format,
}

impl Writer {
    fn gauges(
        &mut self,
        (name, unit): (&str, Option<&str>),
        help: &str,
        series: impl IntoIterator<Item = Series<f64>>,
    ) {
        let name = with_unit(name, unit);
        self.each("gauge", &name, unit, help, "", series);
    }

    /// Writes counters. Their series end with `_total`. In the older format, so does the metric's name.
    fn counters(
        &mut self,
        (name, unit): (&str, Option<&str>),
        help: &str,
        series: impl IntoIterator<Item = Series<f64>>,
    ) {
        let name = with_unit(name, unit);
        match self.format {
            Format::OpenMetrics => self.each("counter", &name, unit, help, "_total", series),
            Format::Prometheus => self.each("counter", &(name + "_total"), unit, help, "", series),
        }
    }

    /// Writes a metric, unless it has no series.
    fn each(
        &mut self,
        kind: &str,
        name: &str,
        unit: Option<&str>,
        help: &str,
        ending: &str,
        series: impl IntoIterator<Item = Series<f64>>,
    ) {
        let mut series = series.into_iter().peekable();
        if series.peek().is_none() {
            return;
        }
        self.text += &format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
        if let Some(unit) = unit.filter(|_| self.format == Format::OpenMetrics) {
            self.text += &format!("# UNIT {name} {unit}\n");
        }
        for (labels, value) in series {
            let labels: Vec<_> =
                labels.iter().map(|(label, text)| format!("{label}=\"{}\"", quoted(text))).collect();
            let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            writeln!(self.text, "{name}{ending}{labels} {value:?}").expect("texts take everything");
        }
    }
}

fn with_unit(name: &str, unit: Option<&str>) -> String {
    unit.map_or_else(|| name.to_owned(), |unit| format!("{name}_{unit}"))
}

/// Returns a label's value in the form that both formats require.
fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn one(value: f64) -> [Series<f64>; 1] {
    [(Vec::new(), value)]
}

/// Writes the state of the server.
fn server(writer: &mut Writer, tick: &Tick, clients: usize) {
    let up = if tick.is_up() { 1.0 } else { 0.0 };
    writer.gauges(("zonal_up", NO_UNIT), "Whether the last reading of the source succeeded.", one(up));
    let build = (vec![("version", env!("CARGO_PKG_VERSION").to_owned())], 1.0);
    writer.gauges(("zonal_build_info", NO_UNIT), "Version of the server.", [build]);
    let (reads, failed) = (tick.reads as f64, tick.failed_reads as f64);
    let clients = clients as f64;
    let renders = tick.renders.load(Ordering::Relaxed) as f64; // Relaxed: a statistic
    let time = tick.sample.unix_ms as f64 / 1000.0;
    writer.counters(("zonal_live_reads", NO_UNIT), "Readings of the source.", one(reads));
    writer.counters(("zonal_live_failed_reads", NO_UNIT), "Readings that failed.", one(failed));
    writer.counters(("zonal_live_renders", NO_UNIT), "Updates rendered for pages.", one(renders));
    writer.gauges(("zonal_live_clients", NO_UNIT), "Pages that are updated.", one(clients));
    let name = ("zonal_sample_timestamp", SECONDS);
    writer.gauges(name, "Time of the newest sample, since 1970.", one(time));
}

fn labels(zone: &ZoneSample) -> Vec<(&'static str, String)> {
    vec![("node", zone.node.to_string()), ("zone", zonal_machine::Excerpt::name(&zone.kind).to_string())]
}

fn zones(writer: &mut Writer, sample: &Sample) {
    let bytes = |frames: u64| frames as f64 * sample.page_bytes as f64;
    type Amount = fn(&ZoneSample) -> u64;
    let amounts: [(&str, &str, Amount); 4] = [
        ("zonal_managed", "Memory that the allocator manages.", |zone| zone.managed),
        ("zonal_free", "Free memory, without that in pagesets.", |zone| zone.free),
        ("zonal_pagesets", "Free memory in the pagesets of all CPUs.", |zone| zone.in_pagesets),
        ("zonal_used", "Memory that is neither free nor in pagesets.", ZoneSample::used),
    ];
    for (name, help, amount) in amounts {
        let series = sample.zones.iter().map(|zone| (labels(zone), bytes(amount(zone))));
        writer.gauges((name, BYTES), help, series);
    }
    let watermarks = sample.zones.iter().flat_map(|zone| {
        [("min", zone.min), ("low", zone.low), ("high", zone.high)].map(|(mark, frames)| {
            let mut labels = labels(zone);
            labels.push(("mark", mark.to_owned()));
            (labels, bytes(frames))
        })
    });
    writer.gauges(("zonal_watermark", BYTES), "Watermarks of free memory.", watermarks);
    let blocks = sample.zones.iter().flat_map(|zone| {
        zone.free_blocks.iter().enumerate().map(|(order, count)| {
            let mut labels = labels(zone);
            labels.push(("order", order.to_string()));
            (labels, *count as f64)
        })
    });
    writer.gauges(("zonal_free_blocks", NO_UNIT), "Free blocks of 2^order frames.", blocks);
    let large = sample
        .zones
        .iter()
        .filter_map(|zone| Some((labels(zone), zone.free_in_blocks_from(sample.large_order())?)));
    let help = "Share of free memory in blocks of at least 2 MiB.";
    writer.gauges(("zonal_free_in_large_blocks", RATIO), help, large);
    let retired = sample.zones.iter().filter_map(|zone| Some((labels(zone), bytes(zone.retired?))));
    writer.gauges(("zonal_zone_retired", BYTES), "Bad memory taken out of use.", retired);
}

fn locality(writer: &mut Writer, sample: &Sample) {
    let served = |counts: Locality, labels: Vec<(&'static str, String)>| {
        let kinds = [
            ("hit", counts.hit),
            ("miss", counts.miss),
            ("foreign", counts.foreign),
            ("interleave_hit", counts.interleave_hit),
            ("local", counts.local),
            ("other", counts.other),
        ];
        kinds.map(|(kind, count)| {
            let mut labels = labels.clone();
            labels.push(("locality", kind.to_owned()));
            (labels, count as f64)
        })
    };
    let zones = sample.zones.iter().filter_map(|zone| Some(served(zone.locality?, labels(zone))));
    let help = "Allocations by where they were served. hit and miss together are all of the zone; foreign were served \
        elsewhere; local and other together are all, by the CPU.";
    writer.counters(("zonal_allocations", NO_UNIT), help, zones.flatten());
    let nodes = sample
        .nodes
        .iter()
        .filter_map(|node| Some(served(sample.locality_of(node)?, vec![("node", node.id.to_string())])));
    let help = "Allocations of a node by where they were served; see zonal_allocations.";
    writer.counters(("zonal_node_allocations", NO_UNIT), help, nodes.flatten());
}

fn nodes(writer: &mut Writer, sample: &Sample) {
    let allocated = sample.nodes.iter().filter_map(|node| {
        let uses = ["user", "cache", "kernel"].into_iter().zip(node.allocated?);
        Some(uses.map(|(name, frames)| {
            let labels = vec![("node", node.id.to_string()), ("use", name.to_owned())];
            (labels, frames as f64 * sample.page_bytes as f64)
        }))
    });
    let name = ("zonal_node_allocated", BYTES);
    writer.gauges(name, "Allocated memory by use.", allocated.flatten());
    let stalled = sample
        .nodes
        .iter()
        .filter_map(|node| Some((vec![("node", node.id.to_string())], node.stalled_percent? / 100.0)));
    let help = "Share of the last 10 seconds in which direct reclaim stalled a caller.";
    writer.gauges(("zonal_node_stalled", RATIO), help, stalled);
}

fn totals(writer: &mut Writer, sample: &Sample) {
    for (counter, value) in sample.totals.known() {
        let (name, unit, factor) = match counter.unit() {
            "frames" => (counter.name(), BYTES, sample.page_bytes as f64),
            "nanoseconds" => (counter.name().trim_end_matches("_ns"), SECONDS, 1e-9),
            _ => (counter.name(), NO_UNIT, 1.0),
        };
        let help = help_of(counter);
        writer.counters((&format!("zonal_{name}"), unit), &help, one(value as f64 * factor));
    }
}

/// Returns the help text of a counter, in which amounts are bytes instead of frames.
fn help_of(counter: Counter) -> String {
    match counter.unit() {
        "frames" => counter.help().replace("Bad frames", "Bad memory").replace("Frames", "Memory"),
        _ => counter.help().to_owned(),
    }
}

fn pagesets(writer: &mut Writer, sample: &Sample) {
    let labels = |pageset: &PagesetSample| {
        let mut labels = sample.zones.get(pageset.zone).map(labels).unwrap_or_default();
        labels.push(("cpu", pageset.cpu.to_string()));
        labels
    };
    let bytes = |frames: u64| frames as f64 * sample.page_bytes as f64;
    let unit = BYTES;
    let pagesets = || sample.pagesets.iter();
    let filled = pagesets().map(|pageset| (labels(pageset), bytes(pageset.count)));
    writer.gauges(("zonal_pageset", unit), "Free memory in a pageset.", filled);
    let high = pagesets().map(|pageset| (labels(pageset), bytes(pageset.high)));
    writer.gauges(("zonal_pageset_high", unit), "Size above which a pageset drains.", high);
    let refills = pagesets().filter_map(|pageset| Some((labels(pageset), pageset.refills? as f64)));
    writer.counters(("zonal_pageset_refills", NO_UNIT), "Batches moved to a pageset.", refills);
    let drains = pagesets().filter_map(|pageset| Some((labels(pageset), pageset.drains? as f64)));
    writer.counters(("zonal_pageset_drains", NO_UNIT), "Batches moved from a pageset.", drains);
}

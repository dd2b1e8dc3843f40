//! The top of the page: what is watched and when, problems, and the most important figures.

use jiff::Timestamp;
use maud::{Markup, html};
use zonal_page::{figures, printable};

use super::words::{counted, memory, percent, rate, share, total};
use crate::sample::{Pressure, Rates, ZoneSample};
use crate::serve::tick::Tick;

/// Maximum number of parts that could not be read and are listed.
const MISSING_MAX: usize = 8;

/// Returns the top of the page.
pub(super) fn html(tick: &Tick) -> Markup {
    let sample = &tick.sample;
    html! {
        p #about .about {
            @if let Some(program) = &sample.program { "Program " strong { (printable(program)) } ". " }
            (counted(sample.nodes.len(), "node")) ", " (counted(sample.zones.len(), "zone"))
            ", pages of " (figures::quantity(sample.page_bytes as f64 / 1024.0, "KiB")) ". "
            (time(tick)) ", read every " (figures::quantity(tick.interval.as_secs_f64(), "s")) "."
        }
        div #problem role="status" {
            @if let Some(problem) = &tick.problem {
                p.banner {
                    strong { "Old figures." } " No answer since " (time(tick)) ": " (printable(problem))
                    ". Trying again every "
                    (figures::quantity(tick.interval.as_secs_f64(), "s")) "."
                }
            }
        }
        dl.tiles {
            @for (name, value, note) in tiles(tick) {
                div { dt { (name) } dd { strong { (value) } " " small { (note) } } }
            }
        }
        @if !sample.missing.is_empty() {
            details {
                summary { (counted(sample.missing.len(), "part")) " could not be read" }
                ul { @for part in sample.missing.iter().take(MISSING_MAX) { li { (printable(part)) } } }
            }
        }
    }
}

fn time(tick: &Tick) -> Markup {
    let time = Timestamp::from_millisecond(i64::try_from(tick.sample.unix_ms).unwrap_or(i64::MAX));
    let time = time.unwrap_or_default();
    let shown = time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string();
    html! { time datetime=(time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()) { (shown) } }
}

/// Returns the most important figures: name, value and a remark.
fn tiles(tick: &Tick) -> [(&'static str, String, String); 5] {
    let sample = &tick.sample;
    let sum = |frames: fn(&ZoneSample) -> u64| total(sample.zones.iter().map(frames));
    let [managed, free, cached] =
        [sum(|zone| zone.managed), sum(|zone| zone.free), sum(|zone| zone.in_pagesets)];
    let used = sum(ZoneSample::used);
    let of_all = |frames| format!("{} of {}", percent(share(frames, managed)), memory(sample, managed));
    let locality = tick.rates.as_ref().and_then(Rates::locality);
    let (hits, speed) = match locality {
        Some(rates) if rates.hit + rates.miss > 0.0 => {
            let all = rates.hit + rates.miss;
            (percent(rates.hit / all), format!("of {} allocations/s", rate(Some(all))))
        }
        Some(_) => (figures::NO_FIGURE.to_owned(), "no allocations".to_owned()),
        None => (figures::NO_FIGURE.to_owned(), "no rates yet".to_owned()),
    };
    let pressed = sample.zones.iter().filter(|zone| zone.pressure() >= Pressure::BelowLow).count();
    let worst = sample.zones.iter().map(ZoneSample::pressure).max().unwrap_or(Pressure::None);
    let pressure = match worst {
        Pressure::None | Pressure::BelowHigh => ("none".to_owned(), "all zones above low".to_owned()),
        Pressure::BelowLow => (counted(pressed, "zone"), "below low".to_owned()),
        Pressure::BelowMin => (counted(pressed, "zone"), "below low or min".to_owned()),
    };
    [
        ("Used", memory(sample, used), of_all(used)),
        ("Free", memory(sample, free), of_all(free)),
        ("In pagesets", memory(sample, cached), of_all(cached)),
        ("Preferred zone", hits, speed),
        ("Pressure", pressure.0, pressure.1),
    ]
}

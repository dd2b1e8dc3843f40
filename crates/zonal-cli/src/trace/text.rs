//! Traces as text.
//!
//! Related files: `trace/tables.rs` has the tables.

use std::path::Path;

use zonal_machine::{Bytes, Escaped, Excerpt, ids};
use zonal_trace::{Header, Info, Recorded};

use super::tables::{tables, time};
use crate::layout::{Grid, Width};

/// Returns the message about a recording.
pub(super) fn recorded(recorded: &Recorded, out: &Path) -> String {
    let trailer = &recorded.trailer;
    let seconds = trailer.ended_ns.saturating_sub(recorded.header.started_ns) as f64 / 1e9;
    let cleaned = match recorded.cleaned {
        0 => String::new(),
        cleaned => format!("; removed {cleaned} tracefs instances of killed recorders"),
    };
    format!("recorded {seconds:.2} s: {}{cleaned}", written(trailer.events(), recorded.bytes, out))
}

/// Returns the message about a written trace.
pub(super) fn written(events: u64, bytes: u64, out: &Path) -> String {
    let each = bytes as f64 / events.max(1) as f64;
    format!("{events} events in {bytes} bytes ({each:.2} each) in {}", Excerpt::name(out.display()))
}

/// Returns warnings about missing events with the remedies.
pub(super) fn losses(recorded: &Recorded) -> Vec<String> {
    let mut warnings = Vec::new();
    let lost = recorded.trailer.lost();
    if lost > 0 {
        let buffer = recorded.header.buffer_kib;
        warnings.push(format!(
            "warning: {lost} events were lost; use --buffer-kb with more than {buffer}, or record less"
        ));
    }
    if !recorded.came_online.is_empty() {
        let cpus = ids::format(recorded.came_online.iter().copied());
        warnings.push(format!(
            "warning: CPUs {cpus} came online during the recording, and their events are missing; record again"
        ));
    }
    warnings
}

/// Returns the sentences about a trace as a whole.
pub(super) fn summary(header: &Header, info: &Info) -> Vec<String> {
    let mut lines = Vec::new();
    if !info.is_complete {
        lines.push(
            "The trace is cut off: its recorder was killed, or the copy is incomplete. All figures are about \
             what it holds."
                .to_owned(),
        );
    }
    let kernel = header.kernel.as_deref().unwrap_or("an unknown kernel");
    let command = match &header.command[..] {
        [] => String::new(),
        words => format!(", while `{}` ran", words.join(" ")),
    };
    let size = format!(
        "{} in the file, {:.2} bytes an event",
        Bytes(info.bytes),
        info.bytes as f64 / info.events.max(1) as f64
    );
    lines.push(format!("{:.3} s of {kernel}{command}: {} events, {size}.", info.seconds, info.events));
    let requests = &info.requests;
    lines.push(format!(
        "{} requests were served with {} frames and {} failed; {:.1} % of them needed a zone's lock. {} blocks with {} \
         frames were freed.",
        requests.allocations,
        requests.allocated_pages,
        requests.failed,
        100.0 * requests.lock_share,
        requests.frees,
        requests.freed_pages,
    ));
    let lifetimes = &info.lifetimes;
    if let (Some(half), Some(most)) = (lifetimes.below_ns(0.5), lifetimes.below_ns(0.9)) {
        lines.push(format!(
            "Half of the freed blocks lived less than {}, and 90 % less than {}; {} were allocated before the trace \
             began, {} were freed in parts, and {} were not freed.",
            time(half),
            time(most),
            lifetimes.earlier,
            lifetimes.partial,
            lifetimes.unfreed,
        ));
    }
    lines.push(match (info.lost, info.skipped, info.late) {
        (0, 0, 0) => "No event was lost.".to_owned(),
        (lost, skipped, late) => format!(
            "{lost} events were lost, {skipped} records were not understood, and {late} events came late."
        ),
    });
    if !header.absent.is_empty() {
        lines.push(format!(
            "Not recorded, because the kernel or the file has none: {}.",
            header.absent.join(", ")
        ));
    }
    lines
}

/// Returns everything as text.
pub(super) fn info(header: &Header, info: &Info, file: &Path, width: Width) -> String {
    let mut text = format!("{}\n", Excerpt::name(file.display()));
    for line in summary(header, info) {
        text += &width.paragraph("", "", &Escaped(line).to_string());
    }
    for (_, table) in tables(info) {
        let mut grid = Grid::new(1, table.columns.iter().copied());
        for row in table.rows {
            grid.row(row.into_iter().map(|cell| Escaped(cell).to_string()));
        }
        text += &format!("\n{}\n{}", table.title, grid.render("  ", width));
        if table.left_out > 0 {
            text += &format!("  and {} more, which --json has\n", table.left_out);
        }
    }
    text
}

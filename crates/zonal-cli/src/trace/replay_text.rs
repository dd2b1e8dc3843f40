//! Replays as text.
//!
//! Related files: `trace/replay.rs` calls this.

use std::path::Path;

use zonal_lab::replay::{HugePages, KernelReplay, OwnReplay, Pair};
use zonal_machine::{Escaped, Excerpt};

use crate::layout::Content::{self, Numbers, Text};
use crate::layout::{Grid, Width};

const CUT: &str = "The trace is cut off: its recorder was killed, or the copy is incomplete. All figures are about what \
                   it holds.";

/// Returns a replay by the kernel's rule.
pub(super) fn kernel(replay: &KernelReplay, file: &Path, wanted: Option<u64>, width: Width) -> String {
    let mut text = format!("{}\n", Excerpt::name(file.display()));
    let mut say = |line: &str| text += &width.paragraph("", "", &Escaped(line).to_string());
    if !replay.is_complete {
        say(CUT);
    }
    say(&format!(
        "{:.3} s of {}, {} events. The rule of its pagesets predicts the refills and drains after the first {} s from \
         requests and frees.",
        replay.seconds, replay.kernel, replay.events, replay.from_seconds
    ));
    if replay.lost > 0 {
        say(&format!("{} events are missing, so the prediction is not to be relied on.", replay.lost));
    }
    let columns = [
        ("CPU", Numbers),
        ("refilled", Numbers),
        ("predicted", Numbers),
        ("error", Numbers),
        ("drained", Numbers),
        ("predicted", Numbers),
        ("error", Numbers),
    ];
    let mut grid = Grid::new(1, columns);
    for cpu in &replay.cpus {
        let error = |pair: &Pair| {
            pair.error_percent().map_or_else(|| "-".to_owned(), |percent| format!("{percent:+.1} %"))
        };
        grid.row([
            cpu.cpu.to_string(),
            cpu.refilled.traced.to_string(),
            cpu.refilled.predicted.to_string(),
            error(&cpu.refilled),
            cpu.drained.traced.to_string(),
            cpu.drained.predicted.to_string(),
            error(&cpu.drained),
        ]);
    }
    text += &format!("\nFrames\n{}", grid.render("  ", width));
    for (at, figures) in [("start", &replay.huge_at_start), ("end", &replay.huge_at_end)] {
        if let Some(figures) = figures {
            text += &format!("\n{}", width.paragraph("", "", &huge(at, figures, wanted)));
        }
    }
    text
}

fn huge(at: &str, figures: &HugePages, wanted: Option<u64>) -> String {
    let number = wanted.unwrap_or_else(|| figures.all());
    let sum = |of: fn(&zonal_lab::replay::HugeZone) -> u64| -> u64 {
        figures.zones.iter().map(of).fold(0, u64::saturating_add)
    };
    format!(
        "At the {at}, a request for {number} pages with {} frames each gets {}: the zones have {} free blocks of that size. \
         After the pagesets are drained it gets at most {}: they have {} frames, and smaller free blocks have {}.",
        figures.frames,
        figures.before(number),
        sum(|zone| zone.blocks),
        figures.after_at_most(number),
        sum(|zone| zone.in_pagesets),
        sum(|zone| zone.in_smaller_blocks),
    )
}

/// Columns of the table with a row for each tuning rule.
const OUR_COLUMNS: [(&str, Content); 13] = [
    ("tuning", Text),
    ("served", Numbers),
    ("failed", Numbers),
    ("refills", Numbers),
    ("drains", Numbers),
    ("lock waits", Numbers),
    ("waited ms", Numbers),
    ("most in pagesets", Numbers),
    ("at the end", Numbers),
    ("hit", Numbers),
    ("miss", Numbers),
    ("free 2 MiB", Numbers),
    ("drained", Numbers),
];

/// Returns a replay on the allocator that ships.
pub(super) fn ours(replay: &OwnReplay, file: &Path, width: Width) -> String {
    let mut text = format!("{}\n", Excerpt::name(file.display()));
    let mut say = |line: &str| text += &width.paragraph("", "", &Escaped(line).to_string());
    if !replay.is_complete {
        say(CUT);
    }
    let kernel = replay.kernel.as_deref().unwrap_or("an unknown kernel");
    say(&format!(
        "{:.3} s of {kernel} on machine {}, simulated with seed {}. {} frames were allocated before.",
        replay.seconds, replay.machine, replay.seed, replay.filled
    ));
    if replay.lost > 0 {
        say(&format!("{} events are missing, so the figures are not to be relied on.", replay.lost));
    }
    if !replay.has_recorded_cpus {
        say("The machine lacks some of the recorded CPUs, so the nth recorded CPU is the machine's nth.");
    }
    if replay.unknown_frees > 0 {
        say(&format!("{} frees of frames that nothing held were left out.", replay.unknown_frees));
    }
    if replay.rows.iter().any(|row| row.failed > 0) {
        say("Requests that failed here were served in the trace, where the kernel reclaims memory.");
    }
    let mut grid = Grid::new(1, OUR_COLUMNS);
    for row in &replay.rows {
        grid.row([
            row.tuning.clone(),
            row.served.to_string(),
            row.failed.to_string(),
            row.refills.to_string(),
            row.drains.to_string(),
            row.lock_waits.to_string(),
            format!("{:.3}", row.lock_wait_ms),
            row.pageset_frames_most.to_string(),
            row.pageset_frames_end.to_string(),
            row.hit.to_string(),
            row.miss.to_string(),
            row.free_huge_end.to_string(),
            row.free_huge_drained.to_string(),
        ]);
    }
    text += &format!("\n{}", grid.render("  ", width));
    if let Some(first) = replay.rows.first() {
        let columns = format!(
            "A refill or drain takes the zone's lock once. Before the trace, {} blocks of 2 MiB were free; the last two \
             columns are those free at the end, before and after the pagesets are drained.",
            first.free_huge_start
        );
        text += &format!("\n{}", width.paragraph("", "", &columns));
    }
    text
}

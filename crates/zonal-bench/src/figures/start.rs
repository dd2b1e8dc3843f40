//! Measures how long an allocator takes to start with much memory, and the size of its metadata.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use zonal::Config;
use zonal::units::PageCount;

use super::described::Description;
use super::{Figure, Figures, Goal, Sizes};
use crate::contender::{Entry, Reason};
use crate::ours;
use crate::spread::Spread;

/// Number of frames in one GiB.
const GIB: u64 = 1 << 18;

fn machine(frames: u64) -> Description {
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32);
    Description { frames: vec![frames], cpus, absent: 0 }
}

/// Measures the time to start with 4 GiB at the beginning of a 4 TiB span.
pub(super) fn sparse_start(sizes: &Sizes) -> Option<Figure> {
    let times = (0..sizes.repeats).map(|_| {
        let machine = Description { absent: 4092 * GIB, ..machine(4 * GIB) };
        us(|| Ok(machine.start(&Config::default()))).unwrap_or_default()
    });
    let median = Spread::of(times)?.median;
    let figure = Figure::new("start_4_gib_in_4_tib", ours::NAME, median, "us");
    Some(figure.with_goal(Goal::AtMost(1000.0, 100.0)))
}

/// Adds start times. For zonal, the time begins with the description of one node with this machine's CPUs and ends
/// with an allocator that can serve; it includes mapping the metadata. For other contenders, it is the time to create
/// the contender.
pub(super) fn starts(entries: &[&Entry], sizes: &Sizes, stop: &AtomicBool, into: &mut Figures) {
    for gib in sizes.start_gib {
        let (name, frames) = (format!("start_{gib}_gib"), gib * GIB);
        let times = (0..sizes.repeats).map(|_| {
            let machine = machine(frames);
            us(|| Ok(machine.start(&Config::default()))).unwrap_or_default()
        });
        let row = Spread::of(times).map(|times| Figure::new(&*name, ours::NAME, times.median, "us"));
        let goal = Goal::AtMost(5000.0, 1000.0);
        into.rows.extend(row.map(|row| if gib == 1024 { row.with_goal(goal) } else { row }));
        for entry in entries.iter().filter(|entry| entry.name() != ours::NAME) {
            // Relaxed: only the flag itself is read.
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let times = (0..sizes.repeats).map(|_| us(|| entry.make(PageCount::new(frames))));
            match times.collect::<Result<Vec<_>, _>>() {
                Ok(times) => into.rows.extend(
                    Spread::of(times).map(|times| Figure::new(&*name, entry.name(), times.median, "us")),
                ),
                Err(reason) => into.skipped.push(format!("{name}: {}: {reason}", entry.name())),
            }
        }
    }
}

/// Returns the duration of `make` in microseconds, without the time to drop its result.
fn us<T>(make: impl FnOnce() -> Result<T, Reason>) -> Result<f64, Reason> {
    let start = Instant::now();
    let made = make();
    let us = start.elapsed().as_secs_f64() * 1e6;
    made.map(|_| us)
}

/// Measures the bytes of metadata per frame, including pagesets and checks.
pub(super) fn metadata(sizes: &Sizes) -> Vec<Figure> {
    let frames = sizes.frames.get();
    let bytes = machine(frames).start(&Config::default()).allocator.metadata_bytes();
    let each = bytes as f64 / frames as f64;
    vec![Figure::new("metadata", ours::NAME, each, "bytes per frame").with_goal(Goal::AtMost(1.5, 1.3))]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers;

    #[cfg_attr(not(feature = "peers"), ignore = "needs the feature `peers`")]
    #[test]
    fn start_up_is_timed_for_each_size_and_metadata_is_below_two_bytes_per_frame() {
        let sizes = Sizes { repeats: 1, start_gib: [1, 2, 1024], ..Sizes::default() };
        let all = peers();
        let bitmap: Vec<&Entry> = all.iter().filter(|entry| entry.name() == "bitmap-allocator").collect();
        let mut figures = Figures::default();
        starts(&bitmap, &sizes, &AtomicBool::new(false), &mut figures);
        let of = |name: &str| -> Vec<&str> {
            figures.rows.iter().filter(|row| row.contender == name).map(|row| &*row.name).collect()
        };
        assert_eq!(of("zonal"), ["start_1_gib", "start_2_gib", "start_1024_gib"]);
        assert_eq!(of("bitmap-allocator"), ["start_1_gib", "start_2_gib"]);
        assert_eq!(figures.skipped.len(), 1, "its trees do not hold a tebibyte: {:?}", figures.skipped);
        let has_goal = |row: &&Figure| row.goal.is_some();
        let with_goal: Vec<&str> = figures.rows.iter().filter(has_goal).map(|row| &*row.name).collect();
        assert_eq!(with_goal, ["start_1024_gib"]);
        assert!(figures.rows.iter().all(|row| row.value > 0.0));
        let metadata = metadata(&sizes)[0].value;
        assert!((0.5..2.0).contains(&metadata), "{metadata}");
    }
}

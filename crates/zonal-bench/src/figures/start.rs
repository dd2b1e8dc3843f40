//! How long an allocator takes to start over much memory, and how much of it goes to metadata.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use zonal::Config;

use super::described::Description;
use super::{Figure, Goal, Sizes};
use crate::ours;
use crate::spread::Spread;

/// Frames of a GiB.
const GIB: u64 = 1 << 18;

fn machine(frames: u64) -> Description {
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32);
    Description { frames: vec![frames], cpus }
}

/// Times from the description of one node with this machine's CPUs to an allocator that serves, the
/// mapping of its metadata included.
pub(super) fn starts(sizes: &Sizes, stop: &AtomicBool) -> Vec<Figure> {
    let mut rows = Vec::new();
    for gib in sizes.start_gib {
        let start = |_| {
            let (machine, start) = (machine(gib * GIB), Instant::now());
            let world = machine.start(&Config::default());
            let us = start.elapsed().as_secs_f64() * 1e6;
            drop(world);
            us
        };
        let Some(times) = Spread::of((0..sizes.repeats).map(start)) else { continue };
        let row = Figure::new(format!("start_{gib}_gib"), ours::NAME, times.median, "us");
        rows.push(if gib == 1024 { row.with_goal(Goal::AtMost(5000.0, 1000.0)) } else { row });
        // Relaxed: nothing but the flag itself is read.
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    rows
}

/// Bytes of metadata for each frame, pagesets and checks included.
pub(super) fn metadata(sizes: &Sizes) -> Vec<Figure> {
    let frames = sizes.frames.get();
    let bytes = machine(frames).start(&Config::default()).allocator.metadata_bytes();
    let each = bytes as f64 / frames as f64;
    vec![Figure::new("metadata", ours::NAME, each, "bytes a frame").with_goal(Goal::AtMost(1.5, 1.3))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_timed_for_each_size_and_metadata_is_less_than_two_bytes_a_frame() {
        let sizes = Sizes { repeats: 1, start_gib: [1, 2, 1024], ..Sizes::default() };
        let rows = starts(&sizes, &AtomicBool::new(false));
        let names: Vec<&str> = rows.iter().map(|row| &*row.name).collect();
        assert_eq!(names, ["start_1_gib", "start_2_gib", "start_1024_gib"]);
        assert!(rows.iter().all(|row| row.value > 0.0 && row.goal.is_some() == row.name.contains("1024")));
        let metadata = metadata(&sizes)[0].value;
        assert!((0.5..2.0).contains(&metadata), "{metadata}");
    }
}

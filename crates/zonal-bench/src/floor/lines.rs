//! The arrays of frame numbers, one for each CPU, and the line that leads to each.
//!
//! A frame is a number below 2^32: its place in the pool. Neighbours: `sequences.rs` and `locked.rs`
//! are the two ways to an array, `stock.rs` fills and empties them in bulk.

use std::cell::UnsafeCell;
use std::path::Path;
use std::sync::atomic::AtomicU32;

use memmap2::{MmapMut, MmapOptions};

/// What a CPU has: one cache line. Invariant: `array[..count]` are free frames, `count <= capacity`,
/// and the array has `capacity` slots.
#[repr(C, align(64))]
pub(super) struct Line {
    /// At 0, 8 and 16, where the sequences look for them.
    pub(super) count: UnsafeCell<u64>,
    pub(super) array: *mut u32,
    pub(super) capacity: u64,
    /// 1 while held; sequences do without.
    pub(super) lock: AtomicU32,
}

/// The lines of all CPUs there can be. Indices are CPU numbers.
pub(super) struct Lines {
    lines: Box<[Line]>,
    /// What the lines point into.
    _arrays: MmapMut,
}

// SAFETY: counts and arrays are reached by the two ways alone. Sequences touch the line of their own
// CPU and are restarted when they lose it; the others hold the line's lock. No pool has both.
unsafe impl Sync for Lines {}
// SAFETY: nothing belongs to a thread.
unsafe impl Send for Lines {}

impl Lines {
    /// Empty arrays of `capacity` frames for each CPU that this machine can have.
    ///
    /// # Errors
    /// When the kernel does not tell how many that are, or has no addresses for so much.
    pub(super) fn new(capacity: usize) -> Result<Self, String> {
        let cpus = possible_cpus()?;
        // Only what is used of it becomes memory.
        let mapped = MmapOptions::new().len(cpus * capacity * size_of::<u32>()).no_reserve_swap().map_anon();
        let mut arrays = mapped.map_err(|error| format!("no addresses for its arrays: {error}"))?;
        let first = arrays.as_mut_ptr().cast::<u32>();
        let line = |cpu| Line {
            count: UnsafeCell::new(0),
            array: first.wrapping_add(cpu * capacity),
            capacity: capacity as u64,
            lock: AtomicU32::new(0),
        };
        Ok(Self { lines: (0..cpus).map(line).collect(), _arrays: arrays })
    }

    /// The line of CPU 0; that of CPU `n` is the `n`th.
    pub(super) fn first(&self) -> *const Line {
        self.lines.as_ptr()
    }

    /// CPUs that have a line.
    pub(super) fn cpus(&self) -> usize {
        self.lines.len()
    }

    /// The line of `cpu`, or any line for a CPU that should not exist.
    #[inline]
    pub(super) fn of(&self, cpu: usize) -> &Line {
        self.lines.get(cpu).unwrap_or(&self.lines[0])
    }
}

/// One more than the largest CPU number there can be.
fn possible_cpus() -> Result<usize, String> {
    let file = Path::new("/sys/devices/system/cpu/possible");
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let last = text.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<usize>().ok());
    last.map(|last| last + 1)
        .ok_or_else(|| format!("{}: `{}` is no list of CPUs", file.display(), text.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_where_the_sequences_look_for_it() {
        assert_eq!((size_of::<Line>(), align_of::<Line>()), (64, 64));
        let places = [std::mem::offset_of!(Line, count), std::mem::offset_of!(Line, array)];
        assert_eq!((places, std::mem::offset_of!(Line, capacity)), ([0, 8], 16));
    }

    #[test]
    fn there_is_a_line_for_each_cpu() {
        let lines = Lines::new(4).unwrap();
        assert!(lines.cpus() >= std::thread::available_parallelism().unwrap().get());
    }
}

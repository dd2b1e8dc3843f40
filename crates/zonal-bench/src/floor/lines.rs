//! The arrays of frame numbers, one for each CPU, and the cache line that points to each array.
//!
//! A frame is a number below 2^32: its index in the pool. Related files: `floor/sequences.rs` and `floor/locked.rs`
//! are the two ways to access an array, and `floor/stock.rs` fills and empties arrays in bulk.

use std::cell::UnsafeCell;
use std::path::Path;
use std::sync::atomic::AtomicU32;

use memmap2::{MmapMut, MmapOptions};

/// The state of one CPU, in one cache line. Invariant: `array[..count]` are free frames, `count <= capacity`, and
/// `array` has `capacity` slots.
#[repr(C, align(64))]
pub(super) struct Line {
    /// The sequences expect these three fields at offsets 0, 8 and 16.
    pub(super) count: UnsafeCell<u64>,
    pub(super) array: *mut u32,
    pub(super) capacity: u64,
    /// 1 while the lock is held, else 0. Sequences do not use the lock.
    pub(super) lock: AtomicU32,
}

/// The lines of all possible CPUs, indexed by CPU number.
pub(super) struct Lines {
    lines: Box<[Line]>,
    /// The memory of the arrays to which the lines point.
    _arrays: MmapMut,
}

// SAFETY: counts and arrays are accessed only by sequences or under the line's lock, and no pool uses both. A
// sequence accesses only the line of its own CPU, and is restarted if it is preempted.
unsafe impl Sync for Lines {}
// SAFETY: no part of the lines is tied to a thread.
unsafe impl Send for Lines {}

impl Lines {
    /// Creates empty `capacity`-frame arrays for each possible CPU of this machine.
    ///
    /// # Errors
    /// Returns an error if the kernel does not report the number of CPUs, or if there is not enough address space.
    pub(super) fn new(capacity: usize) -> Result<Self, String> {
        let cpus = possible_cpus()?;
        // The kernel provides memory only for the part that is used.
        let mapped = MmapOptions::new().len(cpus * capacity * size_of::<u32>()).no_reserve_swap().map_anon();
        let mut arrays =
            mapped.map_err(|error| format!("cannot reserve address space for its arrays: {error}"))?;
        let first = arrays.as_mut_ptr().cast::<u32>();
        let line = |cpu| Line {
            count: UnsafeCell::new(0),
            array: first.wrapping_add(cpu * capacity),
            capacity: capacity as u64,
            lock: AtomicU32::new(0),
        };
        Ok(Self { lines: (0..cpus).map(line).collect(), _arrays: arrays })
    }

    /// Returns the address of CPU 0's line. The lines of the other CPUs follow it in order.
    pub(super) fn first(&self) -> *const Line {
        self.lines.as_ptr()
    }

    /// Returns the number of CPUs that have a line.
    pub(super) fn cpus(&self) -> usize {
        self.lines.len()
    }

    /// Returns the line of `cpu`, or any line for a CPU number that should not exist.
    #[inline]
    pub(super) fn of(&self, cpu: usize) -> &Line {
        self.lines.get(cpu).unwrap_or(&self.lines[0])
    }
}

/// Returns the largest possible CPU number plus one.
fn possible_cpus() -> Result<usize, String> {
    let file = Path::new("/sys/devices/system/cpu/possible");
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let cpus = zonal_machine::ids::parse(&text, 1 << 20);
    cpus.and_then(|cpus| Some(*cpus.last()? as usize + 1))
        .ok_or_else(|| format!("{}: `{}` is not a list of CPUs", file.display(), text.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_layout_matches_the_sequences() {
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

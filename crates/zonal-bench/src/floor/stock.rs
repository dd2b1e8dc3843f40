//! The frames that are in no CPU's array: a stack under a lock.
//!
//! An empty array is refilled from the stack in bulk, and a full array is partly emptied to the stack. An array may
//! hold the whole pool. A thread that has moved to another CPU can therefore find the stack empty while all free
//! frames are in the array of its previous CPU. The thread then moves to each CPU, one after another, and empties
//! that CPU's array. Related files: `floor/lines.rs` has the arrays, and `floor/sequences.rs` and `floor/locked.rs`
//! access them.

use parking_lot::Mutex;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use zonal::units::{Order, PageCount, Pfn};
use zonal_workload::PageSource;

use super::lines::Lines;

/// Number of frames in a bulk move.
pub(super) const BULK: usize = 512;

/// One thread's access to the array of the CPU on which it runs.
pub(crate) trait Access {
    /// Pops the last frame. Returns `None` if the array is empty.
    fn pop(&self) -> Option<u32>;
    /// Pushes a frame. Returns `false` if the array is full.
    fn push(&self, frame: u32) -> bool;
    /// Pops as many frames as `into` has elements, or none. Returns whether it popped them.
    fn pop_many(&self, into: &mut [u32]) -> bool;
    /// Pushes all frames, or none. Returns whether it pushed them.
    fn push_many(&self, frames: &[u32]) -> bool;
}

/// The frames of a pool, each of which is in an array, in the stack, or allocated.
pub(super) struct Stock {
    pub(super) lines: Lines,
    rest: Mutex<Vec<u32>>,
}

impl Stock {
    /// Creates a pool of `frames` with arrays that hold up to `depth` frames.
    pub(super) fn new(frames: PageCount, depth: usize) -> Result<Self, String> {
        let count = u32::try_from(frames.get());
        let count = count.map_err(|_| format!("{frames} frames do not fit its 32-bit frame numbers"))?;
        let lines = Lines::new(depth.max(2 * BULK))?;
        Ok(Self { lines, rest: Mutex::new((0..count).rev().collect()) })
    }

    /// Pops up to [`BULK`] frames from the stack, and returns their number.
    fn take(&self, into: &mut [u32; BULK]) -> usize {
        let mut rest = self.rest.lock();
        let first = rest.len().saturating_sub(BULK);
        let going = rest.len() - first;
        into[..going].copy_from_slice(&rest[first..]);
        rest.truncate(first);
        going
    }

    fn free(&self, frames: &[u32]) {
        self.rest.lock().extend_from_slice(frames);
    }
}

/// One thread's interface to a pool.
pub(crate) struct Source<'a, A> {
    pub(super) access: A,
    pub(super) stock: &'a Stock,
}

impl<A: Access> PageSource for Source<'_, A> {
    type Page = Pfn;

    #[inline]
    fn alloc(&mut self, _order: Order) -> Option<Pfn> {
        let frame = self.access.pop().or_else(|| self.refill())?;
        Some(Pfn::new(u64::from(frame)))
    }

    #[inline]
    fn free(&mut self, page: Pfn, _order: Order) {
        let frame = page.get() as u32; // it fits, because `alloc` returned it
        if !self.access.push(frame) {
            self.spill(frame);
        }
    }
}

impl<A: Access> Source<'_, A> {
    /// Returns a frame, and refills the array for the next allocations.
    #[cold]
    #[inline(never)]
    fn refill(&self) -> Option<u32> {
        let mut bulk = [0; BULK];
        let mut came = self.stock.take(&mut bulk);
        if came == 0 {
            self.gather();
            came = self.stock.take(&mut bulk);
        }
        let (frame, more) = bulk[..came].split_last()?;
        if !self.access.push_many(more) {
            self.stock.free(more); // the thread has moved to a CPU whose array is nearly full
        }
        Some(*frame)
    }

    /// Moves frames from the full array to the stack, and pushes the frame.
    #[cold]
    #[inline(never)]
    fn spill(&self, frame: u32) {
        let mut bulk = [0; BULK];
        if self.access.pop_many(&mut bulk) {
            self.stock.free(&bulk);
        }
        if !self.access.push(frame) {
            self.stock.free(&[frame]);
        }
    }

    /// Empties the arrays of all CPUs on which the thread may run.
    #[cold]
    #[inline(never)]
    fn gather(&self) {
        let Ok(original) = sched_getaffinity(None) else { return };
        for cpu in (0..CpuSet::MAX_CPU.min(self.stock.lines.cpus())).filter(|&cpu| original.is_set(cpu)) {
            let mut there = CpuSet::new();
            there.set(cpu);
            // The call fails for a CPU that has just gone offline.
            if sched_setaffinity(None, &there).is_ok() {
                self.empty_this_cpu();
            }
        }
        // Restores the original set of CPUs. This fails only if all these CPUs have gone offline; the kernel has then
        // chosen other CPUs.
        let _ = sched_setaffinity(None, &original);
    }

    fn empty_this_cpu(&self) {
        let mut bulk = [0; BULK];
        while self.access.pop_many(&mut bulk) {
            self.stock.free(&bulk);
        }
        while let Some(frame) = self.access.pop() {
            self.stock.free(&[frame]);
        }
    }
}

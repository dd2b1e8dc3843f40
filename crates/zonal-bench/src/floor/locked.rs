//! Access to an array under the lock of its CPU. Locking is one exchange, and unlocking is one store.

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use super::area::{self, Area};
use super::lines::{Line, Lines};
use super::stock::Access;

/// Checks of a held lock after which the waiting thread yields the processor, because the holder may not be running.
const LOOKS: u32 = 100;

/// One thread's access to all arrays of a pool.
pub(crate) struct Locked<'a> {
    lines: &'a Lines,
    /// The area of the thread that created this.
    area: Option<NonNull<Area>>,
}

impl<'a> Locked<'a> {
    /// Creates an access that only the calling thread may use.
    pub(super) fn for_this_thread(lines: &'a Lines) -> Self {
        Self { lines, area: area::of_this_thread().ok() }
    }

    /// Returns the current CPU's line, locked until the guard is dropped.
    #[inline]
    fn line(&self) -> Guard<'a> {
        let cpu = match self.area {
            Some(area) => area::cpu_of(area) as usize,
            None => rustix::thread::sched_getcpu(),
        };
        let line = self.lines.of(cpu);
        // Acquire: takes the last holder's writes; pairs with `Guard::drop`.
        if line.lock.swap(1, Ordering::Acquire) != 0 {
            wait_for(line);
        }
        Guard(line)
    }
}

#[cold]
fn wait_for(line: &Line) {
    let mut looks = 0;
    // Acquire: takes the last holder's writes; pairs with `Guard::drop`.
    while line.lock.swap(1, Ordering::Acquire) != 0 {
        looks += 1;
        if looks % LOOKS == 0 { std::thread::yield_now() } else { std::hint::spin_loop() }
    }
}

/// A locked line.
struct Guard<'a>(&'a Line);

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: publishes the holder's writes; pairs with `Locked::line`, `wait_for`.
        self.0.lock.store(0, Ordering::Release);
    }
}

impl Guard<'_> {
    #[inline]
    fn parts(&mut self) -> (&mut u64, &mut [u32]) {
        let line = self.0;
        // SAFETY: this guard holds the lock, and all code that accesses lines of this pool holds it.
        let count = unsafe { &mut *UnsafeCell::raw_get(&raw const line.count) };
        // SAFETY: the lock is held, as above. The array has `capacity` slots and lives as long as its line.
        let array = unsafe { std::slice::from_raw_parts_mut(line.array, line.capacity as usize) };
        (count, array)
    }
}

impl Access for Locked<'_> {
    #[inline]
    fn pop(&self) -> Option<u32> {
        let mut line = self.line();
        let (count, array) = line.parts();
        let last = count.checked_sub(1)?;
        *count = last;
        // SAFETY: `last` is below the number of slots, because the count never exceeds it. A floor does without the
        // bounds check.
        Some(unsafe { *array.get_unchecked(last as usize) })
    }

    #[inline]
    fn push(&self, frame: u32) -> bool {
        let mut line = self.line();
        let (count, array) = line.parts();
        let Some(slot) = array.get_mut(*count as usize) else { return false };
        *slot = frame;
        *count += 1;
        true
    }

    fn pop_many(&self, into: &mut [u32]) -> bool {
        let mut line = self.line();
        let (count, array) = line.parts();
        let Some(first) = count.checked_sub(into.len() as u64) else { return false };
        into.copy_from_slice(&array[first as usize..*count as usize]);
        *count = first;
        true
    }

    fn push_many(&self, frames: &[u32]) -> bool {
        let mut line = self.line();
        let (count, array) = line.parts();
        let end = *count as usize + frames.len();
        let Some(slots) = array.get_mut(*count as usize..end) else { return false };
        slots.copy_from_slice(frames);
        *count = end as u64;
        true
    }
}

//! Locks of a simulated machine: queues in virtual time.
//!
//! A lock is a cell that holds 0 or its holder; who waits is known to the world. Whoever finds it held
//! sleeps until it is handed over, first come, first served. Neighbours: `charge.rs` moves
//! the lock's line, `platform.rs` gives these locks to the allocator.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use zonal::platform::RawLock;

use super::access::Access;
use super::charge::ProgramLine;
use super::hardware::LockKind;
use super::line_queue::Waits;
use super::thread_id::ThreadId;
use super::world::{self, World};

impl World {
    /// Takes the lock whose state `cell` holds, in `line`; waits if it is held.
    fn lock_cell(&self, cell: &AtomicU32, line: usize) {
        self.sync();
        let before = self.now();
        self.access_line(line, Access::Modify);
        // Relaxed throughout: one host thread.
        if cell.load(Relaxed) == 0 {
            return cell.store(self.thread().0 + 1, Relaxed);
        }
        self.locks.waiting.borrow_mut().entry(line).or_default().queue.push_back((self.thread(), self.cpu()));
        self.block(); // `unlock_cell` has made us the holder
        let waited = self.now() - before;
        self.account(|account| account.lock_wait += waited);
        if let Some(waiting) = self.locks.waiting.borrow_mut().get_mut(&line) {
            waiting.handed_over += 1;
            waiting.waited += waited;
        }
    }

    fn try_lock_cell(&self, cell: &AtomicU32, line: usize) -> bool {
        self.sync();
        self.access_line(line, Access::Modify);
        let free = cell.load(Relaxed) == 0; // relaxed: one host thread
        if free {
            cell.store(self.thread().0 + 1, Relaxed);
        }
        free
    }

    fn unlock_cell(&self, cell: &AtomicU32, line: usize) {
        self.sync(); // those who came while it was held are there now
        let mut left = self.pop_waiter(line);
        if left.is_none() {
            self.access_line(line, Access::Write); // others may come while we wait for the line
            left = self.pop_waiter(line);
        }
        let Some(((next, cpu), others)) = left else {
            return cell.store(0, Relaxed); // relaxed: one host thread
        };
        let contenders = if self.hardware.lock == LockKind::Spinning { others } else { 0 };
        let time = self.hand_over(line, cpu, contenders);
        cell.store(next.0 + 1, Relaxed); // relaxed: one host thread
        self.wake(next, self.now() + time);
    }

    /// The next who waits for a lock, and how many are left.
    fn pop_waiter(&self, line: usize) -> Option<((ThreadId, usize), usize)> {
        let mut all = self.locks.waiting.borrow_mut();
        let queue = &mut all.get_mut(&line)?.queue;
        Some((queue.pop_front()?, queue.len()))
    }
}

/// A lock of the allocator.
#[derive(Debug)]
#[repr(transparent)]
pub struct SimLock(AtomicU32);

impl RawLock for SimLock {
    fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    fn lock(&self) {
        // Without a world, or without cost, nobody else runs.
        world::with(|world| {
            if world.is_charging() {
                let address = self.0.as_ptr().addr();
                world.lock_cell(&self.0, world.line_at(address));
                world.begin_list_work(address);
            }
        });
    }

    fn try_lock(&self) -> bool {
        let taken = world::with(|world| {
            let address = self.0.as_ptr().addr();
            let taken = !world.is_charging() || world.try_lock_cell(&self.0, world.line_at(address));
            if taken {
                world.begin_list_work(address);
            }
            taken
        });
        taken.unwrap_or(true)
    }

    fn unlock(&self) {
        world::with(|world| {
            if world.is_charging() {
                world.end_list_work();
                world.unlock_cell(&self.0, world.line_at(self.0.as_ptr().addr()));
            }
        });
    }
}

/// A lock of a program: of its page tables, its lists, its files.
#[derive(Debug)]
pub struct ProgramLock {
    cell: AtomicU32,
    line: usize,
}

impl ProgramLock {
    /// A free lock in the memory of the node at a place.
    #[must_use]
    pub fn new(world: &World, node: usize) -> Self {
        Self { cell: AtomicU32::new(0), line: ProgramLine::new(world, node).number() }
    }

    /// Holds the lock while `work` is done.
    pub fn hold<R>(&self, world: &World, work: impl FnOnce() -> R) -> R {
        world.lock_cell(&self.cell, self.line);
        let result = work();
        world.unlock_cell(&self.cell, self.line);
        result
    }

    /// How it was waited for.
    #[must_use]
    pub fn waits(&self, world: &World) -> Waits {
        let all = world.locks.waiting.borrow();
        all.get(&self.line).map_or_else(Waits::default, |waiting| Waits {
            handed_over: waiting.handed_over,
            waited: waiting.waited,
        })
    }
}

//! Locks of a simulated machine, with queues in virtual time.
//!
//! A lock is a cell that contains 0 or identifies the holder. The world stores the lock's waiters. A thread that
//! finds the lock held sleeps until the holder passes the lock to it, in the order of arrival. On machines whose kernel
//! holds a zone's lock for a whole refill or drain, a thread keeps a lock that the allocator has released until its
//! operation ends. Related files:
//! `sim/charge.rs` moves the lock's line, `sim/platform.rs` provides these locks to the allocator.

use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use zonal::platform::RawLock;

use super::access::Access;
use super::charge::ProgramLine;
use super::hardware::{LockHold, LockKind};
use super::line_queue::Waits;
use super::lock_queues::{KeptLock, Waiter};
use super::world::{self, World};

impl World {
    /// Acquires the lock whose state is in `cell` on line `line`; waits if the lock is held.
    fn lock_cell(&self, cell: &AtomicU32, line: usize) {
        self.sync();
        let before = self.now();
        self.access_line(line, Access::Modify);
        // Relaxed in this whole function, because all threads run on one host thread.
        if cell.load(Relaxed) == 0 {
            return cell.store(self.thread().0 + 1, Relaxed);
        }
        let waiter = Waiter { thread: self.thread(), cpu: self.cpu(), lock: cell.as_ptr().addr() };
        self.locks.waiting.borrow_mut().entry(line).or_default().queue.push_back(waiter);
        self.block(); // `unlock_cell` makes this thread the holder before it wakes it
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
        self.sync(); // threads that arrived while the lock was held are now in the queue
        let mut left = self.pop_waiter(cell, line);
        if left.is_none() {
            self.access_line(line, Access::Write); // other threads may arrive while this one waits for the line
            left = self.pop_waiter(cell, line);
        }
        let Some((next, others)) = left else {
            return cell.store(0, Relaxed); // relaxed: one host thread
        };
        let contenders = if self.hardware.lock == LockKind::Spinning { others } else { 0 };
        let time = self.hand_over(line, next.cpu, contenders);
        cell.store(next.thread.0 + 1, Relaxed); // relaxed: one host thread
        self.wake(next.thread, self.now() + time);
    }

    /// Removes the next waiter of a lock. Returns it, and how many threads still wait for its locks.
    fn pop_waiter(&self, cell: &AtomicU32, line: usize) -> Option<(Waiter, usize)> {
        let mut all = self.locks.waiting.borrow_mut();
        let queue = &mut all.get_mut(&line)?.queue;
        let at = queue.iter().position(|waiter| waiter.lock == cell.as_ptr().addr())?;
        Some((queue.remove(at)?, queue.len()))
    }
}

impl World {
    /// Ends an operation of the running thread: releases the lock that it keeps.
    #[inline]
    pub fn end_operation(&self) {
        if let Some(kept) = self.kept_lock() {
            self.release_kept(kept);
        }
    }

    #[cold]
    fn release_kept(&self, kept: KeptLock) {
        self.set_kept_lock(None);
        // SAFETY: the lock is in the allocator's metadata, which the operation that keeps the lock has borrowed. Programs
        // end each operation before they return.
        #[allow(unsafe_code)]
        self.unlock_cell(unsafe { kept.cell.as_ref() }, kept.line);
    }

    /// Whether the running thread keeps the lock in `cell`. Another lock that it keeps is released.
    fn resume_kept(&self, cell: &AtomicU32) -> bool {
        match self.kept_lock() {
            Some(kept) if kept.cell == NonNull::from(cell) => true,
            Some(kept) => {
                self.release_kept(kept);
                false
            }
            None => false,
        }
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
        // Without a world, or while accesses are free of charge, no other thread runs, so the lock cannot be held.
        world::with(|world| {
            if world.is_charging() {
                let address = self.0.as_ptr().addr();
                let resumed = world.resume_kept(&self.0);
                if !resumed {
                    world.lock_cell(&self.0, world.line_at(address));
                }
                world.begin_list_work(address, resumed);
            }
        });
    }

    fn try_lock(&self) -> bool {
        let taken = world::with(|world| {
            let address = self.0.as_ptr().addr();
            let resumed = world.is_charging() && world.resume_kept(&self.0);
            let taken =
                !world.is_charging() || resumed || world.try_lock_cell(&self.0, world.line_at(address));
            if taken {
                world.begin_list_work(address, resumed);
            }
            taken
        });
        taken.unwrap_or(true)
    }

    fn unlock(&self) {
        world::with(|world| {
            if world.is_charging() {
                world.end_list_work();
                let line = world.line_at(self.0.as_ptr().addr());
                match world.hardware.lock_hold {
                    LockHold::Batch => world.unlock_cell(&self.0, line),
                    LockHold::Operation => {
                        world.set_kept_lock(Some(KeptLock { cell: NonNull::from(&self.0), line }));
                    }
                }
            }
        });
    }
}

/// A lock of a program, such as the lock of its page tables, its lists or its files.
#[derive(Debug)]
pub struct ProgramLock {
    cell: AtomicU32,
    line: usize,
}

impl ProgramLock {
    /// Creates an unlocked lock in the memory of the node with index `node`.
    #[must_use]
    pub fn new(world: &World, node: usize) -> Self {
        Self { cell: AtomicU32::new(0), line: ProgramLine::new(world, node).number() }
    }

    /// Runs `work` with the lock held.
    pub fn hold<R>(&self, world: &World, work: impl FnOnce() -> R) -> R {
        world.end_operation(); // a reclaimer must not wait while its caller's lock is held
        world.lock_cell(&self.cell, self.line);
        let result = work();
        world.unlock_cell(&self.cell, self.line);
        result
    }

    /// Returns the statistics of the waits for this lock.
    #[must_use]
    pub fn waits(&self, world: &World) -> Waits {
        let all = world.locks.waiting.borrow();
        all.get(&self.line).map_or_else(Waits::default, |waiting| Waits {
            handed_over: waiting.handed_over,
            waited: waiting.waited,
        })
    }
}

//! Charges memory accesses to the running CPU.
//!
//! Related files: `sim/coherence.rs` is the directory with each cache line's state and the queue of its waiters.
//! `sim/cells.rs` calls this module for each access of the allocator. `sim/locks.rs` calls it to move the cache lines
//! of locks.

use super::access::Access;
use super::agenda::Event;
use super::coherence::{ALONE, Directory, OWNER, SHARED, VERSION};
use super::line_map;
use super::line_queue::Waits;
use super::time::Time;
use super::world::World;

/// A cache line that the threads of a program share, such as the line of a counter or a list head.
#[derive(Clone, Copy, Debug)]
pub struct ProgramLine(usize);

impl ProgramLine {
    /// Creates a line in the memory of the node with index `node`.
    #[must_use]
    pub fn new(world: &World, node: usize) -> Self {
        Self(world.directory.own_line(node))
    }

    pub(super) const fn number(self) -> usize {
        self.0
    }

    /// Charges an access in the order of virtual time, because several threads use the line.
    fn access(self, world: &World, access: Access) {
        world.sync();
        world.access_line(self.0, access);
    }

    /// Charges the running CPU for a read.
    pub fn read(self, world: &World) {
        self.access(world, Access::Read);
    }

    /// Charges the running CPU for a write.
    pub fn write(self, world: &World) {
        self.access(world, Access::Write);
    }

    /// Charges the running CPU for an atomic read-modify-write.
    pub fn modify(self, world: &World) {
        self.access(world, Access::Modify);
    }
}

impl World {
    /// Charges an access to `address`. Returns when the running CPU may perform the access.
    #[inline(always)]
    pub(crate) fn access(&self, address: usize, access: Access) {
        let line = self.directory.line_of(address);
        // No line is recent while accesses cost nothing.
        if self.directory.caches.is_recent(line, access) {
            self.set_now(self.now() + self.directory.hit);
        } else {
            self.access_another(line, access);
        }
    }

    /// Charges an access to a line that is not recent.
    #[inline(never)]
    fn access_another(&self, line: usize, access: Access) {
        if self.is_charging()
            && !self.is_in_lists()
            && let Some(entry) = self.hit_or_miss(line, access)
        {
            let may_write = entry & (OWNER | ALONE) == self.directory.mine.get();
            self.directory.caches.note_recent(line, may_write);
        }
    }

    /// Charges an access like [`Self::access`], with the line given by its number, even while other accesses cost
    /// nothing.
    pub(super) fn access_line(&self, line: usize, access: Access) {
        self.hit_or_miss(line, access);
    }

    /// Charges an access to a line. Returns the line's entry if the access is a hit.
    #[inline(always)]
    fn hit_or_miss(&self, line: usize, access: Access) -> Option<u64> {
        let directory = &self.directory;
        // Cells outside the memory that the directory covers, such as those of a policy, cost nothing.
        let entry = directory.entry(line)?;
        let may = access == Access::Read || entry & (OWNER | ALONE) == directory.mine.get();
        if may && directory.caches.has(line, entry & VERSION) {
            self.set_now(self.now() + directory.hit);
            Some(entry)
        } else {
            self.miss(line, access);
            None
        }
    }

    #[cold]
    #[inline(never)]
    fn miss(&self, line: usize, access: Access) {
        let directory = &self.directory;
        directory.misses.set(directory.misses.get() + 1);
        if !self.concerns_others(line, access) {
            let latency = directory.memory_latency(directory.home(line), self.node());
            self.spend(latency);
            return directory.settle(line, access, self.cpu());
        }
        self.sync();
        // Another CPU may have accessed the line while this thread was suspended in `sync`.
        if self.concerns_others(line, access) {
            self.transfer(line, access);
        } else {
            directory.settle(line, access, self.cpu());
        }
    }

    /// Whether an access takes the line from another CPU or invalidates a copy in another CPU's cache.
    fn concerns_others(&self, line: usize, access: Access) -> bool {
        let Some(entry) = self.directory.entry(line) else { return false };
        let mine = entry & OWNER == self.directory.mine.get() & OWNER;
        match access {
            Access::Read => entry & ALONE != 0 && !mine,
            Access::Write | Access::Modify => entry & SHARED != 0 || (entry & OWNER != 0 && !mine),
        }
    }

    /// Transfers a line to the running CPU. CPUs that are already waiting for the line are served first.
    fn transfer(&self, line: usize, access: Access) {
        let directory = &self.directory;
        directory.transfers.set(directory.transfers.get() + 1);
        let before = self.now();
        let busy = directory.busy(line);
        if self.is_pinned() {
            // A pinned section must not wait or let other threads run, so its transfers bypass the queue.
            self.set_now(before + self.service(line, access, self.cpu(), 0));
            directory.settle(line, access, self.cpu());
        } else if busy >= before && busy != Time::ZERO {
            self.wait_for_line(line, access, busy);
        } else {
            let end = before + self.service(line, access, self.cpu(), 0);
            directory.set_busy(line, end);
            directory.settle(line, access, self.cpu());
            self.set_now(end);
        }
        let waited = self.now() - before;
        self.account(|account| account.line_wait += waited);
    }

    fn wait_for_line(&self, line: usize, access: Access, busy: Time) {
        {
            let mut queues = self.directory.queues.borrow_mut();
            let queue = queues.entry(line).or_default();
            if queue.is_empty() {
                self.plan(busy, Event::Line(line));
            }
            let toward = self.directory.transfer_latency(self.node(), self.directory.home(line));
            queue.enter(self.thread(), self.cpu(), access, toward, self.now());
        }
        self.block();
    }

    /// Returns how long a line's transfer to `cpu` takes while `waiting` other CPUs wait for the line.
    fn service(&self, line: usize, access: Access, cpu: usize, waiting: usize) -> Time {
        let directory = &self.directory;
        let owner = directory.entry(line).and_then(Directory::owner);
        let from = owner.map_or_else(|| directory.home(line), |owner| self.geometry.node_of_cpu[owner]);
        let latency = directory.transfer_latency(from, self.geometry.node_of_cpu[cpu]);
        let transactions = match access {
            Access::Modify => self.hardware.atomic_transactions,
            Access::Read | Access::Write => 1.0,
        };
        latency.scaled(transactions * self.hardware.slowdown(waiting))
    }

    /// Serves the next waiter of a line whose previous transfer has ended.
    pub(crate) fn serve_line(&self, line: usize, now: Time) {
        let directory = &self.directory;
        let mut queues = directory.queues.borrow_mut();
        let Some(queue) = queues.get_mut(&line) else { return };
        let home = directory.home(line);
        let is_local = |cpu: usize| self.geometry.node_of_cpu[cpu] == home;
        let next = queue.next(&self.hardware, &mut self.random.borrow_mut(), is_local);
        let Some(next) = next else { return };
        let waiting = queue.len();
        let end = now + self.service(line, next.access, next.cpu, waiting);
        directory.set_busy(line, end);
        directory.settle(line, next.access, next.cpu); // ownership changes when the transfer begins
        queue.note_served(now.saturating_sub(next.since));
        if waiting != 0 {
            self.plan(end, Event::Line(line));
        }
        drop(queues);
        self.wake(next.thread, end);
    }

    /// Moves a line from the running CPU to `cpu`. Returns the duration of the transfer while `waiting` other CPUs
    /// wait for the line.
    pub(super) fn hand_over(&self, line: usize, cpu: usize, waiting: usize) -> Time {
        let directory = &self.directory;
        if directory.entry(line).is_none() {
            return Time::ZERO; // a lock outside the memory that the directory covers costs nothing, like a cell
        }
        directory.transfers.set(directory.transfers.get() + 1);
        let time = self.service(line, Access::Modify, cpu, waiting);
        directory.settle(line, Access::Modify, cpu);
        time
    }

    /// Returns the wait statistics of each contended line, with the address of the line's first byte. The address is
    /// `None` for lines of programs.
    #[must_use]
    pub fn line_waits(&self) -> Vec<(Option<usize>, Waits)> {
        let queues = self.directory.queues.borrow();
        let waits = line_map::by_line(&queues).into_iter();
        waits.map(|(line, queue)| (self.directory.address_of(line), queue.waits())).collect()
    }

    /// Returns the wait statistics of each contended lock, like [`Self::line_waits`].
    #[must_use]
    pub fn lock_waits(&self) -> Vec<(Option<usize>, Waits)> {
        let waits = self.locks.waits().into_iter();
        waits.map(|(line, waits)| (self.directory.address_of(line), waits)).collect()
    }

    /// Returns the number of line transfers between CPUs so far, and the number of all misses including these
    /// transfers.
    #[must_use]
    pub fn transfers_and_misses(&self) -> (u64, u64) {
        (self.directory.transfers.get(), self.directory.misses.get())
    }

    /// Returns the number of the line that contains an address.
    pub(super) fn line_at(&self, address: usize) -> usize {
        self.directory.line_of(address)
    }
}

//! What an access costs: who has the line, who wants it too, and how far they are from each other.
//!
//! The *directory* knows of each line of 64 bytes its *version* (how often it went to another writer),
//! its *owner* (the CPU that wrote it last, or has it alone) and whether others share it. A CPU's
//! private cache holds one line in each of its sets and remembers line and version; a line that is not there in its
//! current version is a *miss*. Misses that take a line from another CPU are *transfers*: a line
//! serves them one after the other, and who comes meanwhile waits (`line_queue.rs`). Neighbours:
//! `cells.rs` calls this for each access of the allocator, `hardware.rs` has the prices.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use bytemuck::zeroed_slice_box;

use super::hardware::Hardware;
use super::line_queue::LineQueue;
use super::locks::Waits;
use super::time::Time;
use super::world::{Event, Geometry, World};

/// Bytes of a line, as a shift.
const LINE_SHIFT: u32 = 6;

const VERSION: u64 = (1 << 24) - 1;
const OWNER_SHIFT: u32 = 24;
const OWNER: u64 = 0xffff << OWNER_SHIFT;
/// The owner has the line alone.
const ALONE: u64 = 1 << 40;
/// Others than the owner have had the line since it was last written.
const SHARED: u64 = 1 << 41;

/// What an access does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    Read,
    Write,
    /// An atomic read-modify-write.
    Modify,
}

/// A line of a program's own, shared by its threads: a counter, the head of a list.
#[derive(Clone, Copy, Debug)]
pub struct ProgramLine(usize);

impl ProgramLine {
    /// A line in the memory of the node at a place.
    #[must_use]
    pub fn new(world: &World, node: usize) -> Self {
        Self(world.directory.own_line(node))
    }

    pub(super) const fn number(self) -> usize {
        self.0
    }

    /// Such lines are there to be shared, so each access is made in its turn.
    fn access(self, world: &World, access: Access) {
        world.sync();
        world.access_line(self.0, access);
    }

    /// The running CPU reads it.
    pub fn read(self, world: &World) {
        self.access(world, Access::Read);
    }

    /// The running CPU writes it.
    pub fn write(self, world: &World) {
        self.access(world, Access::Write);
    }

    /// The running CPU changes it by an atomic read-modify-write.
    pub fn modify(self, world: &World) {
        self.access(world, Access::Modify);
    }
}

/// What each line's state is, and what each CPU has in its cache.
pub(crate) struct Directory {
    base: usize,
    /// By line: version, owner, flags.
    lines: Box<[Cell<u64>]>,
    /// By line: until when it is being transferred, in picoseconds.
    busy: Box<[Cell<u64>]>,
    /// By CPU and set: line + 1 and version.
    tags: Box<[Cell<u64>]>,
    sets: usize,
    /// Bits of a hash that are no index of a set.
    hash_shift: u32,
    /// Of the CPU that runs.
    first_tag: Cell<usize>,
    mine: Cell<u64>,
    hit: Time,
    /// First line of each part of memory and the node it lies on, ascending.
    parts: Vec<(usize, usize)>,
    /// Latencies between nodes, row by row: from memory, and from another CPU.
    memory: Vec<Time>,
    transfer: Vec<Time>,
    nodes: usize,
    /// Lines that were ever waited for.
    pub(super) queues: RefCell<BTreeMap<usize, LineQueue>>,
    transfers: Cell<u64>,
    misses: Cell<u64>,
    /// Lines beyond the metadata: for what belongs to programs.
    next_own: Cell<usize>,
    own_nodes: RefCell<Vec<usize>>,
}

/// The memory that the directory watches.
pub(crate) struct Watched {
    /// Address of its first byte: the start of a line.
    pub(crate) base: usize,
    /// Its parts: bytes and the node each lies on.
    pub(crate) parts: Vec<(usize, usize)>,
    /// Lines for programs' own use.
    pub(crate) own_lines: usize,
}

impl Directory {
    /// The directory of a machine's memory, all lines of which nobody has.
    pub(crate) fn new(watched: &Watched, geometry: &Geometry, hardware: &Hardware) -> Self {
        let (mut first, mut parts) = (0, Vec::new());
        for &(bytes, node) in &watched.parts {
            parts.push((first, node));
            first += bytes.div_ceil(1 << LINE_SHIFT);
        }
        let cpus = geometry.node_of_cpu.len();
        assert!(cpus < 0xffff, "the directory names owners in 16 bits");
        let pairs = geometry.distances.iter();
        let latency = |ns: f64| pairs.clone().map(|&d| Time::from_ns(ns * hardware.stretch(d))).collect();
        let total = first + watched.own_lines;
        Self {
            base: watched.base,
            lines: zeroed_slice_box(total),
            busy: zeroed_slice_box(total),
            tags: zeroed_slice_box(cpus * hardware.cache_lines),
            sets: hardware.cache_lines,
            hash_shift: u64::BITS - hardware.cache_lines.ilog2(),
            first_tag: Cell::new(0),
            mine: Cell::new(0),
            hit: Time::from_ns(hardware.hit_ns),
            parts,
            memory: latency(hardware.memory_ns / hardware.overlap),
            transfer: latency(hardware.transfer_ns),
            nodes: geometry.nodes,
            queues: RefCell::default(),
            transfers: Cell::new(0),
            misses: Cell::new(0),
            next_own: Cell::new(first),
            own_nodes: RefCell::default(),
        }
    }

    /// From now on, accesses are those of `cpu`.
    pub(super) fn use_cpu(&self, cpu: usize) {
        self.first_tag.set(cpu * self.sets);
        self.mine.set((cpu as u64 + 1) << OWNER_SHIFT | ALONE);
    }

    /// A line of a program's own, in the memory of the node at a place.
    ///
    /// # Panics
    /// When there are no more.
    pub(super) fn own_line(&self, node: usize) -> usize {
        let line = self.next_own.get();
        assert!(line < self.lines.len(), "the lines for programs are used up");
        self.next_own.set(line + 1);
        self.own_nodes.borrow_mut().push(node);
        line
    }

    /// Place of the node in whose memory a line lies.
    pub(super) fn home(&self, line: usize) -> usize {
        let own = self.own_nodes.borrow();
        let first_own = self.next_own.get() - own.len();
        match line.checked_sub(first_own) {
            Some(at) => own[at],
            None => self.parts[self.parts.partition_point(|&(first, _)| first <= line) - 1].1,
        }
    }

    /// Address of a line's first byte; `None` for a program's own.
    fn address_of(&self, line: usize) -> Option<usize> {
        let first_own = self.next_own.get() - self.own_nodes.borrow().len();
        (line < first_own).then(|| self.base + (line << LINE_SHIFT))
    }

    fn memory_latency(&self, from: usize, to: usize) -> Time {
        self.memory[from * self.nodes + to]
    }

    pub(super) fn transfer_latency(&self, from: usize, to: usize) -> Time {
        self.transfer[from * self.nodes + to]
    }

    /// The set of a cache where a line is kept. Hashed, as structures of nodes lie at equal distances.
    #[inline(always)]
    fn set_of(&self, line: usize) -> usize {
        ((line as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> self.hash_shift) as usize
    }

    fn line_of(&self, address: usize) -> usize {
        address.wrapping_sub(self.base) >> LINE_SHIFT
    }

    /// The CPU that has written a line last or has it alone.
    fn owner(entry: u64) -> Option<usize> {
        ((entry & OWNER) >> OWNER_SHIFT).checked_sub(1).map(|cpu| cpu as usize)
    }

    /// A line goes to `cpu`, for an access that it waited for or makes now.
    fn settle(&self, line: usize, access: Access, cpu: usize) {
        let entry = self.lines[line].get();
        let own = (cpu as u64 + 1) << OWNER_SHIFT | ALONE;
        let next = match access {
            // The first to read has it alone; a second one shares it with whoever has it.
            Access::Read if entry & (OWNER | SHARED) == 0 => entry | own,
            Access::Read if entry & OWNER == own & OWNER => entry,
            Access::Read => (entry | SHARED) & !ALONE,
            Access::Write | Access::Modify => {
                let version = if entry & (OWNER | ALONE) == own { entry } else { entry + 1 };
                version & VERSION | own
            }
        };
        let slot = cpu * self.sets + self.set_of(line);
        self.tags[slot].set((line as u64 + 1) << 24 | next & VERSION);
        self.lines[line].set(next);
    }
}

impl World {
    /// Charges an access to what lies at `address`; returns when the CPU may make it.
    #[inline(always)]
    pub(crate) fn access(&self, address: usize, access: Access) {
        if self.is_charging() {
            let directory = &self.directory;
            let line = directory.line_of(address);
            self.access_line(line, access);
        }
    }

    /// [`Self::access`] to a line by its number.
    #[inline(always)]
    pub(super) fn access_line(&self, line: usize, access: Access) {
        let directory = &self.directory;
        // Cells that lie elsewhere, as those of a policy, cost nothing.
        let Some(entry) = directory.lines.get(line).map(Cell::get) else { return };
        let slot = directory.first_tag.get() + directory.set_of(line);
        let has = directory.tags[slot].get() == (line as u64 + 1) << 24 | entry & VERSION;
        let may = access == Access::Read || entry & (OWNER | ALONE) == directory.mine.get();
        if has && may {
            self.set_now(self.now() + directory.hit);
        } else {
            self.miss(line, access);
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
        // Others may have been there meanwhile.
        if self.concerns_others(line, access) {
            self.transfer(line, access);
        } else {
            directory.settle(line, access, self.cpu());
        }
    }

    /// Whether an access takes the line from another CPU, or a copy from others who share it.
    fn concerns_others(&self, line: usize, access: Access) -> bool {
        let entry = self.directory.lines[line].get();
        let mine = entry & OWNER == self.directory.mine.get() & OWNER;
        match access {
            Access::Read => entry & ALONE != 0 && !mine,
            Access::Write | Access::Modify => entry & SHARED != 0 || (entry & OWNER != 0 && !mine),
        }
    }

    /// Moves a line from its owner to the running CPU, after those who were first.
    fn transfer(&self, line: usize, access: Access) {
        let directory = &self.directory;
        directory.transfers.set(directory.transfers.get() + 1);
        let before = self.now();
        let busy = Time::from_ps(directory.busy[line].get());
        if self.is_pinned() {
            // It can neither wait nor let others go first: it does not take part in the queue.
            self.set_now(before + self.service(line, access, self.cpu(), 0));
            directory.settle(line, access, self.cpu());
        } else if busy >= before && busy != Time::ZERO {
            self.wait_for_line(line, access, busy);
        } else {
            let end = before + self.service(line, access, self.cpu(), 0);
            directory.busy[line].set(end.ps());
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

    /// What the transfer of a line to `cpu` takes while so many others wait.
    fn service(&self, line: usize, access: Access, cpu: usize, waiting: usize) -> Time {
        let directory = &self.directory;
        let owner = Directory::owner(directory.lines[line].get());
        let from = owner.map_or_else(|| directory.home(line), |owner| self.geometry.node_of_cpu[owner]);
        let latency = directory.transfer_latency(from, self.geometry.node_of_cpu[cpu]);
        let transactions = match access {
            Access::Modify => self.hardware.atomic_transactions,
            Access::Read | Access::Write => 1.0,
        };
        latency.scaled(transactions * self.hardware.slowdown(waiting))
    }

    /// A line is free: serves the next who waits for it.
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
        directory.busy[line].set(end.ps());
        directory.settle(line, next.access, next.cpu); // taken from its owner as the transfer begins
        queue.note_served(now.saturating_sub(next.since));
        if waiting != 0 {
            self.plan(end, Event::Line(line));
        }
        drop(queues);
        self.wake(next.thread, end);
    }

    /// Makes the line of an address as if `cpu` had just been handed it by the running one; gives
    /// how long that takes with so many others waiting.
    pub(super) fn hand_over(&self, line: usize, cpu: usize, waiting: usize) -> Time {
        let directory = &self.directory;
        directory.transfers.set(directory.transfers.get() + 1);
        let time = self.service(line, Access::Modify, cpu, waiting);
        directory.settle(line, Access::Modify, cpu);
        time
    }

    /// Waits for each line that was waited for, with the address of what lies there; `None` for those of
    /// programs.
    #[must_use]
    pub fn line_waits(&self) -> Vec<(Option<usize>, Waits)> {
        let queues = self.directory.queues.borrow();
        queues.iter().map(|(&line, queue)| (self.directory.address_of(line), queue.waits())).collect()
    }

    /// As [`Self::line_waits`], for locks.
    #[must_use]
    pub fn lock_waits(&self) -> Vec<(Option<usize>, Waits)> {
        let waits = self.locks.waits().into_iter();
        waits.map(|(line, waits)| (self.directory.address_of(line), waits)).collect()
    }

    /// Lines moved between CPUs so far, and misses of all kinds, these included.
    #[must_use]
    pub fn transfers_and_misses(&self) -> (u64, u64) {
        (self.directory.transfers.get(), self.directory.misses.get())
    }

    /// The line that an address lies in.
    pub(super) fn line_at(&self, address: usize) -> usize {
        self.directory.line_of(address)
    }
}

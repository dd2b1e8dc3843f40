//! The cache-line directory: the owner of each line, its waiters, and the latencies between nodes.
//!
//! For each line of 64 bytes, the directory stores a *version* (the number of times that a new CPU became its
//! writer), an *owner* (the CPU that wrote the line last or has the only copy), and whether other CPUs share the
//! line. An access to a line whose current version is not in the CPU's cache (`sim/caches.rs`) is a *miss*. A miss that
//! takes the line from another CPU is a *transfer*. Transfers of one line are serialized: other CPUs wait in a queue
//! (`sim/line_queue.rs`) until the current transfer ends. Related files: `sim/charge.rs` charges accesses with this
//! directory, `sim/hardware.rs` defines the latencies.

use std::cell::{Cell, RefCell};
use std::iter;

use super::access::Access;
use super::caches::{Caches, VERSION_BITS};
use super::geometry::Geometry;
use super::hardware::Hardware;
use super::line_map::LineMap;
use super::line_queue::LineQueue;
use super::time::Time;
use crate::zeroed::Zeroed;

/// Size of a line, as a shift.
const LINE_SHIFT: u32 = 6;
/// Lines in a group, as a shift.
const GROUP_SHIFT: u32 = 6;
/// Bytes whose lines all have the same home.
pub(super) const GROUP_BYTES: usize = 1 << (LINE_SHIFT + GROUP_SHIFT);

pub(super) const VERSION: u64 = (1 << VERSION_BITS) - 1;
const OWNER_SHIFT: u32 = VERSION_BITS;
pub(super) const OWNER: u64 = 0xffff << OWNER_SHIFT;
/// The owner has the only copy.
pub(super) const ALONE: u64 = 1 << 40;
/// CPUs other than the owner have read the line since the last write.
pub(super) const SHARED: u64 = 1 << 41;

/// State of each line, and the CPUs' caches.
pub(crate) struct Directory {
    base: usize,
    /// Version, owner and flags, indexed by line.
    lines: Zeroed,
    /// Time at which a line's current transfer ends, in picoseconds. Few accesses need it, so it is not beside `lines`.
    busy: Zeroed,
    pub(super) caches: Caches,
    pub(super) mine: Cell<u64>,
    pub(super) hit: Time,
    /// Node index by group of lines.
    homes: Box<[u32]>,
    /// Latencies between nodes, row by row: `memory` for an access to a node's memory, `transfer` for an access to
    /// another CPU's cache.
    memory: Vec<Time>,
    transfer: Vec<Time>,
    nodes: usize,
    /// Queues of the lines that have ever been contended.
    pub(super) queues: RefCell<LineMap<LineQueue>>,
    pub(super) transfers: Cell<u64>,
    pub(super) misses: Cell<u64>,
    /// First line after the metadata. These lines are for programs.
    first_own: usize,
    own_nodes: RefCell<Vec<usize>>,
}

/// The memory that the directory covers.
pub(crate) struct Watched {
    /// Address of the memory's first byte; aligned to a line.
    pub(crate) base: usize,
    /// Parts of the memory: size in bytes, a multiple of [`GROUP_BYTES`], and the index of the node.
    pub(crate) parts: Vec<(usize, usize)>,
    /// Number of lines reserved for programs.
    pub(crate) own_lines: usize,
}

impl Directory {
    /// Creates the directory of a machine's memory. No line has an owner.
    pub(crate) fn new(watched: &Watched, geometry: &Geometry, hardware: &Hardware) -> Self {
        let groups = |&(bytes, node): &(usize, usize)| {
            assert!(bytes.is_multiple_of(GROUP_BYTES), "a group of lines has one home");
            iter::repeat_n(node as u32, bytes / GROUP_BYTES)
        };
        let homes: Box<[u32]> = watched.parts.iter().flat_map(groups).collect();
        let first_own = homes.len() << GROUP_SHIFT;
        let cpus = geometry.node_of_cpu.len();
        assert!(cpus < 0xffff, "the directory names owners in 16 bits");
        let pairs = geometry.distances.iter();
        let latency = |ns: f64| pairs.clone().map(|&d| Time::from_ns(ns * hardware.stretch(d))).collect();
        Self {
            base: watched.base,
            lines: Zeroed::new(first_own + watched.own_lines),
            busy: Zeroed::new(first_own + watched.own_lines),
            caches: Caches::new(cpus, hardware.cache_lines, hardware.cache_ways),
            mine: Cell::new(0),
            hit: Time::from_ns(hardware.hit_ns),
            homes,
            memory: latency(hardware.memory_ns / hardware.overlap),
            transfer: latency(hardware.transfer_ns),
            nodes: geometry.nodes,
            queues: RefCell::default(),
            transfers: Cell::new(0),
            misses: Cell::new(0),
            first_own,
            own_nodes: RefCell::default(),
        }
    }

    /// Makes `cpu` the running CPU for the accesses that follow.
    pub(super) fn use_cpu(&self, cpu: usize) {
        self.caches.use_cpu(cpu);
        self.mine.set((cpu as u64 + 1) << OWNER_SHIFT | ALONE);
    }

    /// Allocates a line for a program in the memory of the node with index `node`.
    ///
    /// # Panics
    /// Panics if all lines reserved for programs are in use.
    pub(super) fn own_line(&self, node: usize) -> usize {
        let mut own = self.own_nodes.borrow_mut();
        let line = self.first_own + own.len();
        assert!(line < self.lines.len(), "the lines for programs are used up");
        own.push(node);
        line
    }

    /// Returns the index of the node whose memory contains a line.
    pub(super) fn home(&self, line: usize) -> usize {
        match self.homes.get(line >> GROUP_SHIFT) {
            Some(&home) => home as usize,
            None => self.own_nodes.borrow()[line - self.first_own],
        }
    }

    /// Returns the address of a line's first byte; `None` for a line of a program.
    pub(super) fn address_of(&self, line: usize) -> Option<usize> {
        (line < self.first_own).then(|| self.base + (line << LINE_SHIFT))
    }

    pub(super) fn memory_latency(&self, from: usize, to: usize) -> Time {
        self.memory[from * self.nodes + to]
    }

    pub(super) fn transfer_latency(&self, from: usize, to: usize) -> Time {
        self.transfer[from * self.nodes + to]
    }

    pub(super) fn line_of(&self, address: usize) -> usize {
        address.wrapping_sub(self.base) >> LINE_SHIFT
    }

    /// Returns the CPU that wrote a line last or has the only copy.
    pub(super) fn owner(entry: u64) -> Option<usize> {
        ((entry & OWNER) >> OWNER_SHIFT).checked_sub(1).map(|cpu| cpu as usize)
    }

    /// Updates a line's state for an access by `cpu`.
    pub(super) fn settle(&self, line: usize, access: Access, cpu: usize) {
        let entry = self.lines[line].get();
        let own = (cpu as u64 + 1) << OWNER_SHIFT | ALONE;
        let next = match access {
            // The first reader has the only copy. A second reader shares the line with the first reader.
            Access::Read if entry & (OWNER | SHARED) == 0 => entry | own,
            Access::Read if entry & OWNER == own & OWNER => entry,
            Access::Read => (entry | SHARED) & !ALONE,
            Access::Write | Access::Modify => {
                let version = if entry & (OWNER | ALONE) == own { entry } else { entry + 1 };
                version & VERSION | own
            }
        };
        self.caches.fill(cpu, line, next & VERSION);
        self.lines[line].set(next);
    }

    /// Returns the version, owner and flags of a line; `None` if the directory does not cover it.
    #[inline(always)]
    pub(super) fn entry(&self, line: usize) -> Option<u64> {
        self.lines.get(line).map(Cell::get)
    }

    /// Returns when a line's current transfer ends.
    pub(super) fn busy(&self, line: usize) -> Time {
        Time::from_ps(self.busy[line].get())
    }

    /// Sets when a line's current transfer ends.
    pub(super) fn set_busy(&self, line: usize, until: Time) {
        self.busy[line].set(until.ps());
    }
}

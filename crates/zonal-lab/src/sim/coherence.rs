//! The cache-line directory: the owner of each line, its waiters, and the latencies between nodes.
//!
//! For each line of 64 bytes, the directory stores a *version* (the number of times that a new CPU became its
//! writer), an *owner* (the CPU that wrote the line last or has the only copy), and whether other CPUs share the
//! line. An access to a line whose current version is not in the CPU's cache (`sim/caches.rs`) is a *miss*. A miss that
//! takes the line from another CPU is a *transfer*. Transfers of one line are serialized: other CPUs wait in a queue
//! (`sim/line_queue.rs`) until the current transfer ends. Related files: `sim/charge.rs` charges accesses with this
//! directory, `sim/hardware.rs` defines the latencies.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use bytemuck::zeroed_slice_box;

use super::access::Access;
use super::caches::{Caches, VERSION_BITS};
use super::geometry::Geometry;
use super::hardware::Hardware;
use super::line_queue::LineQueue;
use super::time::Time;

/// Size of a line, as a shift.
const LINE_SHIFT: u32 = 6;

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
    pub(super) lines: Box<[Cell<u64>]>,
    /// Time at which the current transfer ends, in picoseconds, indexed by line.
    pub(super) busy: Box<[Cell<u64>]>,
    pub(super) caches: Caches,
    pub(super) mine: Cell<u64>,
    pub(super) hit: Time,
    /// First line and node index of each memory part, in ascending order of lines.
    parts: Vec<(usize, usize)>,
    /// Latencies between nodes, row by row: `memory` for an access to a node's memory, `transfer` for an access to
    /// another CPU's cache.
    memory: Vec<Time>,
    transfer: Vec<Time>,
    nodes: usize,
    /// Queues of the lines that have ever been contended.
    pub(super) queues: RefCell<BTreeMap<usize, LineQueue>>,
    pub(super) transfers: Cell<u64>,
    pub(super) misses: Cell<u64>,
    /// Next free line after the metadata. These lines are for programs.
    next_own: Cell<usize>,
    own_nodes: RefCell<Vec<usize>>,
}

/// The memory that the directory covers.
pub(crate) struct Watched {
    /// Address of the memory's first byte; aligned to a line.
    pub(crate) base: usize,
    /// Parts of the memory: size in bytes and the index of the node.
    pub(crate) parts: Vec<(usize, usize)>,
    /// Number of lines reserved for programs.
    pub(crate) own_lines: usize,
}

impl Directory {
    /// Creates the directory of a machine's memory. No line has an owner.
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
            caches: Caches::new(cpus, hardware.cache_lines, hardware.cache_ways),
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
        let line = self.next_own.get();
        assert!(line < self.lines.len(), "the lines for programs are used up");
        self.next_own.set(line + 1);
        self.own_nodes.borrow_mut().push(node);
        line
    }

    /// Returns the index of the node whose memory contains a line.
    pub(super) fn home(&self, line: usize) -> usize {
        let own = self.own_nodes.borrow();
        let first_own = self.next_own.get() - own.len();
        match line.checked_sub(first_own) {
            Some(at) => own[at],
            None => self.parts[self.parts.partition_point(|&(first, _)| first <= line) - 1].1,
        }
    }

    /// Returns the address of a line's first byte; `None` for a line of a program.
    pub(super) fn address_of(&self, line: usize) -> Option<usize> {
        let first_own = self.next_own.get() - self.own_nodes.borrow().len();
        (line < first_own).then(|| self.base + (line << LINE_SHIFT))
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
}

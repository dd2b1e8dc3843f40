//! The directory: who has each line, who wants it too, and how far they are from each other.
//!
//! The *directory* knows of each line of 64 bytes its *version* (how often it went to another writer),
//! its *owner* (the CPU that wrote it last, or has it alone) and whether others share it. A CPU's
//! private cache holds one line in each of its sets and remembers line and version; a line that is not there in its
//! current version is a *miss*. Misses that take a line from another CPU are *transfers*: a line
//! serves them one after the other, and who comes meanwhile waits (`line_queue.rs`). Neighbours:
//! `charge.rs` charges accesses by this, `hardware.rs` has the prices.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use bytemuck::zeroed_slice_box;

use super::access::Access;
use super::geometry::Geometry;
use super::hardware::Hardware;
use super::line_queue::LineQueue;
use super::time::Time;

/// Bytes of a line, as a shift.
const LINE_SHIFT: u32 = 6;

pub(super) const VERSION: u64 = (1 << 24) - 1;
const OWNER_SHIFT: u32 = 24;
pub(super) const OWNER: u64 = 0xffff << OWNER_SHIFT;
/// The owner has the line alone.
pub(super) const ALONE: u64 = 1 << 40;
/// Others than the owner have had the line since it was last written.
pub(super) const SHARED: u64 = 1 << 41;

/// What each line's state is, and what each CPU has in its cache.
pub(crate) struct Directory {
    base: usize,
    /// By line: version, owner, flags.
    pub(super) lines: Box<[Cell<u64>]>,
    /// By line: until when it is being transferred, in picoseconds.
    pub(super) busy: Box<[Cell<u64>]>,
    /// By CPU and set: line + 1 and version.
    pub(super) tags: Box<[Cell<u64>]>,
    sets: usize,
    /// Bits of a hash that are no index of a set.
    hash_shift: u32,
    /// Of the CPU that runs.
    pub(super) first_tag: Cell<usize>,
    pub(super) mine: Cell<u64>,
    pub(super) hit: Time,
    /// First line of each part of memory and the node it lies on, ascending.
    parts: Vec<(usize, usize)>,
    /// Latencies between nodes, row by row: from memory, and from another CPU.
    memory: Vec<Time>,
    transfer: Vec<Time>,
    nodes: usize,
    /// Lines that were ever waited for.
    pub(super) queues: RefCell<BTreeMap<usize, LineQueue>>,
    pub(super) transfers: Cell<u64>,
    pub(super) misses: Cell<u64>,
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

    /// The set of a cache where a line is kept. Hashed, as structures of nodes lie at equal distances.
    #[inline(always)]
    pub(super) fn set_of(&self, line: usize) -> usize {
        ((line as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> self.hash_shift) as usize
    }

    pub(super) fn line_of(&self, address: usize) -> usize {
        address.wrapping_sub(self.base) >> LINE_SHIFT
    }

    /// The CPU that has written a line last or has it alone.
    pub(super) fn owner(entry: u64) -> Option<usize> {
        ((entry & OWNER) >> OWNER_SHIFT).checked_sub(1).map(|cpu| cpu as usize)
    }

    /// A line goes to `cpu`, for an access that it waited for or makes now.
    pub(super) fn settle(&self, line: usize, access: Access, cpu: usize) {
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

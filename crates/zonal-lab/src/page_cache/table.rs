//! Pages of files by frame, and the two lists by use of each node.
//!
//! Lists are threaded through the table. New pages come to the head of a node's *inactive* list;
//! pages used again move to its *active* list, from whose tail they return. Linux: `lruvec`.
//! Neighbours: `files.rs` knows pages by file, `reclaim.rs` walks the lists from their tails.

use zonal::Block;
use zonal::units::{Order, Pfn};
use zonal_machine::MachineModel;

/// Beyond any frame.
pub(super) const NONE: u32 = u32::MAX;

/// What is true of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct State(u8);

impl State {
    pub(super) const CLEAN: Self = Self(0);
    /// Changed since it was read or written.
    pub(super) const DIRTY: Self = Self(1);
    /// On its way to the disk.
    pub(super) const WRITEBACK: Self = Self(2);
    /// Part of an address space.
    pub(super) const MAPPED: Self = Self(4);
    /// Used since reclaim looked at it last.
    pub(super) const REFERENCED: Self = Self(8);
    /// On the active list.
    pub(super) const ACTIVE: Self = Self(16);
    /// Deleted while on its way to the disk.
    pub(super) const DOOMED: Self = Self(32);

    pub(super) const fn has(self, any: Self) -> bool {
        self.0 & any.0 != 0
    }

    pub(super) const fn with(self, more: Self) -> Self {
        Self(self.0 | more.0)
    }

    pub(super) const fn without(self, less: Self) -> Self {
        Self(self.0 & !less.0)
    }
}

/// A page of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    pub(super) file: u32,
    /// Which page of the file.
    pub(super) index: u32,
    pub(super) state: State,
    /// Place of its zone among [`Table::zones`].
    zone: u8,
    toward_head: u32,
    toward_tail: u32,
}

/// A list by use.
#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
    len: u64,
}

/// What a node's pages are, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Tally {
    pub(super) inactive: u64,
    pub(super) active: u64,
    pub(super) dirty: u64,
    pub(super) writeback: u64,
    pub(super) mapped: u64,
}

/// A node's lists.
#[derive(Clone, Copy, Debug)]
struct NodeLists {
    lists: [List; 2],
    tally: Tally,
}

/// All pages of the cache.
///
/// Invariant, for each node: `inactive + active` pages are on its lists, and each of them is counted as
/// what its state says.
pub(super) struct Table {
    first: Pfn,
    pages: Vec<Page>,
    /// By place of a zone: a block of it, and the place of its node.
    zones: Vec<(Block, usize)>,
    nodes: Vec<NodeLists>,
}

impl Table {
    pub(super) fn new(machine: &MachineModel) -> Self {
        let first = machine.zones.iter().map(|zone| zone.start).min().unwrap_or_default();
        let end = machine.zones.iter().map(|zone| zone.start.get() + zone.spanned.get()).max();
        let none =
            Page { file: NONE, index: 0, state: State::CLEAN, zone: 0, toward_head: NONE, toward_tail: NONE };
        let empty = List { head: NONE, tail: NONE, len: 0 };
        let lists = NodeLists { lists: [empty; 2], tally: Tally::default() };
        Self {
            first,
            pages: vec![none; (end.unwrap_or(0) - first.get()) as usize],
            zones: Vec::new(),
            nodes: vec![lists; machine.nodes.len()],
        }
    }

    /// A frame that was just allocated on the node at a place becomes a page of a file; gives its number
    /// here. It goes to the head of the list that its state names.
    pub(super) fn insert(&mut self, block: &Block, node: usize, file: u32, index: u32, state: State) -> u32 {
        let at = (block.first.get() - self.first.get()) as u32;
        let zone = self.zones.iter().position(|(known, _)| known.zone == block.zone).unwrap_or_else(|| {
            self.zones.push((*block, node));
            self.zones.len() - 1
        });
        let page = &mut self.pages[at as usize];
        debug_assert_eq!(page.file, NONE, "the frame is a page already");
        *page = Page { file, index, state, zone: zone as u8, toward_head: NONE, toward_tail: NONE };
        self.count(node, state, 1);
        self.push(at);
        at
    }

    /// A page leaves the cache; gives its frame.
    pub(super) fn remove(&mut self, at: u32) -> Block {
        self.unlink(at);
        let page = self.pages[at as usize];
        let (block, node) = self.zones[usize::from(page.zone)];
        self.count(node, page.state, -1);
        self.pages[at as usize].file = NONE;
        Block { first: Pfn::new(self.first.get() + u64::from(at)), order: Order::PAGE, ..block }
    }

    pub(super) fn page(&self, at: u32) -> Page {
        self.pages[at as usize]
    }

    /// Place of the node of a page.
    pub(super) fn node_of(&self, at: u32) -> usize {
        self.zones[usize::from(self.pages[at as usize].zone)].1
    }

    /// Sets a page's state; it stays on its list.
    pub(super) fn set_state(&mut self, at: u32, state: State) {
        let before = self.pages[at as usize].state;
        debug_assert_eq!(before.has(State::ACTIVE), state.has(State::ACTIVE));
        let node = self.node_of(at);
        self.count(node, before, -1);
        self.count(node, state, 1);
        self.pages[at as usize].state = state;
    }

    /// Moves a page to the head of its node's active list or inactive list.
    pub(super) fn move_to(&mut self, at: u32, state: State) {
        self.unlink(at);
        let (node, before) = (self.node_of(at), self.pages[at as usize].state);
        self.count(node, before, -1);
        self.count(node, state, 1);
        self.pages[at as usize].state = state;
        self.push(at);
    }

    /// The page at the tail of a node's inactive or active list.
    pub(super) fn tail(&self, node: usize, list: State) -> Option<u32> {
        let tail = self.nodes[node].lists[usize::from(list.has(State::ACTIVE))].tail;
        (tail != NONE).then_some(tail)
    }

    pub(super) fn tally(&self, node: usize) -> Tally {
        let lists = &self.nodes[node];
        Tally { inactive: lists.lists[0].len, active: lists.lists[1].len, ..lists.tally }
    }

    fn count(&mut self, node: usize, state: State, by: i64) {
        let tally = &mut self.nodes[node].tally;
        for (flag, sum) in [
            (State::DIRTY, &mut tally.dirty),
            (State::WRITEBACK, &mut tally.writeback),
            (State::MAPPED, &mut tally.mapped),
        ] {
            if state.has(flag) {
                *sum = sum.wrapping_add_signed(by);
            }
        }
    }

    fn push(&mut self, at: u32) {
        let (node, active) = (self.node_of(at), self.pages[at as usize].state.has(State::ACTIVE));
        let list = &mut self.nodes[node].lists[usize::from(active)];
        let before = std::mem::replace(&mut list.head, at);
        list.len += 1;
        match before {
            NONE => list.tail = at,
            before => self.pages[before as usize].toward_head = at,
        }
        self.pages[at as usize].toward_head = NONE;
        self.pages[at as usize].toward_tail = before;
    }

    fn unlink(&mut self, at: u32) {
        let (node, page) = (self.node_of(at), self.pages[at as usize]);
        let list = &mut self.nodes[node].lists[usize::from(page.state.has(State::ACTIVE))];
        list.len -= 1;
        match page.toward_head {
            NONE => list.head = page.toward_tail,
            other => self.pages[other as usize].toward_tail = page.toward_tail,
        }
        match page.toward_tail {
            NONE => list.tail = page.toward_head,
            other => self.pages[other as usize].toward_head = page.toward_head,
        }
    }
}

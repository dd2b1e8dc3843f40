//! The cached pages by frame, and the two LRU lists of each zone.
//!
//! The lists are linked through the entries of the table. New pages are added at the head of a zone's *inactive*
//! list. Pages that are used again move to its *active* list, and reclaim moves pages from the tail of that list back
//! to the inactive list. Linux until 4.8: `lru` of `struct zone`. Related files: `page_cache/files.rs` finds pages by
//! file, `page_cache/reclaim.rs` scans the lists from their tails.

use std::collections::TryReserveError;
use std::ops::Add;

use zonal::Block;
use zonal::units::{NodeId, Order, Pfn, ZoneId};
use zonal_machine::MachineModel;

/// The end of a list, or no page. The value is larger than any page number.
pub(super) const NONE: u32 = u32::MAX;

/// State flags of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct State(u8);

impl State {
    pub(super) const CLEAN: Self = Self(0);
    /// Modified since it was last read or written back.
    pub(super) const DIRTY: Self = Self(1);
    /// Being written to the disk.
    pub(super) const WRITEBACK: Self = Self(2);
    /// Part of an address space.
    pub(super) const MAPPED: Self = Self(4);
    /// Used since reclaim last scanned it.
    pub(super) const REFERENCED: Self = Self(8);
    /// On the active list.
    pub(super) const ACTIVE: Self = Self(16);
    /// Deleted while under writeback.
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
    /// Index of the page in the file.
    pub(super) index: u32,
    pub(super) state: State,
    /// Index of the page's zone.
    zone: u16,
    toward_head: u32,
    toward_tail: u32,
}

/// An LRU list.
#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
    len: u64,
}

/// Page counts of one or several zones, by state.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Tally {
    pub(super) inactive: u64,
    pub(super) active: u64,
    pub(super) dirty: u64,
    pub(super) writeback: u64,
    pub(super) mapped: u64,
}

impl Add for Tally {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            inactive: self.inactive + other.inactive,
            active: self.active + other.active,
            dirty: self.dirty + other.dirty,
            writeback: self.writeback + other.writeback,
            mapped: self.mapped + other.mapped,
        }
    }
}

/// A zone and its lists.
#[derive(Clone, Copy, Debug)]
struct ZoneLists {
    id: ZoneId,
    node: NodeId,
    /// Index of the zone's node.
    place: usize,
    lists: [List; 2],
    tally: Tally,
}

/// All pages of the cache.
///
/// Invariant for each zone: its lists contain `inactive + active` pages, and the zone's counts match the states of
/// these pages.
pub(super) struct Table {
    first: Pfn,
    pages: Vec<Page>,
    /// Lists by zone index.
    zones: Vec<ZoneLists>,
}

impl Table {
    /// Host memory for each frame, in bytes.
    pub(super) const PAGE_BYTES: usize = size_of::<Page>();

    /// Creates an empty table for `machine`.
    ///
    /// # Errors
    /// Returns an error if the host has too little memory for the table.
    pub(super) fn new(machine: &MachineModel) -> Result<Self, TryReserveError> {
        let first = machine.zones.iter().map(|zone| zone.start).min().unwrap_or_default();
        let end = machine.zones.iter().map(|zone| zone.start.get() + zone.spanned.get()).max();
        let none =
            Page { file: NONE, index: 0, state: State::CLEAN, zone: 0, toward_head: NONE, toward_tail: NONE };
        let empty = List { head: NONE, tail: NONE, len: 0 };
        let zones = machine.zones.iter().enumerate().map(|(index, zone)| ZoneLists {
            id: ZoneId::new(index).expect("a machine has no more zones than ids"),
            node: zone.node,
            place: machine
                .nodes
                .iter()
                .position(|node| node.id == zone.node)
                .expect("a zone's node is there"),
            lists: [empty; 2],
            tally: Tally::default(),
        });
        let (mut pages, count) = (Vec::new(), (end.unwrap_or(0) - first.get()) as usize);
        pages.try_reserve_exact(count)?;
        pages.resize(count, none);
        Ok(Self { first, pages, zones: zones.collect() })
    }

    /// Makes an allocated frame a page of a file. Adds the page at the head of the list that its state determines,
    /// and returns its page number in the table.
    pub(super) fn insert(&mut self, block: &Block, file: u32, index: u32, state: State) -> u32 {
        let at = (block.first.get() - self.first.get()) as u32;
        let zone = block.zone.index();
        let page = &mut self.pages[at as usize];
        debug_assert_eq!(page.file, NONE, "the frame is a page already");
        *page = Page { file, index, state, zone: zone as u16, toward_head: NONE, toward_tail: NONE };
        self.count(zone, state, 1);
        self.push(at);
        at
    }

    /// Removes a page from the cache and returns its frame.
    pub(super) fn remove(&mut self, at: u32) -> Block {
        self.unlink(at);
        let page = self.pages[at as usize];
        let ZoneLists { id: zone, node, .. } = self.zones[usize::from(page.zone)];
        self.count(zone.index(), page.state, -1);
        self.pages[at as usize].file = NONE;
        Block { first: Pfn::new(self.first.get() + u64::from(at)), order: Order::PAGE, zone, node }
    }

    pub(super) fn page(&self, at: u32) -> Page {
        self.pages[at as usize]
    }

    /// Returns the zone index of a page.
    pub(super) fn zone_of(&self, at: u32) -> usize {
        usize::from(self.pages[at as usize].zone)
    }

    /// Returns the node index of a page.
    pub(super) fn node_of(&self, at: u32) -> usize {
        self.zones[self.zone_of(at)].place
    }

    /// Sets a page's state; the page stays on its list.
    pub(super) fn set_state(&mut self, at: u32, state: State) {
        let before = self.pages[at as usize].state;
        debug_assert_eq!(before.has(State::ACTIVE), state.has(State::ACTIVE));
        let zone = self.zone_of(at);
        self.count(zone, before, -1);
        self.count(zone, state, 1);
        self.pages[at as usize].state = state;
    }

    /// Moves a page to the head of its zone's active or inactive list.
    pub(super) fn move_to(&mut self, at: u32, state: State) {
        self.unlink(at);
        let (zone, before) = (self.zone_of(at), self.pages[at as usize].state);
        self.count(zone, before, -1);
        self.count(zone, state, 1);
        self.pages[at as usize].state = state;
        self.push(at);
    }

    /// Returns the page at the tail of a zone's inactive or active list.
    pub(super) fn tail(&self, zone: usize, list: State) -> Option<u32> {
        let tail = self.zones[zone].lists[usize::from(list.has(State::ACTIVE))].tail;
        (tail != NONE).then_some(tail)
    }

    pub(super) fn tally(&self, zone: usize) -> Tally {
        let lists = &self.zones[zone];
        Tally { inactive: lists.lists[0].len, active: lists.lists[1].len, ..lists.tally }
    }

    fn count(&mut self, zone: usize, state: State, by: i64) {
        let tally = &mut self.zones[zone].tally;
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
        let (zone, active) = (self.zone_of(at), self.pages[at as usize].state.has(State::ACTIVE));
        let list = &mut self.zones[zone].lists[usize::from(active)];
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
        let (zone, page) = (self.zone_of(at), self.pages[at as usize]);
        let list = &mut self.zones[zone].lists[usize::from(page.state.has(State::ACTIVE))];
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

//! What the allocator asks the page cache for: how much it could give up, and giving it up.
//!
//! Reclaim looks at the tail of a node's inactive list, 32 pages at a time under the lists' lock: clean
//! pages leave, others return to the head. A walk begins with a small share of the list, by *priority*, and
//! goes on with larger ones while too little comes. *Node* reclaim neither unmaps nor waits; *direct* and
//! *background* reclaim unmap what was not used lately, and wait for the disk.
//!
//! The allocator does not say who asks. Background workers are threads of the cache's own. Node reclaim
//! asks for the count of a node, the caller's own or one without CPUs, just before, direct reclaim does not, and after it has
//! begun all that the same request asks for is taken as its own. When in doubt it is node reclaim, which
//! does less. Neighbours: `table.rs` has the lists. Source of the rules: Linux 2.6.39.

use std::cell::Cell;

use zonal::Block;
use zonal::units::{NodeId, PageCount};

use super::table::State;
use super::{FileId, PageCache};
use crate::sim::{ProgramReclaimer, Time, World};

/// Pages looked at under the lock at a time. Linux: `SWAP_CLUSTER_MAX`.
const SCAN_BATCH: u64 = 32;
/// The first share of a list that is looked at: a 4096th. Linux: `DEF_PRIORITY`.
const FIRST_PRIORITY: u32 = 12;
/// The same for node reclaim: a 16th. Linux: `ZONE_RECLAIM_PRIORITY`.
const NODE_PRIORITY: u32 = 4;
/// Shares from this one on are worth waiting for the disk.
const PATIENT_PRIORITY: u32 = 9;
/// How long such a wait is. Linux: `congestion_wait`.
const WAIT: Time = Time::from_ps(100_000_000_000);
/// Pages that the disk is asked to write meanwhile.
const HURRIED_PAGES: u64 = 1024;

/// Who asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Node,
    Direct,
    Background,
}

/// What is known of a thread.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Caller {
    /// It reclaims in the background.
    background: bool,
    /// It has asked for the count of its own node, and got a count that is worth reclaiming.
    counted: bool,
    /// Its request has come to direct reclaim.
    direct: bool,
    /// Pages it has changed since it looked at the limits.
    changed: u32,
}

impl Caller {
    pub(super) fn reclaims_in_background(&mut self) {
        self.background = true;
    }

    /// It has got a count that is worth reclaiming.
    pub(super) fn has_counted(&mut self) {
        self.counted = true;
    }

    /// It changes a page; says whether that makes `limit`.
    pub(super) fn has_changed(&mut self, limit: u32) -> bool {
        self.changed = (self.changed + 1) % limit;
        self.changed == 0
    }

    /// It is asked for frames.
    fn kind(&mut self) -> Kind {
        let counted = std::mem::take(&mut self.counted);
        if self.background {
            Kind::Background
        } else if counted && !self.direct {
            Kind::Node
        } else {
            self.direct = true;
            Kind::Direct
        }
    }
}

/// What reclaim did, in pages of the lists by use. Direct includes node reclaim, as in Linux's `pgscan_direct`.
#[derive(Default, Debug)]
pub struct Counts {
    direct_scanned: Cell<u64>,
    direct_reclaimed: Cell<u64>,
    background_scanned: Cell<u64>,
    background_reclaimed: Cell<u64>,
    with_files: Cell<u64>,
}

impl Counts {
    /// Looked at by requesters.
    #[must_use]
    pub fn direct_scanned(&self) -> u64 {
        self.direct_scanned.get()
    }

    /// Given up for requesters.
    #[must_use]
    pub fn direct_reclaimed(&self) -> u64 {
        self.direct_reclaimed.get()
    }

    /// Looked at in the background.
    #[must_use]
    pub fn background_scanned(&self) -> u64 {
        self.background_scanned.get()
    }

    /// Given up in the background.
    #[must_use]
    pub fn background_reclaimed(&self) -> u64 {
        self.background_reclaimed.get()
    }

    /// Given up together with files that nobody used, whoever asked.
    #[must_use]
    pub fn with_files(&self) -> u64 {
        self.with_files.get()
    }

    fn add(&self, kind: Kind, scanned: u64, reclaimed: u64) {
        let (scans, gains) = match kind {
            Kind::Background => (&self.background_scanned, &self.background_reclaimed),
            Kind::Node | Kind::Direct => (&self.direct_scanned, &self.direct_reclaimed),
        };
        scans.set(scans.get() + scanned);
        gains.set(gains.get() + reclaimed);
    }
}

impl ProgramReclaimer for PageCache<'_, '_, '_> {
    /// Pages of files that are neither mapped nor dirty. Linux: `zone_pagecache_reclaimable`.
    fn count(&self, world: &World, node: NodeId) -> PageCount {
        let place = world.place_of(node);
        let tally = self.tally(place);
        let kept = tally.mapped + tally.dirty;
        let count = (tally.inactive + tally.active).saturating_sub(kept);
        let model = &self.hands.sim.machine.model;
        let unworthy = model.managed_of(node).get() * u64::from(model.settings.min_unmapped_percent) / 100;
        let is_own = place == world.node() || model.nodes[place].cpus.is_empty();
        self.with_caller(|caller| caller.counted = false);
        if is_own && count > unworthy {
            self.with_caller(Caller::has_counted);
        }
        PageCount::new(count)
    }

    fn reclaim(&self, world: &World, node: NodeId, target: PageCount) -> PageCount {
        let (kind, place) = (self.with_caller(Caller::kind), world.place_of(node));
        if kind == Kind::Background && self.stopping.get() {
            return PageCount::ZERO;
        }
        let freed = Cell::new(0);
        // Node reclaim is content with a frame, others go on until they have what they want.
        let (first, enough) = match kind {
            Kind::Node => (NODE_PRIORITY, 1),
            Kind::Direct | Kind::Background => (FIRST_PRIORITY, target.get()),
        };
        for priority in (0..=first).rev() {
            self.walk(kind, place, priority, target.get(), &freed);
            if freed.get() >= enough {
                break;
            }
            if kind != Kind::Node && priority <= PATIENT_PRIORITY && self.tally(place).dirty != 0 {
                self.hurried.set(self.hurried.get().max(HURRIED_PAGES));
                world.sleep_until(world.now() + WAIT);
            }
        }
        self.shrink_files(place, &freed);
        PageCount::new(freed.get())
    }
}

impl PageCache<'_, '_, '_> {
    /// The running thread is about to ask the allocator for a frame.
    pub(super) fn begin_request(&self) {
        self.with_caller(|caller| (caller.counted, caller.direct) = (false, false));
    }

    /// Looks at a share of a node's inactive list, until enough is freed.
    fn walk(&self, kind: Kind, place: usize, priority: u32, target: u64, freed: &Cell<u64>) {
        let world = self.world();
        let mut left = (self.tally(place).inactive >> priority).max(SCAN_BATCH);
        while left > 0 && freed.get() < target {
            let batch = left.min(SCAN_BATCH).min(self.tally(place).inactive);
            if batch == 0 {
                break;
            }
            let look = Time::from_ns(self.settings.scan_ns * batch as f64);
            let victims = self.locks[place].hold(world, || {
                world.spend(look);
                self.isolate(kind, place, batch)
            });
            self.counts.add(kind, batch, victims.len() as u64);
            self.inode_debt.set(self.inode_debt.get() + batch as f64 * self.settings.inode_pressure);
            freed.set(freed.get() + victims.len() as u64);
            victims.iter().for_each(|block| self.hands.free(block));
            left = left.saturating_sub(batch);
            self.refill_inactive(place);
        }
    }

    /// Takes pages that can go off the tail of a node's inactive list, and returns others to its head.
    fn isolate(&self, kind: Kind, place: usize, batch: u64) -> Vec<Block> {
        let mut victims = Vec::new();
        for _ in 0..batch {
            // Others may have been at the list while this one waited for its lock.
            let Some(at) = self.table.borrow().tail(place, State::CLEAN) else { break };
            let state = self.table.borrow().page(at).state;
            match kept_as(state, kind) {
                Some(state) => self.table.borrow_mut().move_to(at, state),
                None => victims.push(self.forget(at)),
            }
        }
        victims
    }

    /// Moves pages from the tail of a node's active list to its inactive one, while that is the shorter.
    fn refill_inactive(&self, place: usize) {
        let mut table = self.table.borrow_mut();
        for _ in 0..SCAN_BATCH {
            let tally = table.tally(place);
            let Some(at) = table.tail(place, State::ACTIVE).filter(|_| tally.active > tally.inactive) else {
                return;
            };
            let state = table.page(at).state.without(State::ACTIVE).without(State::REFERENCED);
            table.move_to(at, state);
        }
    }

    /// Drops what is clean of files that nobody uses, in proportion to the pages that were looked at.
    fn shrink_files(&self, place: usize, freed: &Cell<u64>) {
        loop {
            let longest = self.files.borrow_mut().longest_unused();
            let Some((file, cached)) = longest else { return self.inode_debt.set(0.0) };
            if self.inode_debt.get() < cached as f64 {
                return;
            }
            self.inode_debt.set(self.inode_debt.get() - cached as f64);
            self.files.borrow_mut().pass_over_unused();
            self.drop_clean(file, place, freed);
        }
    }

    fn drop_clean(&self, file: FileId, place: usize, freed: &Cell<u64>) {
        let busy = State::DIRTY.with(State::WRITEBACK).with(State::MAPPED);
        let pages = self.files.borrow().pages_of(file);
        for page in pages {
            let entry = self.table.borrow().page(page);
            // Others may drop pages of it meanwhile.
            if entry.file == file.0 && !entry.state.has(busy) {
                freed.set(freed.get() + u64::from(self.table.borrow().node_of(page) == place));
                self.counts.with_files.set(self.counts.with_files.get() + 1);
                let block = self.forget(page);
                self.hands.free(&block);
            }
        }
    }
}

/// What a page at the tail becomes that cannot go; `None` when it can.
fn kept_as(state: State, kind: Kind) -> Option<State> {
    if (state.has(State::MAPPED) && kind == Kind::Node) || state.has(State::WRITEBACK) {
        return Some(state);
    }
    if state.has(State::MAPPED) && state.has(State::REFERENCED) {
        return Some(state.without(State::REFERENCED));
    }
    // What was not used since the last look is unmapped before anything else is known of it.
    let state = if kind == Kind::Node { state } else { state.without(State::MAPPED) };
    state.has(State::DIRTY).then_some(state)
}

//! Handles the allocator's reclaim requests: counts the frames that could be freed, and frees frames.
//!
//! Reclaim scans the tail of a zone's inactive list, 32 pages at a time under the LRU lock. Clean pages are freed;
//! others return to the head. A scan starts with a small share of the list, given by the *priority*, and continues
//! with larger shares until enough pages are freed. *Node* reclaim does not unmap pages unless the request allows it,
//! and it never waits. All other reclaim unmaps pages that were not used recently. It waits for the disk if there are
//! dirty pages that it may write.
//!
//! A request for a node scans the lists of all its eligible zones, starting with the highest zone. Related files:
//! `page_cache/table.rs` implements the lists. Source of the rules: Linux 2.6.39.

use std::cell::Cell;

use zonal::Block;
use zonal::platform::reclaimer::{ReclaimReason, ReclaimRequest};
use zonal::units::PageCount;

use super::table::State;
use super::{FileId, PageCache};
use crate::sim::{ProgramReclaimer, Time};

/// Number of pages scanned under the lock at a time. Linux: `SWAP_CLUSTER_MAX`.
const SCAN_BATCH: u64 = 32;
/// Shift for the first share of a list to scan: 2^-12 of the list. Linux: `DEF_PRIORITY`.
const FIRST_PRIORITY: u32 = 12;
/// Shift for the first share in node reclaim: 2^-4 of the list. Linux: `ZONE_RECLAIM_PRIORITY`.
const NODE_PRIORITY: u32 = 4;
/// Highest priority value at which reclaim waits for the disk.
const PATIENT_PRIORITY: u32 = 9;
/// Duration of one wait for the disk. Linux: `congestion_wait`.
const WAIT: Time = Time::from_ps(100_000_000_000);
/// Number of pages that reclaim asks the flusher to write during the wait.
const HURRIED_PAGES: u64 = 1024;

impl ProgramReclaimer for PageCache<'_, '_, '_> {
    /// Counts the file pages. Mapped pages are subtracted if the request does not allow unmapping, and dirty pages if
    /// it does not allow writing. Linux: `zone_pagecache_reclaimable`.
    fn count(&self, request: &ReclaimRequest) -> PageCount {
        let tally = self.tally(&self.zones_for(request));
        let mapped = if request.may_unmap { 0 } else { tally.mapped };
        let dirty = if request.may_write { 0 } else { tally.dirty };
        PageCount::new((tally.inactive + tally.active).saturating_sub(mapped + dirty))
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        let world = self.world();
        if request.reason == ReclaimReason::Background && self.stopping.get() {
            return PageCount::ZERO;
        }
        let zones = self.zones_for(request);
        let freed = Cell::new(0);
        // Node reclaim stops when it has freed enough frames for one block of the requested order. Other reclaim
        // continues until it has reached its target.
        let (first, enough) = match request.reason {
            ReclaimReason::Node => (NODE_PRIORITY, request.order.pages()),
            _ => (FIRST_PRIORITY, request.target),
        };
        for priority in (0..=first).rev() {
            zones.iter().for_each(|&zone| self.walk(request, zone, priority, &freed));
            if freed.get() >= enough.get() {
                break;
            }
            if request.may_write && priority <= PATIENT_PRIORITY && self.tally(&zones).dirty != 0 {
                self.hurried.set(self.hurried.get().max(HURRIED_PAGES));
                if request.reason != ReclaimReason::Node {
                    world.sleep_until(world.now() + WAIT);
                }
            }
        }
        self.shrink_files(&zones, &freed);
        PageCount::new(freed.get())
    }
}

impl PageCache<'_, '_, '_> {
    /// Returns the indices of the zones that a request applies to, starting with the highest zone.
    fn zones_for(&self, request: &ReclaimRequest) -> Vec<usize> {
        let zones = &self.system.sim.machine.model.zones;
        let helps = |&at: &usize| match request.zone {
            Some(zone) => zone.index() == at,
            None => zones[at].node == request.node && zones[at].kind <= request.zone_limit,
        };
        (0..zones.len()).rev().filter(helps).collect()
    }

    /// Scans a share of a zone's inactive list until enough pages are freed.
    fn walk(&self, request: &ReclaimRequest, zone: usize, priority: u32, freed: &Cell<u64>) {
        let world = self.world();
        let inactive = || self.tally(&[zone]).inactive;
        let mut left = (inactive() >> priority).max(SCAN_BATCH);
        while left > 0 && freed.get() < request.target.get() {
            let batch = left.min(SCAN_BATCH).min(inactive());
            if batch == 0 {
                break;
            }
            let look = Time::from_ns(self.settings.scan_ns * batch as f64);
            let victims = self.locks[zone].hold(world, || {
                world.spend(look);
                self.isolate(request, zone, batch)
            });
            self.counts.add(request.reason, batch, victims.len() as u64);
            self.inode_debt.set(self.inode_debt.get() + batch as f64 * self.settings.inode_pressure);
            freed.set(freed.get() + victims.len() as u64);
            victims.into_iter().for_each(|block| self.free_lists.free(self.system, block));
            left = left.saturating_sub(batch);
            self.refill_inactive(zone);
        }
    }

    /// Removes freeable pages from the tail of a zone's inactive list, and moves the others to its head.
    fn isolate(&self, request: &ReclaimRequest, zone: usize, batch: u64) -> Vec<Block> {
        let mut victims = Vec::new();
        for _ in 0..batch {
            // Other threads may have changed the list while this thread waited for the lock.
            let Some(at) = self.table.borrow().tail(zone, State::CLEAN) else { break };
            let state = self.table.borrow().page(at).state;
            match kept_as(state, request) {
                Some(state) => self.table.borrow_mut().move_to(at, state),
                None => victims.push(self.forget(at)),
            }
        }
        victims
    }

    /// Moves pages from the tail of a zone's active list to its inactive list while the active list is longer.
    fn refill_inactive(&self, zone: usize) {
        let mut table = self.table.borrow_mut();
        for _ in 0..SCAN_BATCH {
            let tally = table.tally(zone);
            let Some(at) = table.tail(zone, State::ACTIVE).filter(|_| tally.active > tally.inactive) else {
                return;
            };
            let state = table.page(at).state.without(State::ACTIVE).without(State::REFERENCED);
            table.move_to(at, state);
        }
    }

    /// Drops clean pages of unused files, in proportion to the number of pages scanned.
    fn shrink_files(&self, zones: &[usize], freed: &Cell<u64>) {
        loop {
            let longest = self.files.borrow_mut().longest_unused();
            let Some((file, cached)) = longest else { return self.inode_debt.set(0.0) };
            if self.inode_debt.get() < cached as f64 {
                return;
            }
            self.inode_debt.set(self.inode_debt.get() - cached as f64);
            self.files.borrow_mut().pass_over_unused();
            self.drop_clean(file, zones, freed);
        }
    }

    fn drop_clean(&self, file: FileId, zones: &[usize], freed: &Cell<u64>) {
        let busy = State::DIRTY.with(State::WRITEBACK).with(State::MAPPED);
        let pages = self.files.borrow().pages_of(file);
        for page in pages {
            let entry = self.table.borrow().page(page);
            // Other threads may drop pages of the file during this loop.
            if entry.file == file.0 && !entry.state.has(busy) {
                freed.set(freed.get() + u64::from(zones.contains(&self.table.borrow().zone_of(page))));
                self.counts.with_files.set(self.counts.with_files.get() + 1);
                let block = self.forget(page);
                self.free_lists.free(self.system, block);
            }
        }
    }
}

/// Returns the new state of the page at the list's tail, or `None` if the page can be freed.
fn kept_as(state: State, request: &ReclaimRequest) -> Option<State> {
    if (state.has(State::MAPPED) && !request.may_unmap) || state.has(State::WRITEBACK) {
        return Some(state);
    }
    if state.has(State::MAPPED) && state.has(State::REFERENCED) {
        return Some(state.without(State::REFERENCED));
    }
    // A page that was not used since the last scan is unmapped, whether or not it is dirty.
    let state = state.without(State::MAPPED);
    state.has(State::DIRTY).then_some(state)
}

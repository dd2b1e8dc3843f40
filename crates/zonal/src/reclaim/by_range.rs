//! Reclaim by range: how a request for a large block, or for many adjacent frames, empties a range with the reclaimers.
//!
//! The request looks for the range that costs the fewest evictions, and *claims* its free frames, so that no other
//! request allocates them while the reclaimers free the others. No pageset is closed and no lock for run-time changes
//! is acquired. Related files: `zone/claims.rs` has the claims, `ranges/mod.rs` allocates ranges that are free,
//! `alloc/slow.rs` reclaims by range before other frames.

use core::ops::ControlFlow::{self, Break, Continue};
use core::sync::atomic::Ordering::Relaxed;

use crate::error::UsedState;
use crate::pageset::state::MachineState;
use crate::platform::reclaimer::ReclaimRequest;
use crate::platform::steps::Step;
use crate::platform::{Atomic, Platform};
use crate::reclaim::{IDLE_ROUNDS, direct_request, range_request, zone_alone};
use crate::request::FrameRun;
use crate::request::context::AllocContext;
use crate::rules::sort::sort_by_key;
use crate::units::{PageCount, PageKind};
use crate::zone::Zone;
use crate::zone::counters::NodeItem;
use crate::zone::frame_state::FrameState;
use crate::zone::runs::Run;

/// Maximum number of windows in a zone that a request empties.
const WINDOW_TRIES: usize = 4;
/// Maximum number of calls to [`Platform::relax`] while another thread reclaims.
const WAIT_ROUNDS: u32 = 1000;
/// Maximum number of calls to the reclaimers because a zone lacks frames outside the window.
const SHORT_ROUNDS: u32 = 4;
/// Number of windows that are compared before the reclaimers are asked which ones they can empty.
const CANDIDATES: usize = 64;
/// Number of windows after which a search in a zone ends if the reclaimers can empty none.
const ASKED: u32 = 256;
/// Number of blocks and free frames in a zone's windows after which a search ends.
const LOOKS: u64 = 1 << 21;

/// The free frames of a window, which no other request can allocate. They are freed when this is dropped.
struct Claim<'a, 'm, P: Platform> {
    state: &'a MachineState<'m, P>,
    zone: &'m Zone<'m, P>,
    run: Run,
    slot: usize,
    held: u64,
}

impl<P: Platform> Claim<'_, '_, P> {
    /// Adds the frames that are free now.
    fn extend(&mut self) {
        let taken = self.zone.claim_free(self.run);
        self.state.nodes[self.zone.node].counters.add_total(NodeItem::Kernel, taken as i64);
        self.held += taken;
    }

    /// Returns the number of frames that it does not hold.
    const fn missing(&self) -> PageCount {
        PageCount::new(self.run.count.saturating_sub(self.held))
    }
}

impl<P: Platform> Drop for Claim<'_, '_, P> {
    fn drop(&mut self) {
        self.state.give_back(self.zone, self.run, FrameState::Claimed);
        self.zone.end_claim(self.slot);
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Empties windows of the allowed zones with the reclaimers until one can be allocated.
    ///
    /// Evicts at most twice as many frames as the request needs: those of the window, and as many others as the zone
    /// lacks to stay above its watermark.
    ///
    /// # Errors
    /// Returns the number of frames that the reclaimers freed, or `u64::MAX` after the only call that the request allows.
    pub(crate) fn reclaim_run(&self, context: &AllocContext<'_>) -> Result<FrameRun, PageCount> {
        let mut evicted = PageCount::ZERO;
        // A claim of a range would outlive its process if several share the allocator.
        if !context.may_reclaim || P::IS_SHARED && self.process != 0 {
            return Err(evicted);
        }
        let most = PageCount::new(context.count.get().saturating_mul(2));
        let run = self.find_in_zones(context, |zone| {
            let mut tried = [None; WINDOW_TRIES];
            let (mut at, mut searches, mut waits) = (0, 0, 0);
            while at < if context.flags.may_retry() { WINDOW_TRIES } else { 1 } {
                if context.ranges_ignored.get() {
                    return None;
                }
                let left = most.saturating_minus(evicted);
                let beside_others = zone.is_reclaimed();
                let Some(run) = self.cheapest_window(zone, context, left, &tried[..at]) else {
                    // Another thread's reclaim may have frames of all windows that it is about to free.
                    if searches == IDLE_ROUNDS || !beside_others && !zone.is_reclaimed() {
                        return None;
                    }
                    searches += 1;
                    while waits < WAIT_ROUNDS && zone.is_reclaimed() {
                        self.platform.relax(waits);
                        waits += 1;
                    }
                    self.drain_zone(zone);
                    continue;
                };
                tried[at] = Some(run);
                at += 1;
                if let Break(ended) = self.empty(zone, run, context, most, &mut evicted) {
                    return ended;
                }
            }
            None
        });
        run.ok_or(evicted)
    }

    /// Empties a window with the reclaimers and allocates it. Continues if some of its frames are still in use, and ends
    /// without frames if the reclaimers have nothing to free, or ignore ranges. Adds the number of frames that they freed to
    /// `evicted`, which stays at most `most` if they free no more than they are asked for. If the request may not repeat
    /// reclaim, `evicted` becomes the maximum instead, so that there is no other call.
    fn empty(
        &self,
        zone: &'m Zone<'m, P>,
        run: Run,
        context: &AllocContext<'_>,
        most: PageCount,
        evicted: &mut PageCount,
    ) -> ControlFlow<Option<FrameRun>> {
        let range = zone.range_of(run);
        let counted = |freed| if context.flags.may_retry() { freed } else { PageCount::new(u64::MAX) };
        // A claim would keep free frames from other requests that are below the watermark already.
        for round in 0.. {
            let short = self.short_of_min(zone, context, unused_in(zone, run));
            if short == PageCount::ZERO {
                break;
            }
            if round == SHORT_ROUNDS {
                return Break(None);
            }
            if short > most.saturating_minus(*evicted) {
                return Continue(());
            }
            let request = ReclaimRequest { target: short, ..direct_request(context, zone.node_id) };
            let freed = self.direct_reclaim_by(&zone_alone(zone), context, &request);
            self.drain_zone(zone); // the reclaimer may have freed on several CPUs
            context.report(Step::DirectReclaim { freed });
            *evicted = evicted.plus(counted(freed));
            if freed == PageCount::ZERO {
                return Break(None);
            }
        }
        let Some(slot) = zone.begin_claim(run) else { return Continue(()) };
        let mut claim = Claim { state: self, zone, run, slot, held: 0 };
        claim.extend();
        for _ in 0..IDLE_ROUNDS {
            if claim.missing() == PageCount::ZERO {
                break;
            }
            let missing = claim.missing();
            if missing > most.saturating_minus(*evicted) {
                return Continue(());
            }
            let request = range_request(zone, range, missing);
            let freed = self.direct_reclaim_by(&self.extent_of(zone), context, &request);
            claim.extend();
            if claim.missing() != PageCount::ZERO {
                self.drain_zone(zone); // the reclaimer may have freed on several CPUs
                claim.extend();
            }
            let gained = missing.saturating_minus(claim.missing());
            let is_empty = claim.missing() == PageCount::ZERO;
            context.report(Step::RangeReclaimed { freed, is_empty });
            *evicted = evicted.plus(counted(freed.max(gained)));
            // Other requests may have allocated freed frames of the window. Then the reclaimers no longer have them.
            if gained.plus(gained) < freed
                && self.count_reclaimable(&range_request(zone, range, claim.missing())) >= claim.missing()
            {
                context.ranges_ignored.set(true);
                return Break(None);
            }
            if gained == PageCount::ZERO {
                return Continue(());
            }
        }
        // The claim holds the frames already.
        if claim.missing() != PageCount::ZERO
            || self.short_of_min(zone, context, PageCount::ZERO) != PageCount::ZERO
            || !self.take_claimed(claim, context.flags.kind)
        {
            return Continue(());
        }
        Break(Some(FrameRun { range, zone: zone.id, node: zone.node_id }))
    }

    /// Allocates the frames of a claim that holds its whole range; returns `false` if some of them are bad.
    fn take_claimed(&self, claim: Claim<'_, 'm, P>, kind: PageKind) -> bool {
        let (zone, run) = (claim.zone, claim.run);
        if !zone.leave_claim(run) {
            return false;
        }
        self.nodes[zone.node].counters.add_total(NodeItem::Kernel, -(run.count as i64));
        zone.end_claim(claim.slot);
        core::mem::forget(claim);
        self.mark_taken(zone, run, kind)
    }

    /// Returns a window of a zone that the reclaimers can empty with at most `left` evictions: the cheapest of
    /// [`CANDIDATES`], or the cheapest of the next so many if none can be emptied. Leaves out windows that overlap
    /// those in `tried`.
    ///
    /// Windows with only cached contents come first, because other contents are less likely to be reclaimable, and among
    /// others those with small blocks. Each search begins elsewhere.
    fn cheapest_window(
        &self,
        zone: &'m Zone<'m, P>,
        context: &AllocContext<'_>,
        left: PageCount,
        tried: &[Option<Run>],
    ) -> Option<Run> {
        let (align, count) = (context.flags.order.pages().get(), context.count);
        let start = u64::from(zone.offset(zone.span.start)).next_multiple_of(align);
        let last = context.reach(zone).checked_sub(count.get())?.checked_sub(start)?;
        let step = (count.get() / 2).max(1).next_multiple_of(align);
        let windows = last / step + 1;
        // Multiples of the golden ratio visit all parts in a zone evenly, whatever the sizes of windows.
        let searches = zone.cells.searches.fetch_add(1, Relaxed); // relaxed: no other data depends on it
        let first = (searches.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % windows;
        let window = |number: u64| Run { first: (start + number * step) as u32, count: count.get() };
        let (mut looks, mut seen, mut asked) = (0, 0, 0);
        while seen < windows && looks < LOOKS && asked < ASKED {
            // Weighted frames of other kinds than `Cache`, used frames, and the number of the window.
            let mut found = [(u32::MAX, u32::MAX, u32::MAX); CANDIDATES];
            let mut candidates = 0;
            while seen < windows && looks < LOOKS && candidates < CANDIDATES {
                let number = (first + seen) % windows;
                seen += 1;
                let candidate = window(number);
                if let Some((others, used)) = self.used_in(zone, candidate, &mut looks)
                    && !tried.iter().flatten().any(|&tried| tried.overlap(candidate).is_some())
                    && used.plus(self.short_of_min(zone, context, unused_in(zone, candidate))) <= left
                {
                    let entry = [others, used.get(), number];
                    found[candidates] = entry.map(|part| u32::try_from(part).unwrap_or(u32::MAX)).into();
                    candidates += 1;
                }
            }
            let found = &mut found[..candidates];
            sort_by_key(found, |candidate| *candidate);
            for &mut (.., number) in found {
                let candidate = window(number.into());
                asked += 1;
                // The reclaimers are asked first: frames that another thread evicts afterwards are no longer used.
                let reclaimable =
                    self.count_reclaimable(&range_request(zone, zone.range_of(candidate), count));
                let used = self.used_in(zone, candidate, &mut looks);
                if used.is_some_and(|(_, used)| reclaimable >= used) {
                    return Some(candidate);
                }
            }
        }
        None
    }

    /// Returns the number of allocated frames in a window whose kind is not `Cache`, those of larger blocks weighted by
    /// the order, because the blocks of a cache are small; and the number of used frames. Frames in pagesets are not used:
    /// they are drained. Returns `None` if the window has frames that no reclaimer can free.
    fn used_in(&self, zone: &Zone<'m, P>, run: Run, looks: &mut u64) -> Option<(u64, PageCount)> {
        let (mut others, mut unused) = (0, unused_in(zone, run));
        let mut can_be_emptied = zone.fence_over(run).is_none();
        *looks += unused.get();
        for used in self.used_blocks(zone, &zone.range_of(run)) {
            *looks += 1;
            let count = used.block.count;
            match used.state {
                UsedState::NotManaged | UsedState::Retired | UsedState::Quarantined | UsedState::Fenced => {
                    can_be_emptied = false;
                }
                UsedState::Allocated(PageKind::User | PageKind::Kernel) => {
                    others += count.get() * (1 + u64::from(count.get().ilog2()));
                }
                UsedState::Cached => unused = unused.plus(count),
                UsedState::Allocated(PageKind::Cache) | UsedState::InRun | UsedState::BeingSplit => {}
            }
            if !can_be_emptied {
                return None;
            }
        }
        can_be_emptied.then(|| (others, PageCount::new(run.count).saturating_minus(unused)))
    }
}

/// Returns the number of a window's frames that are free in the buddy.
fn unused_in<P: Platform>(zone: &Zone<'_, P>, run: Run) -> PageCount {
    PageCount::new(zone.free_areas.count_free(run.first, run.count))
}

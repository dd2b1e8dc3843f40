//! The slow path: the steps of a request that the current CPU's pageset cannot serve.
//!
//! The request first scans its zonelist at the watermark `low`. If the scan fails, the request wakes background reclaim
//! and scans at `min`. A request for a large block then reclaims a range (`reclaim/by_range.rs`). Next, the request
//! repeats direct reclaim and a scan as long as reclaim makes progress. Finally, it drains the pagesets of all allowed
//! zones and scans a last time. If this scan fails too, the request fails with an error that contains the zones'
//! figures. Every loop is bounded. Related files: `alloc/scan.rs` runs the scans, `reclaim/mod.rs` reclaims, and
//! `alloc/shortage.rs` collects the figures.

use crate::Allocator;
use crate::config::Faults;
use crate::error::AllocError;
use crate::node_mask::NodeMask;
use crate::pageset::state::MachineState;
use crate::platform::Platform;
use crate::platform::steps::Step;
use crate::platform::tracepoint::Tracepoint;
use crate::reclaim::{IDLE_ROUNDS, TARGET_MIN, reclaim_target};
use crate::request::context::AllocContext;
use crate::request::policy::Turn;
use crate::request::{Block, Request};
use crate::rules::watermarks::Watermark;
use crate::units::PageCount;
use crate::zone::Zone;
use crate::zone::events::Event;

/// Limit on rounds of direct reclaim when each round makes progress but other requests allocate the freed frames.
const ROUNDS: u32 = 1024;
/// Largest order for which direct reclaim continues as long as it makes progress, up to [`ROUNDS`] rounds. Larger blocks are reclaimed by range,
/// because frames that are freed anywhere rarely form such a block. Linux: `PAGE_ALLOC_COSTLY_ORDER`.
const COSTLY_ORDER: u8 = 3;
/// Frames that a request for a block above [`COSTLY_ORDER`] may evict before it fails: direct reclaim continues only if
/// reclaim by range evicted fewer, and for at most [`IDLE_ROUNDS`] rounds. So many rounds with the smallest target evict
/// as many.
const COSTLY_EVICTIONS: PageCount = PageCount::new(IDLE_ROUNDS as u64 * TARGET_MIN.get());

impl<'m, P: Platform> Allocator<'m, P> {
    /// Drains the quarantine and all CPUs' pagesets of every zone.
    pub fn drain_pagesets(&self) {
        self.state.zones.iter().for_each(|zone| self.state.drain_zone(zone));
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Serves a request that is resolved as `context`.
    pub(crate) fn serve(
        &self,
        request: &Request<'_>,
        context: &AllocContext<'_>,
    ) -> Result<Block, AllocError> {
        let count = context.placement.map_or(context.order.pages(), |placement| placement.count);
        let find = |context: &AllocContext<'_>| self.find(context).map(|block| (block.zone, block));
        let block = self.recorded(context, count, find).ok_or_else(|| self.failure(context))?;
        if self.zeroes(request) {
            self.zero(block.first, count);
        }
        Ok(block)
    }

    /// Whether a request that needs locks may begin.
    ///
    /// # Errors
    /// Returns an error if the caller is a handler that would have to wait for its own thread, or if fault injection
    /// refuses the request.
    #[inline]
    pub(crate) fn may_begin(&self, request: &Request<'_>) -> Result<(), AllocError> {
        if self.platform.is_reentered() {
            return Err(AllocError::Reentered);
        }
        self.finish_own_frees();
        if self.faults == Faults::None { Ok(()) } else { self.refuse(request) }
    }

    /// Fails a request as if no allowed zone could serve it, if fault injection refuses it.
    #[cold]
    fn refuse(&self, request: &Request<'_>) -> Result<(), AllocError> {
        if !self.faults.refuse(self.shared.next_request()) {
            return Ok(());
        }
        let context = self.resolve(request, Turn::Next)?;
        self.recorded(&context, context.order.pages(), |_| None).ok_or_else(|| self.failure(&context))
    }

    /// Finds a block. An explanation (`explain/walk.rs`) follows the same steps up to reclaim.
    fn find(&self, context: &AllocContext<'_>) -> Option<Block> {
        let found = self.scan_first(context).or_else(|| self.scan(context, Watermark::Low));
        if found.is_some() {
            return found;
        }
        context.report(Step::BackgroundWoken);
        self.wake_background(context);
        self.report_low(context);
        let found = self.scan(context, Watermark::Min).or_else(|| self.reclaim_for(context));
        if found.is_some() {
            return found;
        }
        self.drain_allowed(context);
        self.scan_last(context)
    }

    /// Reclaims for a request that may do so: first a range if its block is large, then any frames.
    fn reclaim_for(&self, context: &AllocContext<'_>) -> Option<Block> {
        if !context.may_reclaim {
            return None;
        }
        if context.order.get() <= COSTLY_ORDER {
            return self.reclaim_and_scan(context, PageCount::new(u64::MAX));
        }
        self.drain_allowed(context);
        if let Some(block) = self.scan(context, Watermark::Min) {
            return Some(block);
        }
        if P::IS_SHARED && self.process != 0 {
            return self.reclaim_and_scan(context, COSTLY_EVICTIONS); // a claim of a range would outlive its process
        }
        match self.reclaim_block(context) {
            Ok(block) => Some(block),
            Err(evicted) => {
                // Frames that were freed outside the range may form a block: a cache may consist of large blocks.
                if evicted != PageCount::ZERO
                    && let Some(block) = self.scan(context, Watermark::Min)
                {
                    return Some(block);
                }
                self.reclaim_and_scan(context, COSTLY_EVICTIONS.saturating_minus(evicted))
            }
        }
    }

    /// Scans the zones of the nodes that the policy prefers, one node after the other, first at `low`, then at `min`.
    #[cold]
    fn scan_first(&self, context: &AllocContext<'_>) -> Option<Block> {
        let places = || context.first.iter().filter_map(|&node| self.place_of(node));
        for watermark in [Watermark::Low, Watermark::Min] {
            for target in places() {
                let only = context.only_from(target);
                if let Some(block) = self.scan(&only, watermark) {
                    return Some(block);
                }
                if watermark == Watermark::Low {
                    self.wake_background(&only);
                }
            }
        }
        None
    }

    /// Runs rounds of direct reclaim, each followed by a scan, until they have evicted about `most` frames.
    ///
    /// Direct reclaim clears the full bits of the zones that it reclaimed, so that the scan checks these zones
    /// (mechanism M3 of the README).
    fn reclaim_and_scan(&self, context: &AllocContext<'_>, most: PageCount) -> Option<Block> {
        let (mut idle, mut left) = (0, most);
        for round in 1..=ROUNDS {
            let target = reclaim_target(context.order).min(left);
            if target == PageCount::ZERO {
                break;
            }
            let freed = self.stalling(context, || self.direct_reclaim(context, target));
            left = left.saturating_minus(freed);
            context.report(Step::DirectReclaim { freed });
            idle = if freed == PageCount::ZERO { idle + 1 } else { 0 };
            if let Some(block) = self.scan(context, Watermark::Min) {
                return Some(block);
            }
            let costly = context.order.get() > COSTLY_ORDER && round >= IDLE_ROUNDS;
            let hopeless = idle > 0 && !self.has_reclaimable(context);
            if !context.may_retry || costly || hopeless || idle >= IDLE_ROUNDS {
                break;
            }
            if idle > 0 {
                self.platform.relax(idle); // other threads may free frames soon
            }
        }
        None
    }

    /// Counts a failed request and returns an error with the figures of the zones that the request may use.
    pub(super) fn failure(&self, context: &AllocContext<'_>) -> AllocError {
        let frames = context.placement.map_or(context.order.pages(), |placement| placement.count);
        self.note_refusal(context, frames);
        AllocError::OutOfMemory(self.sum_up(context))
    }

    /// Counts and reports a failed request for `frames` frames.
    pub(crate) fn note_refusal(&self, context: &AllocContext<'_>, frames: PageCount) {
        let node = &self.nodes[context.target];
        node.events.add(Event::Failures, 1);
        self.platform.trace(Tracepoint::Refusal { node: node.id, order: context.order, frames });
        self.report_failing(context);
    }

    fn wake_background(&self, context: &AllocContext<'_>) {
        let nodes = self.allowed_nodes(context);
        for node in self.nodes.iter().filter(|node| nodes.contains(node.id)) {
            let is_first = node.want_background(&self.platform);
            self.nodes[context.target].events.add(Event::BackgroundWakes, is_first.into());
            // What other processes can free does not depend on what this one does or has freed.
            if is_first || P::IS_SHARED && self.process != 0 {
                self.platform.wake_background_reclaim(node.id);
            }
        }
    }

    /// Drains the quarantine and all CPUs' pagesets of every allowed zone.
    pub(crate) fn drain_allowed(&self, context: &AllocContext<'_>) {
        if context.may_reclaim {
            self.ask_others_to_drain();
        }
        if context.observer.is_some() {
            context.report(Step::PagesetsDrained { frames: self.in_allowed_pagesets(context) });
        }
        for zone in self.zones.iter().filter(|zone| context.allows(zone)) {
            self.drain_zone(zone);
        }
    }

    /// Asks the other processes that share the allocator to drain their pagesets, and waits a moment for them.
    pub(crate) fn ask_others_to_drain(&self) {
        if P::IS_SHARED && self.process != 0 {
            self.platform.drain_others();
        }
    }

    /// Drains the quarantine and all CPUs' pagesets of a zone, after all deferred frees.
    pub(crate) fn drain_zone(&self, zone: &Zone<'m, P>) {
        self.finish_all_frees();
        self.flush_quarantine(zone);
        self.local_cpus().for_each(|&cpu| self.drain_cpu(zone, cpu));
        self.disown_all(zone); // a drain frees frames to the owners of their blocks
    }

    /// Returns the nodes that have an allowed zone with memory.
    pub(crate) fn allowed_nodes(&self, context: &AllocContext<'_>) -> NodeMask {
        let zones =
            self.zones.iter().filter(|zone| zone.managed() != PageCount::ZERO && context.allows(zone));
        zones.map(|zone| zone.node_id).collect()
    }
}

//! The slow path: what a request tries, in order, when the current CPU's pageset cannot serve it.
//!
//! Scan at `low`; wake background reclaim; scan at `min`; reclaim directly and scan again, as long as that makes
//! progress; drain the pagesets of all allowed zones and scan once more; fail with figures. Every loop is bounded.
//! Neighbours: `alloc/scan.rs`, `alloc/reclaim.rs`, `alloc/shortage.rs`.

use crate::Allocator;
use crate::alloc::context::AllocContext;
use crate::alloc::request::{Block, Request};
use crate::error::AllocError;
use crate::node_mask::NodeMask;
use crate::pageset::state::MachineState;
use crate::platform::Platform;
use crate::rules::watermarks::Watermark;
use crate::units::{Order, PageCount};
use crate::zone::Zone;
use crate::zone::events::Event;

/// Rounds of reclaim without progress before reclaim gives up.
pub(super) const IDLE_ROUNDS: u32 = 16;
/// Limit on rounds of direct reclaim when each makes progress but other requests use up the frames.
const ROUNDS: u32 = 1024;
/// Largest order that is retried beyond [`IDLE_ROUNDS`] while reclaim makes progress. Linux: `PAGE_ALLOC_COSTLY_ORDER`.
const COSTLY_ORDER: u8 = 3;

impl<'m, P: Platform> Allocator<'m, P> {
    /// Serves a request that the current CPU's pageset could not.
    #[cold]
    pub(super) fn alloc_slow(&self, request: &Request<'_>) -> Result<Block, AllocError> {
        let context = self.resolve(request)?;
        match self.find(&context) {
            Some(block) => {
                if self.zeroes(request) {
                    self.state.zero(block);
                }
                Ok(block)
            }
            None => Err(self.state.failure(&context)),
        }
    }

    /// Whether fault injection refuses the next request.
    #[cold]
    pub(super) fn is_refused(&self) -> bool {
        self.faults.refuse(self.state.shared.next_request())
    }

    /// Fails a request as if no allowed zone could serve it.
    #[cold]
    pub(super) fn refuse(&self, request: &Request<'_>) -> Result<Block, AllocError> {
        Err(self.state.failure(&self.resolve(request)?))
    }

    fn find(&self, context: &AllocContext<'_>) -> Option<Block> {
        if let Some(block) = self.scan(context, Watermark::Low) {
            return Some(block);
        }
        self.state.wake_background(context);
        if let Some(block) = self.scan(context, Watermark::Min) {
            return Some(block);
        }
        if context.may_reclaim
            && let Some(block) = self.reclaim_and_scan(context)
        {
            return Some(block);
        }
        self.state.drain_allowed(context);
        self.scan_last(context)
    }

    /// Runs rounds of direct reclaim, each followed by a scan (M3: full bits of reclaimed zones are cleared first).
    fn reclaim_and_scan(&self, context: &AllocContext<'_>) -> Option<Block> {
        let mut idle = 0;
        for round in 1..=ROUNDS {
            let freed = self.direct_reclaim(context);
            idle = if freed == PageCount::ZERO { idle + 1 } else { 0 };
            if let Some(block) = self.scan(context, Watermark::Min) {
                return Some(block);
            }
            let costly = context.order.get() > COSTLY_ORDER && round >= IDLE_ROUNDS;
            let hopeless = idle > 0 && !self.state.has_reclaimable(context);
            if !context.may_retry || costly || hopeless || idle >= IDLE_ROUNDS {
                break;
            }
            if idle > 0 {
                self.state.platform.relax(idle); // other threads may be about to free
            }
        }
        None
    }

    /// Drains the quarantines and all CPUs' pagesets of all zones.
    pub fn drain_pagesets(&self) {
        self.state.zones.iter().for_each(|zone| self.state.drain_zone(zone));
    }
}

/// Returns how many frames a round of reclaim for a block of `order` aims to free.
pub(super) fn reclaim_target(order: Order) -> PageCount {
    const TARGET_MIN: PageCount = PageCount::new(32);
    order.pages().max(TARGET_MIN)
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Counts a failed request and returns an error with the figures of its zones.
    fn failure(&self, context: &AllocContext<'_>) -> AllocError {
        self.nodes[context.target].events.add(Event::Failures, 1);
        AllocError::OutOfMemory(self.sum_up(context))
    }

    fn wake_background(&self, context: &AllocContext<'_>) {
        let nodes = self.allowed_nodes(context);
        for node in self.nodes.iter().filter(|node| nodes.contains(node.id)) {
            if node.want_background() {
                self.nodes[context.target].events.add(Event::BackgroundWakes, 1);
                self.platform.wake_background_reclaim(node.id);
            }
        }
    }

    /// Drains the pagesets of all CPUs for the allowed zones.
    fn drain_allowed(&self, context: &AllocContext<'_>) {
        for zone in self.zones.iter().filter(|zone| context.allows(zone)) {
            self.drain_zone(zone);
        }
    }

    /// Drains the quarantine and all CPUs' pagesets of a zone.
    pub(crate) fn drain_zone(&self, zone: &Zone<'m, P>) {
        self.flush_quarantine(zone);
        self.cpus.iter().filter(|cpu| cpu.exists()).for_each(|&cpu| self.drain_cpu(zone, cpu));
    }

    /// Returns the nodes that have an allowed zone with memory.
    pub(super) fn allowed_nodes(&self, context: &AllocContext<'_>) -> NodeMask {
        let zones =
            self.zones.iter().filter(|zone| zone.managed() != PageCount::ZERO && context.allows(zone));
        zones.map(|zone| zone.node_id).collect()
    }
}

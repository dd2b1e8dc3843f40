//! The platform of a model, over the cells and locks of its checker.
//!
//! Related files: `cells.rs` has the cells, `ways.rs` the ways to access pagesets.

use zonal::platform::reclaimer::{ReclaimRequest, Reclaimer};
use zonal::units::{CpuId, Moment, NodeId, PageCount};

use crate::interleavings::cells::{Handle, LockHandle};
use crate::interleavings::checker::Checker;
use crate::interleavings::ways::Way;

/// The scenario's part of the platform: the functions that the allocator requires of its embedder.
pub(crate) trait Host: Send + Sync {
    /// Handles a wake-up of background reclaim for `node`.
    fn wake(&self, _node: NodeId) {}

    /// Returns the number of frames that could be freed.
    fn count(&self, _request: &ReclaimRequest) -> PageCount {
        PageCount::ZERO
    }

    /// Frees frames, and returns their number.
    fn reclaim(&self, _request: &ReclaimRequest) -> PageCount {
        PageCount::ZERO
    }
}

/// An embedder that reclaims nothing.
pub(crate) struct NoReclaimer;

impl Host for NoReclaimer {}

/// The platform of a model.
pub(crate) struct Model<C: Checker> {
    host: Shrinker,
    way: Way<C>,
}

struct Shrinker(Box<dyn Host>);

impl Reclaimer for Shrinker {
    fn count(&self, request: &ReclaimRequest) -> PageCount {
        self.0.count(request)
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        self.0.reclaim(request)
    }
}

impl<C: Checker> Model<C> {
    /// Creates the platform of a model with the embedder `host`, whose CPUs access their pagesets in this `way`.
    pub(crate) fn new(host: Box<dyn Host>, way: Way<C>) -> Self {
        Self { host: Shrinker(host), way }
    }
}

impl<C: Checker> zonal::Platform for Model<C> {
    type U8 = Handle<C, u8>;
    type U32 = Handle<C, u32>;
    type U64 = Handle<C, u64>;
    type Lock = LockHandle<C>;
    type CpuLocal = Way<C>;

    fn current_cpu(&self) -> CpuId {
        CpuId::new(C::cpu())
    }

    fn cpu_local(&self) -> &Way<C> {
        &self.way
    }

    fn now(&self) -> Moment {
        Moment::from_ns(C::table(|table| table.now_ns.get()))
    }

    fn relax(&self, _round: u32) {
        C::relax();
    }

    fn is_reclaiming(&self) -> bool {
        C::is_reclaiming()
    }

    fn is_reentered(&self) -> bool {
        C::is_reentered()
    }

    fn begin_reclaiming(&self) {
        C::set_reclaiming(true);
    }

    fn end_reclaiming(&self) {
        C::set_reclaiming(false);
    }

    fn wake_background_reclaim(&self, node: NodeId) {
        self.host.0.wake(node);
    }

    fn reclaimer(&self) -> &dyn Reclaimer {
        &self.host
    }
}

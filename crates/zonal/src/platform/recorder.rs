//! The recorder: an embedder's service that follows single requests through the slow path, step by step.
//!
//! Related files: `platform/steps.rs` has the steps, `request/context.rs` passes requests to the recorder.

use crate::platform::steps::Step;
use crate::rules::watermarks::Urgency;
use crate::units::{CpuId, NodeId, Order, PageCount, PageKind, ZoneId, ZoneKind};

/// A request that needs the slow path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlowRequest {
    /// CPU that makes the request.
    pub cpu: CpuId,
    /// Node at which the search starts: that of the CPU, or the one that the policy chose.
    pub node: NodeId,
    /// Node of the first zone that may serve the request, or `None` if no zone may.
    pub preferred: Option<NodeId>,
    /// Order of the block; for adjacent frames, the order to which they are aligned.
    pub order: Order,
    /// Number of frames.
    pub frames: PageCount,
    /// Kind of data.
    pub kind: PageKind,
    /// How far below `min` the request may go.
    pub urgency: Urgency,
    /// Highest kind of zone that may serve the request.
    pub zone_limit: ZoneKind,
    /// Whether the request may call reclaimers.
    pub may_reclaim: bool,
}

/// Serves a request whose steps the argument receives, and returns the zone that served it, or `None` if the request
/// failed.
pub type ServeObserved<'a> = dyn FnMut(&dyn Fn(Step)) -> Option<ZoneId> + 'a;

/// Receives requests that need the slow path.
///
/// The allocator holds no lock when it calls the recorder, but the caller may be a signal or interrupt handler, and the
/// observer may run while frames of the request are claimed. Both must therefore not call the allocator, wait, or use a heap.
pub trait Recorder {
    /// Serves `request` by calling `serve` once, with an observer that receives each step.
    ///
    /// If `serve` is not called, the request is served without an observer. A second call returns `None`.
    fn record(&self, request: &SlowRequest, serve: &mut ServeObserved<'_>);
}

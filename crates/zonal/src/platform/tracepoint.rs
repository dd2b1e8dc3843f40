//! Tracepoints: places on cold paths that the allocator reports to the embedder, for tools that observe it.
//!
//! Related files: `platform/mod.rs` has the method that the embedder implements. `zone/events.rs` counts what is
//! reported here. `pageset/refill.rs`, `pageset/drain.rs`, `reclaim/mod.rs`, `alloc/slow.rs` and
//! `ranges/retire.rs` have most of the places.

use crate::platform::reclaimer::ReclaimReason;
use crate::units::{CpuId, NodeId, Order, PageCount, Pfn, ZoneId};

/// A place on a cold path that the allocator has reached, with its arguments.
///
/// Each variant names the counter of [`Events`](crate::snapshot::Events) that counts the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Tracepoint {
    /// A batch of frames moved from a zone to a pageset. Counted in `refills`.
    Refill {
        /// Zone of the frames.
        zone: ZoneId,
        /// CPU of the pageset, which is the caller's CPU.
        cpu: CpuId,
        /// Number of frames; zero if the zone had none.
        frames: PageCount,
    },
    /// A batch of frames moved from a pageset to its zone. Counted in `drains`.
    Drain {
        /// Zone of the frames.
        zone: ZoneId,
        /// CPU of the pageset, which may be another CPU than the caller's.
        cpu: CpuId,
        /// Number of frames.
        frames: PageCount,
    },
    /// A CPU drains the pageset of another CPU, and has moved the first batches. Counted in `remote_drains`.
    RemoteDrain {
        /// Zone of the pageset.
        zone: ZoneId,
        /// CPU of the pageset.
        cpu: CpuId,
    },
    /// The allocator is about to call the reclaimer.
    ReclaimBegin {
        /// Node whose frames are wanted.
        node: NodeId,
        /// Reason for the call.
        reason: ReclaimReason,
        /// Number of frames wanted.
        target: PageCount,
    },
    /// The reclaimer has returned. The frames are counted in `direct_reclaimed` or `background_reclaimed`, depending on
    /// the reason. Not reported if the reclaimer panicked.
    ReclaimEnd {
        /// Node whose frames were wanted.
        node: NodeId,
        /// Reason for the call.
        reason: ReclaimReason,
        /// Number of frames that the reclaimer reports as freed, at most those of the zones concerned.
        freed: PageCount,
    },
    /// A request failed. Counted in `failures`.
    Refusal {
        /// Node that the request prefers.
        node: NodeId,
        /// Order of the request; for a request for adjacent frames, the order to which they are aligned.
        order: Order,
        /// Number of frames in the request.
        frames: PageCount,
    },
    /// Frames were taken out of use. Counted in `retired`, `poison_found` or `bad_frames`, depending on the cause.
    Retired {
        /// Node of the frames.
        node: NodeId,
        /// First of the frames, or `None` if the frames are some of a batch.
        first: Option<Pfn>,
        /// Number of frames.
        frames: PageCount,
        /// Why the frames were taken out of use.
        cause: RetireCause,
    },
}

/// Why frames were taken out of use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RetireCause {
    /// The embedder reported the frame as bad ([`Allocator::retire`](crate::Allocator::retire)).
    BadFrame,
    /// Invalid frees had put the frames onto two stacks, or into free memory twice.
    InvalidFree,
    /// The poison of the free frames had changed.
    Poison,
}

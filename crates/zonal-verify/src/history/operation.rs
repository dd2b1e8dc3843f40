//! The operations on an allocator, as plain data.
//!
//! Every operation is valid in every world, so that a history can be truncated, mixed and mutated. Numbers that select
//! a block, CPU, zone or range are taken modulo the count of these.

use zonal::config::{NodeReclaim, ZonelistCache};
use zonal::request::{PageKind, Urgency};
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::units::ZoneKind;

use super::reclaimer::ReclaimMode;

/// The nodes that may serve in addition to the one where the search starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// All nodes that the policy allows.
    AnyNode,
    /// No other node.
    ThisNode,
}

/// How often a request may reclaim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// As long as reclaim frees frames.
    May,
    /// Once.
    Once,
    /// Not at all.
    Never,
}

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestSpec {
    /// Binary logarithm of the requested frame count, at most 18.
    pub order: u8,
    /// The kind of page.
    pub kind: PageKind,
    /// How much of the reserve the request may use.
    pub urgency: Urgency,
    /// Highest kind of zone that may serve.
    pub limit: ZoneKind,
    /// Index in the executor's list of policies, of which the first is the local one.
    pub policy: u8,
    /// The cpuset, if there is one, with a bit for each of the first eight nodes.
    pub allowed: Option<u8>,
    /// The nodes that may serve.
    pub scope: Scope,
    /// How often the request may reclaim.
    pub wait: Wait,
}

impl RequestSpec {
    /// Returns a plain request for a block of `order`.
    #[must_use]
    pub const fn plain(order: u8) -> Self {
        Self {
            order,
            kind: PageKind::User,
            urgency: Urgency::Normal,
            limit: ZoneKind::Movable,
            policy: 0,
            allowed: None,
            scope: Scope::AnyNode,
            wait: Wait::May,
        }
    }
}

/// A change by an administrator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Setting {
    /// How `pageset.high` is tuned.
    Tuning(PagesetTuning),
    /// How the zonelist cache is used.
    Cache(ZonelistCache),
    /// Node reclaim.
    NodeReclaim(NodeReclaim),
    /// Divisor of a zone's frames for its pageset limit, or 0 for tuned limits.
    HighFraction(u32),
    /// Watermarks and reserves.
    Watermarks {
        /// Frames to keep free in all zones together, or `None` for the default for the machine's size.
        min_free: Option<u16>,
        /// Distance between the watermarks, in ten-thousandths of a zone.
        scale_factor: u32,
        /// For each kind of zone, the divisor of the zones above it that determines its reserve.
        lowmem_reserve_ratio: [u32; ZoneKind::COUNT],
    },
}

/// A range of frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameSpec {
    /// A range in a zone's span.
    InZone {
        /// The zone.
        zone: u8,
        /// Index of the first frame in the zone's span.
        first: u16,
        /// Number of frames, or `u16::MAX` for all frames to the end of the managed range there.
        count: u16,
    },
    /// Any range, even outside all zones.
    Anywhere {
        /// The first frame.
        first: u16,
        /// Number of frames.
        count: u16,
    },
}

/// How a fence ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FenceEnd {
    /// Its frames become free.
    Release,
    /// Its frames are allocated as this kind, if it is whole.
    Alloc(PageKind),
    /// Its frames go offline, if none is in use.
    Offline,
}

/// One step of a history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// A request for one block.
    Alloc(RequestSpec),
    /// A request for many single frames at once.
    AllocBulk {
        /// The request for each frame, whose order is ignored.
        spec: RequestSpec,
        /// Number of frames.
        count: u8,
    },
    /// Requests several adjacent frames.
    AllocFrames {
        /// The request, whose order is the alignment.
        spec: RequestSpec,
        /// Number of frames.
        count: u16,
    },
    /// Requests exactly these frames.
    AllocRange {
        /// The frames.
        span: FrameSpec,
        /// Kind as which they are allocated.
        kind: PageKind,
    },
    /// Frees the n-th held block or run by its first frame and a number of frames.
    FreeFrames {
        /// Index of the block.
        nth: u16,
        /// Difference between this number and the number of frames held.
        more: i8,
    },
    /// Splits the n-th held block or run.
    Split {
        /// Index of the block.
        nth: u16,
        /// Order of the parts.
        to: u8,
    },
    /// Retires a frame of the n-th held block, or near its end. If no block is held, retires a frame of a zone.
    Retire {
        /// Index of the block or zone.
        nth: u16,
        /// Distance from its first frame, modulo a number a little above that of its frames.
        at: u16,
    },
    /// Fences frames, frees the n-th held block or run, requests a page, and ends the fence.
    Fence {
        /// The frames.
        span: FrameSpec,
        /// Index of the block.
        nth: u16,
        /// How the fence ends.
        end: FenceEnd,
    },
    /// Frees the n-th held block by address.
    Free {
        /// Index of the block.
        nth: u16,
    },
    /// Frees held single frames in bulk, starting with the n-th held block.
    FreeBulk {
        /// Index of the first block.
        nth: u16,
        /// Maximum number of frames.
        count: u8,
        /// Whether the first frame is repeated at the end, where the free must be refused.
        repeats_first: bool,
    },
    /// Frees the most recently freed block again.
    FreeAgain,
    /// Frees the frame `offset - 32` frames from the start of the n-th held block or, if no block is held, from the
    /// first frame of a zone. The free may happen to be valid.
    FreeStrange {
        /// Index of the block or zone.
        nth: u16,
        /// 32 + the distance from that frame.
        offset: u8,
        /// The order to pass, or `None` for the block's own order.
        order: Option<u8>,
    },
    /// Frees any frame. The free may happen to be valid.
    FreeAny {
        /// The frame, modulo a number a little above that of the machine's last frame.
        frame: u16,
        /// The order to pass.
        order: u8,
    },
    /// Drains all pagesets.
    Drain,
    /// Runs the tick, which timers call once a second.
    Tick,
    /// Runs the background reclaim of a node.
    Background {
        /// Index of the node.
        node: u8,
    },
    /// Continues on another CPU: one of the machine, or the next id, which the machine does not have.
    RunOn {
        /// Index of the CPU.
        cpu: u8,
    },
    /// Advances the clock.
    Advance {
        /// Milliseconds.
        ms: u16,
    },
    /// Sets the clock, possibly backwards.
    SetClock {
        /// Milliseconds since the start of the clock.
        ms: u16,
    },
    /// Takes a CPU offline.
    CpuOffline {
        /// The CPU, as in `RunOn`.
        cpu: u8,
    },
    /// Brings a CPU online.
    CpuOnline {
        /// The CPU, as in `RunOn`.
        cpu: u8,
    },
    /// Takes frames offline.
    MemoryOffline(FrameSpec),
    /// Takes frames offline after it has freed all blocks and runs among them.
    MemoryMoved(FrameSpec),
    /// Brings frames online.
    MemoryOnline(FrameSpec),
    /// Brings the n-th offline range back online. If no range is offline, tries to bring a frame online that already
    /// is.
    MemoryBack {
        /// Index of the range.
        nth: u8,
    },
    /// Makes the reclaimer report this many frames more than it has on each node, from now on.
    Promise {
        /// Number of additional frames.
        pages: u8,
    },
    /// Changes the mode of the reclaimer.
    SetReclaimMode(ReclaimMode),
    /// Checks everything.
    Check,
    /// Changes a setting.
    Change(Setting),
}

//! What can be done to an allocator, as plain data.
//!
//! Every operation is valid in every world, so that a history can be cut, mixed and mutated: places
//! among blocks, CPUs, zones and ranges are taken modulo how many there are.

use zonal::config::{NodeReclaim, ZonelistCache};
use zonal::request::{PageKind, Urgency};
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::units::ZoneKind;

use super::reclaimer::ReclaimMode;

/// Which nodes may serve beside the one where the search starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// All that the policy leaves.
    AnyNode,
    /// None.
    ThisNode,
}

/// Whether a request may reclaim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// As often as it helps.
    May,
    /// One round.
    Once,
    /// Not at all.
    Never,
}

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestSpec {
    /// Binary logarithm of the frames asked for; up to 18.
    pub order: u8,
    /// What they will hold.
    pub kind: PageKind,
    /// How deep into the reserve it may go.
    pub urgency: Urgency,
    /// Highest kind of zone.
    pub limit: ZoneKind,
    /// Place in the executor's list of policies; the first is the local one.
    pub policy: u8,
    /// The cpuset, if there is one: a bit for each of the first eight nodes.
    pub allowed: Option<u8>,
    /// Which nodes may serve.
    pub scope: Scope,
    /// Whether it may reclaim.
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

/// What an administrator changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Setting {
    /// How `pageset.high` is tuned.
    Tuning(PagesetTuning),
    /// How the zonelist cache is used.
    Cache(ZonelistCache),
    /// Node reclaim.
    NodeReclaim(NodeReclaim),
    /// Fraction of a zone that pagesets may hold; 0 = tuned.
    HighFraction(u32),
    /// Watermarks and reserves.
    Watermarks {
        /// Frames kept free over all zones; `None` follows from the machine's size.
        min_free: Option<u16>,
        /// Distance of the marks, in ten-thousandths of a zone.
        scale_factor: u32,
        /// By kind of zone: one frame in so many of the zones above is reserved.
        lowmem_reserve_ratio: [u32; ZoneKind::COUNT],
    },
}

/// Some frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameSpec {
    /// Of a zone's span.
    InZone {
        /// Which zone.
        zone: u8,
        /// From which frame of its span on.
        first: u16,
        /// How many; `u16::MAX` = to the end of the managed run there.
        count: u16,
    },
    /// Any, whether zones span them or not.
    Anywhere {
        /// The first frame.
        first: u16,
        /// How many.
        count: u16,
    },
}

/// One step of a history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// A request for one block.
    Alloc(RequestSpec),
    /// A request for many single frames at once.
    AllocBulk {
        /// What each frame is asked for as; its order does not count.
        spec: RequestSpec,
        /// How many.
        count: u8,
    },
    /// Frees the n-th block held, by address.
    Free {
        /// Which one.
        nth: u16,
    },
    /// Frees single frames together, from the n-th block held on.
    FreeBulk {
        /// Where to begin.
        nth: u16,
        /// How many at most.
        count: u8,
        /// Whether the first of them is freed once more at the end, which must be refused.
        repeats_first: bool,
    },
    /// Frees what was freed last once more.
    FreeAgain,
    /// Frees whatever lies `offset - 32` frames from the n-th block held, or from the first frame of a
    /// zone when nothing is; a right free if it happens to be one.
    FreeStrange {
        /// Which block, or zone.
        nth: u16,
        /// How far from it.
        offset: u8,
        /// Given as the block's order; `None` = its own.
        order: Option<u8>,
    },
    /// Frees any frame; a right free if it happens to be one.
    FreeAny {
        /// Which one.
        frame: u16,
        /// Given as the block's order.
        order: u8,
    },
    /// Gives back what pagesets keep.
    Drain,
    /// What happens once a second.
    Tick,
    /// Background reclaim of a node.
    Background {
        /// Place of the node.
        node: u8,
    },
    /// Goes on with another CPU: one of the machine or, just beyond, one that it does not have.
    RunOn {
        /// Which one.
        cpu: u8,
    },
    /// Time passes.
    Advance {
        /// Milliseconds.
        ms: u16,
    },
    /// The clock is set, backwards too.
    SetClock {
        /// Milliseconds since its start.
        ms: u16,
    },
    /// A CPU goes.
    CpuOffline {
        /// Which one, as in `RunOn`.
        cpu: u8,
    },
    /// A CPU comes.
    CpuOnline {
        /// Which one, as in `RunOn`.
        cpu: u8,
    },
    /// Frames go.
    MemoryOffline(FrameSpec),
    /// Frames come.
    MemoryOnline(FrameSpec),
    /// The n-th range that went comes back; without any, one that is there already is said to come.
    MemoryBack {
        /// Which one.
        nth: u8,
    },
    /// From now on the reclaimer says that it has so many frames of each node more than it has.
    Promise {
        /// How many.
        pages: u8,
    },
    /// The reclaimer does something else from now on.
    SetReclaimMode(ReclaimMode),
    /// Everything is checked.
    Check,
    /// A setting changes.
    Change(Setting),
}

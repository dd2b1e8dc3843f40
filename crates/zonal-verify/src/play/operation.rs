//! What can be done to an allocator, as plain data.
//!
//! Every operation is lawful in every world, so that a history can be cut, mixed and mutated: places
//! among blocks, CPUs, zones and ranges are taken modulo how many there are.

use zonal::config::{NodeReclaim, ZonelistCache};
use zonal::pageset_tuning::PagesetTuning;
use zonal::request::{PageKind, Urgency};
use zonal::units::ZoneKind;

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
pub struct Ask {
    /// Binary logarithm of the frames asked for; up to 18.
    pub order: u8,
    /// What they will hold.
    pub kind: PageKind,
    /// How deep into the reserve it may go.
    pub urgency: Urgency,
    /// Highest kind of zone.
    pub limit: ZoneKind,
    /// Place in the player's list of policies; the first is the local one.
    pub policy: u8,
    /// The cpuset: a bit for each of the first eight nodes; 0 = there is none.
    pub allowed: u8,
    /// Which nodes may serve.
    pub scope: Scope,
    /// Whether it may reclaim.
    pub wait: Wait,
}

impl Ask {
    /// A plain request for a block of `order`.
    #[must_use]
    pub const fn plain(order: u8) -> Self {
        Self {
            order,
            kind: PageKind::User,
            urgency: Urgency::Normal,
            limit: ZoneKind::Movable,
            policy: 0,
            allowed: 0,
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
    HighFraction(u8),
    /// Frames kept free over all zones; `None` follows from the machine's size.
    MinFree(Option<u16>),
}

/// One step of a history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// A request for one block.
    Alloc(Ask),
    /// A request for many single frames at once.
    AllocBulk {
        /// What each frame is asked for as; its order does not count.
        ask: Ask,
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
    /// Frames of a zone's span go.
    MemoryOffline {
        /// Which zone.
        zone: u8,
        /// From which frame of its span on.
        first: u16,
        /// How many; `u16::MAX` = to the end of the managed run there.
        count: u16,
    },
    /// The n-th range that went comes back; without any, one that is there already is said to come.
    MemoryOnline {
        /// Which one.
        nth: u8,
    },
    /// From now on the reclaimer says that it could give up so many frames of each node. It never does.
    Promise {
        /// How many.
        pages: u8,
    },
    /// A setting changes.
    Change(Setting),
}

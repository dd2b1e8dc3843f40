//! Events of the page allocator, as the kernel's tracepoints report them.
//!
//! Related files: `tracepoint.rs` reads them from records of the kernel, and `block/` stores them.

use std::sync::Arc;

use zonal::units::{CpuId, Moment, NodeId, Order, PageCount, Pfn};

/// The kernel's id of a thread, which tracepoints call `pid`. 0 is the idle thread of every CPU.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Tid(pub i32);

/// Flags of a request, whose bits differ between kernels. [`Header::gfp_names`](crate::Header::gfp_names) has their
/// names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Gfp(pub u64);

/// A migratetype, as the kernel numbers them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Migratetype(pub i32);

impl Migratetype {
    /// Returns the kernel's name of the types that have had the same number since 4.12, and `None` for others.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        match self.0 {
            0 => Some("Unmovable"),
            1 => Some("Movable"),
            2 => Some("Reclaimable"),
            3 => Some("HighAtomic"),
            _ => None,
        }
    }
}

/// An event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// When it happened, by the clock that [`Header::clock`](crate::Header::clock) names.
    pub at: Moment,
    /// The CPU on which it happened.
    pub cpu: CpuId,
    /// The thread that ran there.
    pub thread: Tid,
    /// What happened.
    pub action: Action,
}

/// What happened. Tracepoints are named as in the group `kmem`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// `mm_page_alloc`: a request was served or failed.
    Alloc {
        /// The first frame; `None` if the request failed.
        page: Option<Pfn>,
        /// The requested order.
        order: Order,
        /// The request's flags.
        gfp: Gfp,
        /// The requested migratetype.
        migratetype: Migratetype,
    },
    /// `mm_page_free`: a block was freed.
    Free {
        /// The first frame.
        page: Pfn,
        /// The block's order.
        order: Order,
    },
    /// `mm_page_free_batched`: a frame was freed as a part of a list. The same frame has a [`Action::Free`].
    FreeBatched {
        /// The frame.
        page: Pfn,
    },
    /// `mm_page_pcpu_drain`: a block went from a pageset to the free areas of its zone.
    Drain {
        /// The first frame.
        page: Pfn,
        /// The block's order.
        order: Order,
        /// The block's migratetype.
        migratetype: Migratetype,
    },
    /// `mm_page_alloc_zone_locked`: a block was taken from the free areas of a zone under its lock.
    ZoneLocked {
        /// The first frame; `None` if there was no block.
        page: Option<Pfn>,
        /// The block's order.
        order: Order,
        /// The requested migratetype.
        migratetype: Migratetype,
        /// Whether the block's order and migratetype are those of blocks in pagesets.
        is_refill: bool,
    },
    /// `mm_page_alloc_extfrag`: a block of another migratetype was taken.
    Fallback {
        /// The first frame.
        page: Pfn,
        /// The requested order.
        order: Order,
        /// The order of the block that was split.
        from_order: Order,
        /// The requested migratetype.
        migratetype: Migratetype,
        /// The migratetype of the block that was split.
        from_migratetype: Migratetype,
        /// Whether the whole page block changed its migratetype.
        changes_owner: bool,
    },
    /// `mm_setup_per_zone_wmarks`: the kernel computed a zone's watermarks.
    Watermarks {
        /// The zone's node.
        node: NodeId,
        /// The zone's name.
        zone: Arc<str>,
        /// The watermarks `min`, `low` and `high`.
        marks: [PageCount; 3],
        /// The watermark `promo`, which kernels before 5.18 do not have.
        promo: Option<PageCount>,
    },
    /// `mm_setup_per_zone_lowmem_reserve`: the kernel computed what a zone keeps from requests that another would serve.
    LowmemReserve {
        /// The zone's node.
        node: NodeId,
        /// The zone's name.
        zone: Arc<str>,
        /// The highest zone that the requests may use.
        upper: Arc<str>,
        /// The reserve.
        pages: PageCount,
    },
    /// `task_newtask` or `task_rename`: a thread got a name.
    Named {
        /// The thread.
        thread: Tid,
        /// Its name.
        name: Arc<str>,
    },
    /// Events of this CPU were lost before this moment, because its ring buffer was full.
    Lost {
        /// The number of events, if the kernel reports it.
        events: Option<u64>,
    },
}

/// The kind of an event, in the order in which `info` and trailers list them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// [`Action::Alloc`].
    Alloc,
    /// [`Action::Free`].
    Free,
    /// [`Action::FreeBatched`].
    FreeBatched,
    /// [`Action::Drain`].
    Drain,
    /// [`Action::ZoneLocked`].
    ZoneLocked,
    /// [`Action::Fallback`].
    Fallback,
    /// [`Action::Watermarks`].
    Watermarks,
    /// [`Action::LowmemReserve`].
    LowmemReserve,
    /// [`Action::Named`].
    Named,
    /// [`Action::Lost`].
    Lost,
}

impl Kind {
    /// Number of kinds.
    pub const COUNT: usize = 10;
    /// All kinds.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Alloc,
        Self::Free,
        Self::FreeBatched,
        Self::Drain,
        Self::ZoneLocked,
        Self::Fallback,
        Self::Watermarks,
        Self::LowmemReserve,
        Self::Named,
        Self::Lost,
    ];

    /// Returns the index in [`Kind::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns the tracepoint's name, and our own name for kinds that are no page-allocator tracepoint.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alloc => "mm_page_alloc",
            Self::Free => "mm_page_free",
            Self::FreeBatched => "mm_page_free_batched",
            Self::Drain => "mm_page_pcpu_drain",
            Self::ZoneLocked => "mm_page_alloc_zone_locked",
            Self::Fallback => "mm_page_alloc_extfrag",
            Self::Watermarks => "mm_setup_per_zone_wmarks",
            Self::LowmemReserve => "mm_setup_per_zone_lowmem_reserve",
            Self::Named => "thread_named",
            Self::Lost => "events_lost",
        }
    }
}

impl Action {
    /// Returns the kind.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Alloc { .. } => Kind::Alloc,
            Self::Free { .. } => Kind::Free,
            Self::FreeBatched { .. } => Kind::FreeBatched,
            Self::Drain { .. } => Kind::Drain,
            Self::ZoneLocked { .. } => Kind::ZoneLocked,
            Self::Fallback { .. } => Kind::Fallback,
            Self::Watermarks { .. } => Kind::Watermarks,
            Self::LowmemReserve { .. } => Kind::LowmemReserve,
            Self::Named { .. } => Kind::Named,
            Self::Lost { .. } => Kind::Lost,
        }
    }

    /// Returns the first frame, if the event has one.
    #[must_use]
    pub const fn page(&self) -> Option<Pfn> {
        match self {
            Self::Alloc { page, .. } | Self::ZoneLocked { page, .. } => *page,
            Self::Free { page, .. }
            | Self::FreeBatched { page }
            | Self::Drain { page, .. }
            | Self::Fallback { page, .. } => Some(*page),
            _ => None,
        }
    }

    /// Returns the order of the event's block, if it has one: what was requested, freed or moved.
    #[must_use]
    pub const fn order(&self) -> Option<Order> {
        match self {
            Self::Alloc { order, .. }
            | Self::ZoneLocked { order, .. }
            | Self::Free { order, .. }
            | Self::Drain { order, .. }
            | Self::Fallback { order, .. } => Some(*order),
            Self::FreeBatched { .. } => Some(Order::PAGE),
            _ => None,
        }
    }

    /// Replaces the first frame of an event that has one.
    pub(crate) fn set_page(&mut self, new: Pfn) {
        match self {
            Self::Alloc { page: Some(page), .. }
            | Self::ZoneLocked { page: Some(page), .. }
            | Self::Free { page, .. }
            | Self::FreeBatched { page }
            | Self::Drain { page, .. }
            | Self::Fallback { page, .. } => *page = new,
            _ => {}
        }
    }
}

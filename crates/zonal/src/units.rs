//! The units of the allocator: types for frames, counts of frames, orders, nodes, zones, CPUs and time.
//!
//! A position ([`Pfn`]) and a length ([`PageCount`]) are different types, and only meaningful arithmetic is defined.
//! The difference of two positions is a length, and the sum of a position and a length is a position. Two positions
//! cannot be added.

use core::fmt;
use core::num::NonZeroU64;

/// Number of possible node ids: ids are `0..MAX_NODES`, as in Linux kernels configured with `NODES_SHIFT` = 10.
pub const MAX_NODES: usize = 1024;

/// Maximum number of processes that share an allocator ([`Config::processes`](crate::Config::processes)).
pub const PROCESSES_MAX: u8 = 64;
/// Number of possible CPU ids: ids are `0..MAX_CPUS`. Linux kernels are configured for at most 8192 CPUs.
pub const MAX_CPUS: usize = 1 << 20;

/// Largest order that can be configured: blocks of `2^18` frames.
pub const MAX_ORDER_LIMIT: u8 = 18;

/// Page frame number: the position of one physical frame, in frames from address 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Pfn(u64);

impl Pfn {
    /// Creates the frame number `frame`.
    #[must_use]
    pub const fn new(frame: u64) -> Self {
        Self(frame)
    }

    /// Returns the frame number as an integer.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Whether this frame can be the first in a naturally aligned block of `order`.
    #[must_use]
    pub const fn is_aligned_to(self, order: Order) -> bool {
        self.0 & (order.pages().get() - 1) == 0
    }

    /// Returns the frame `count` frames after this one.
    ///
    /// # Panics
    /// Panics if the sum exceeds `u64::MAX`.
    #[must_use]
    pub const fn plus(self, count: PageCount) -> Self {
        Self(self.0.checked_add(count.0).expect("there is no frame beyond u64::MAX"))
    }

    /// Returns the number of frames from `start` up to this frame, or `None` if `start` is above this frame.
    #[must_use]
    pub const fn offset_from(self, start: Self) -> Option<PageCount> {
        match self.0.checked_sub(start.0) {
            Some(count) => Some(PageCount(count)),
            None => None,
        }
    }
}

/// A number of page frames.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PageCount(u64);

impl PageCount {
    /// No frames.
    pub const ZERO: Self = Self(0);

    /// Creates a count of `pages` frames.
    #[must_use]
    pub const fn new(pages: u64) -> Self {
        Self(pages)
    }

    /// Returns the count as an integer.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the sum of two counts.
    ///
    /// # Panics
    /// Panics if the sum exceeds `u64::MAX`.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.checked_add(other.0).expect("counts of frames are at most u64::MAX"))
    }

    /// Returns the difference of two counts, or zero if `other` is larger.
    #[must_use]
    pub const fn saturating_minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl core::iter::Sum for PageCount {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Self::plus)
    }
}

/// Binary logarithm of a block's length in frames; at most [`MAX_ORDER_LIMIT`].
// As wide as fills a `Block`, because padding of a returned block would be copied too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Order(u32);

impl Order {
    /// One frame.
    pub const PAGE: Self = Self(0);
    /// The default largest order: 1024 frames, 4 MiB of 4 KiB pages.
    pub const DEFAULT_MAX: Self = Self(10);

    /// Returns the order `order`, or `None` above [`MAX_ORDER_LIMIT`].
    #[must_use]
    pub const fn new(order: u8) -> Option<Self> {
        if order <= MAX_ORDER_LIMIT { Some(Self(order as u32)) } else { None }
    }

    /// Returns the smallest order whose blocks have at least `count` frames, or `None` if no order is large enough.
    #[must_use]
    pub const fn holding(count: PageCount) -> Option<Self> {
        // Above 2^63 the next power of two does not fit in 64 bits.
        let Some(covering) = count.get().checked_next_power_of_two() else { return None };
        let order = covering.trailing_zeros();
        if order <= MAX_ORDER_LIMIT as u32 { Some(Self(order)) } else { None }
    }

    /// Returns the order as an integer.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0 as u8
    }

    /// Returns the number of frames in a block with this order.
    #[must_use]
    pub const fn pages(self) -> PageCount {
        PageCount(1 << self.0)
    }
}

/// A NUMA node id: `0..`[`MAX_NODES`]. The ids of a machine may be sparse.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct NodeId(u16);

impl NodeId {
    /// Returns the node id `id`, or `None` at [`MAX_NODES`] and above.
    #[must_use]
    pub const fn new(id: u16) -> Option<Self> {
        if (id as usize) < MAX_NODES { Some(Self(id)) } else { None }
    }

    /// Returns the id as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns the id as an integer.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Returns the node id with this index, which must be valid because the allocator stored it.
    pub(crate) const fn from_index(index: usize) -> Self {
        assert!(index < MAX_NODES);
        Self(index as u16)
    }
}

/// The id of a zone: its index in the machine's list of zones, from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ZoneId(u16);

impl ZoneId {
    /// Number of possible zone ids: one zone of each kind on [`MAX_NODES`] nodes.
    pub const COUNT: usize = MAX_NODES * ZoneKind::COUNT;

    /// Returns the id of the zone at `index` in the machine's list, or `None` at [`ZoneId::COUNT`] and above.
    #[must_use]
    pub const fn new(index: usize) -> Option<Self> {
        if index < Self::COUNT { Some(Self(index as u16)) } else { None }
    }

    /// Returns the index in the machine's list of zones.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    pub(crate) const fn from_index(index: usize) -> Self {
        assert!(index < Self::COUNT);
        Self(index as u16)
    }
}

/// A logical CPU id, as the operating system numbers CPUs; ids may be sparse.
///
/// Metadata has 28 bytes for each id up to the largest, and everything else only for CPUs that exist. Ids of interrupt
/// controllers can therefore be used as they are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct CpuId(u32);

impl CpuId {
    /// Returns the CPU id `id`.
    #[must_use]
    pub const fn new(id: u32) -> Self {
        Self(id)
    }

    /// Returns the id as an integer.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns the id as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A moment of the platform's coarse clock, in nanoseconds since a start that the platform chooses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Moment(u64);

impl Moment {
    /// Returns the moment `ns` nanoseconds after the clock's start.
    #[must_use]
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// Returns the moment at which a clock with `per_second` ticks a second has counted `ticks`.
    ///
    /// The result is rounded down to a nanosecond. It is the largest moment if it would be later, after 584 years.
    ///
    /// ```
    /// use core::num::NonZeroU64;
    /// use zonal::units::Moment;
    ///
    /// const JIFFIES: NonZeroU64 = NonZeroU64::new(250).unwrap();
    /// assert_eq!(Moment::from_ticks(1000, JIFFIES), Moment::from_ns(4_000_000_000));
    /// ```
    #[must_use]
    pub const fn from_ticks(ticks: u64, per_second: NonZeroU64) -> Self {
        let (seconds, rest) = (ticks / per_second.get(), ticks % per_second.get());
        // The rest is less than a second, so its nanoseconds fit.
        let rest = rest as u128 * SECOND_NS as u128 / per_second.get() as u128;
        Self(seconds.saturating_mul(SECOND_NS).saturating_add(rest as u64))
    }

    /// Returns the nanoseconds since the clock's start.
    #[must_use]
    pub const fn ns(self) -> u64 {
        self.0
    }

    /// Returns the nanoseconds from `earlier` to this moment, or zero if the clock went backwards.
    #[must_use]
    pub const fn ns_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// One second of the coarse clock, in nanoseconds.
pub const SECOND_NS: u64 = 1_000_000_000;

/// The kinds of zone, in ascending order, from the lowest memory to the highest. Linux: `enum zone_type`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ZoneKind {
    /// Memory that devices with the most limited addressing can access (below 16 MiB on x86).
    Dma,
    /// Memory that devices with 32-bit addressing can access.
    Dma32,
    /// Ordinary memory.
    Normal,
    /// Memory that only movable contents may occupy.
    Movable,
}

impl ZoneKind {
    /// Number of kinds.
    pub const COUNT: usize = 4;
    /// All kinds, in ascending order.
    pub const ALL: [Self; Self::COUNT] = [Self::Dma, Self::Dma32, Self::Normal, Self::Movable];

    /// Returns the index in [`ZoneKind::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns Linux's name of the kind, as `/proc/zoneinfo` prints it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dma => "DMA",
            Self::Dma32 => "DMA32",
            Self::Normal => "Normal",
            Self::Movable => "Movable",
        }
    }
}

macro_rules! display_number {
    ($($unit:ident),*) => {$(
        impl fmt::Display for $unit {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    )*};
}
display_number!(Pfn, PageCount, Order, NodeId, ZoneId, CpuId);

impl fmt::Display for ZoneKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The content kinds of allocated frames, which the allocator counts separately.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PageKind {
    /// Memory of user programs.
    #[default]
    User,
    /// Cached contents that can be read again from their source.
    Cache,
    /// The embedder's own structures.
    Kernel,
}

impl PageKind {
    /// Number of kinds.
    pub const COUNT: usize = 3;
    /// All kinds.
    pub const ALL: [Self; Self::COUNT] = [Self::User, Self::Cache, Self::Kernel];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_and_lengths() {
        let start = Pfn::new(1 << 20);
        let order = Order::new(9).unwrap();
        assert!(start.is_aligned_to(order));
        assert_eq!(start.plus(order.pages()).offset_from(start), Some(PageCount::new(512)));
        assert_eq!(start.offset_from(start.plus(PageCount::new(1))), None);
        assert!(!start.plus(PageCount::new(256)).is_aligned_to(order));
    }

    #[test]
    fn sums_at_the_limit() {
        let last = PageCount::new(u64::MAX - 5);
        assert_eq!(Pfn::new(5).plus(last), Pfn::new(u64::MAX));
        assert_eq!(PageCount::new(5).plus(last), PageCount::new(u64::MAX));
        std::panic::catch_unwind(|| Pfn::new(6).plus(last)).unwrap_err();
        std::panic::catch_unwind(|| PageCount::new(6).plus(last)).unwrap_err();
    }

    #[test]
    fn bounds_of_ids_and_orders() {
        assert_eq!(Order::new(MAX_ORDER_LIMIT + 1), None);
        assert_eq!(Order::holding(PageCount::new(513)), Order::new(10));
        assert_eq!(Order::holding(PageCount::new(1)), Some(Order::PAGE));
        assert_eq!(Order::holding(PageCount::new(1 << MAX_ORDER_LIMIT)), Order::new(MAX_ORDER_LIMIT));
        for frames in [(1 << MAX_ORDER_LIMIT) + 1, 1 << 63, (1 << 63) + 1, u64::MAX] {
            assert_eq!(Order::holding(PageCount::new(frames)), None, "{frames}");
        }
        assert_eq!(NodeId::new(1024), None);
        assert_eq!(NodeId::new(1023).unwrap().index(), 1023);
    }
}

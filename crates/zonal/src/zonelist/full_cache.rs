//! The zonelist cache (mechanisms M1 and M3 of the README): records which zones of a zonelist were full in the last
//! second.
//!
//! The cache has a *full bit* for each position of a zonelist. Full bits are hints. They are set and cleared without a
//! lock, may be lost or stale, and are all cleared (*wiped*) after a second. A full bit applies to all scans that would
//! fail for the same reason. Each class of scans ([`ScanClass`]) has its own bitmap, and a full bit is set in the
//! bitmaps of all classes to which it applies. A scan therefore reads only one bitmap, and skips 64 full zones at a
//! time. In the past forms of the cache, all scans have one class. Source: Jackson 2006, Linux 9276b1bc96a1.
//! Related files: `zonelist/mod.rs` has the lists, and `alloc/scan.rs` sets the bits and reads them.

use core::sync::atomic::Ordering::Relaxed;

use crate::metadata::arena::{Arena, Measure};
use crate::metadata::regions::holds;
use crate::platform::cells::copy_view;
use crate::platform::{Atomic, Platform};
use crate::rules::watermarks::{Urgency, Watermark};
use crate::rules::zonelist_cache::ScanForm;
use crate::units::{MAX_NODES, Moment, Order, SECOND_NS, ZoneKind};
use crate::zone::order_classes::OrderClasses;

/// Words in a bitmap over the positions of any list.
pub(super) const POSITION_WORDS: usize = MAX_NODES * ZoneKind::COUNT / 64;
const ORDER_CLASSES: usize = OrderClasses::COUNT;
const MARKS: usize = 2;
/// Number of urgencies with full bits: normal, high and atomic. `Reserve` checks no watermark and therefore no full
/// bit.
const URGENCIES: usize = 3;
const CLASSES: usize = ORDER_CLASSES * MARKS * URGENCIES * ZoneKind::COUNT;

/// The properties of a scan that determine which full bits apply to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ScanClass {
    pub(crate) order_class: usize,
    watermark: Watermark,
    urgency: usize,
    limit: usize,
    /// Whether its full bits apply to no other zone limit.
    is_alone: bool,
}

impl ScanClass {
    /// Returns the class of a scan. In a past form, all scans have one, or those with the same zone limit if the form
    /// separates limits.
    pub(crate) fn of(
        form: Option<&dyn ScanForm>,
        order: Order,
        watermark: Watermark,
        urgency: Urgency,
        limit: ZoneKind,
    ) -> Self {
        if let Some(form) = form {
            let (order_class, watermark) = (ORDER_CLASSES - 1, Watermark::Low);
            let limit = if form.separates_limits() { limit.index() } else { ZoneKind::COUNT - 1 };
            return Self { order_class, watermark, urgency: 0, limit, is_alone: true };
        }
        let urgency = (urgency as usize).min(URGENCIES - 1);
        let (order_class, limit) = (OrderClasses::class_of(order), limit.index());
        Self { order_class, watermark, urgency, limit, is_alone: false }
    }

    const fn index(self) -> usize {
        let at = self.limit * URGENCIES + self.urgency;
        (at * MARKS + self.watermark as usize) * ORDER_CLASSES + self.order_class
    }

    /// Returns the order classes to which a full bit set by this scan applies.
    pub(crate) const fn bound_orders(self) -> OrderClasses {
        OrderClasses(OrderClasses::ALL.0 & !0 << self.order_class)
    }

    /// Calls `apply` with each class to which a full bit set by this scan applies.
    ///
    /// These have the same or a higher order class, watermark and zone limit, and the same or a lower urgency.
    fn for_each_bound(self, mut apply: impl FnMut(Self)) {
        let limits = self.limit..if self.is_alone { self.limit + 1 } else { ZoneKind::COUNT };
        let is_harder = |mark: &Watermark| *mark >= self.watermark;
        for limit in limits {
            for urgency in 0..=self.urgency {
                for watermark in [Watermark::Min, Watermark::Low].into_iter().filter(is_harder) {
                    for order_class in self.order_class..ORDER_CLASSES {
                        apply(Self { order_class, watermark, urgency, limit, ..self });
                    }
                }
            }
        }
    }
}

/// The full bits of one zonelist.
pub(crate) struct FullBits<'m, P: Platform> {
    /// `CLASSES` bitmaps of `words` words each.
    bitmaps: &'m [P::U64],
    words: usize,
    /// Time when the full bits were last wiped, in clock nanoseconds.
    wiped_at: &'m P::U64,
}

copy_view!(FullBits);

// All accesses are relaxed, because a full bit protects no data, and a lost or late bit is corrected by a later scan or
// wipe.
impl<'m, P: Platform> FullBits<'m, P> {
    pub(super) fn measure(measure: &mut Measure, positions: usize) {
        measure.add::<P::U64>(CLASSES * positions.div_ceil(64) + 1);
    }

    pub(super) fn build(arena: &mut Arena<'m>, positions: usize) -> Self {
        let words = positions.div_ceil(64);
        let cells = arena.u64s::<P>(CLASSES * words + 1);
        Self { bitmaps: &cells[1..], words, wiped_at: &cells[0] }
    }

    /// Whether the byte at `address` is in the full bits or the time of their last wipe.
    pub(super) fn holds(&self, address: usize) -> bool {
        holds(self.bitmaps, address) || holds(self.wiped_at, address)
    }

    /// Wipes all full bits if they are stale; returns whether it wiped them. Called before a scan uses the bits.
    pub(crate) fn set_up(&self, now: Moment) -> bool {
        let stale = self.age(now).is_none();
        if stale {
            self.wiped_at.store(now.ns(), Relaxed);
            self.wipe();
        }
        stale
    }

    /// Returns the time in nanoseconds since the last wipe, or `None` if the full bits are stale: the last wipe was more than a
    /// second ago, or the clock was set back. A scan then wipes them.
    pub(crate) fn age(&self, now: Moment) -> Option<u64> {
        let wiped_at = Moment::from_ns(self.wiped_at.load(Relaxed));
        let age = now.ns_since(wiped_at);
        (age <= SECOND_NS && now >= wiped_at).then_some(age)
    }

    /// Clears every full bit.
    pub(crate) fn wipe(&self) {
        for word in self.bitmaps {
            if word.load(Relaxed) != 0 {
                word.store(0, Relaxed);
            }
        }
    }

    /// Sets the full bit of `position` for every class to which a bit set by `class` applies; returns whether it set a new
    /// bit.
    pub(crate) fn set_full(&self, class: ScanClass, position: usize) -> bool {
        let (mut is_new, bit) = (false, 1 << (position % 64));
        class.for_each_bound(|bound| {
            let word = &self.bitmap(bound)[position / 64];
            is_new |= word.load(Relaxed) & bit == 0 && word.fetch_or(bit, Relaxed) & bit == 0;
        });
        is_new
    }

    /// Clears the full bits of `position` that apply to scans for `orders`.
    pub(super) fn clear(&self, position: usize, orders: OrderClasses) {
        let bit = 1 << (position % 64);
        for class in (0..CLASSES).filter(|class| orders.contains(class % ORDER_CLASSES)) {
            let word = &self.bitmaps[class * self.words + position / 64];
            if word.load(Relaxed) & bit != 0 {
                word.fetch_and(!bit, Relaxed);
            }
        }
    }

    /// Returns the full bits that apply to scans of `class`, by position.
    #[inline]
    pub(crate) fn bitmap(&self, class: ScanClass) -> &'m [P::U64] {
        &self.bitmaps[class.index() * self.words..][..self.words]
    }
}

/// A copy of one scan class's full bits, for scans that must not change them.
pub(crate) struct BitsCopy<P: Platform> {
    words: [P::U64; POSITION_WORDS],
    class: Option<ScanClass>,
}

impl<P: Platform> BitsCopy<P> {
    pub(crate) fn new() -> Self {
        Self { words: core::array::from_fn(|_| P::U64::new(0)), class: None }
    }

    /// Returns the copy with all changes to it, or a new one if it was of another class. A new copy has no bits if a scan
    /// would wipe them.
    pub(crate) fn of(&mut self, full: &FullBits<'_, P>, class: ScanClass, now: Moment) -> &[P::U64] {
        let bits = full.bitmap(class);
        if self.class != Some(class) {
            let keep = full.age(now).map_or(0, |_| u64::MAX);
            for (word, bits) in self.words.iter().zip(bits) {
                word.store(bits.load(Relaxed) & keep, Relaxed);
            }
            self.class = Some(class);
        }
        &self.words[..bits.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::metadata::regions::Part;
    use crate::testing::small;
    use crate::units::NodeId;
    use std::vec::Vec;

    fn every_class() -> impl Iterator<Item = ScanClass> {
        (0..ORDER_CLASSES).flat_map(|order_class| {
            [Watermark::Min, Watermark::Low].into_iter().flat_map(move |watermark| {
                (0..URGENCIES).flat_map(move |urgency| {
                    (0..ZoneKind::COUNT).map(move |limit| ScanClass {
                        order_class,
                        watermark,
                        urgency,
                        limit,
                        is_alone: false,
                    })
                })
            })
        })
    }

    #[test]
    fn cells_lie_in_the_parts_they_belong_to() {
        let allocator = small(&Config::default(), |_| {});
        let full = allocator.state.lists.full(0);
        let cells = [full.bitmaps.first().unwrap(), full.bitmaps.last().unwrap(), full.wiped_at];
        for cell in cells.map(|cell| core::ptr::from_ref(cell).addr()) {
            assert_eq!(allocator.part_at(cell), Some(Part::ZonelistCache(NodeId::from_index(0))));
        }
    }

    #[test]
    fn a_full_bit_applies_to_requests_that_would_fail_for_the_same_reason() {
        let mut places: Vec<usize> = every_class().map(ScanClass::index).collect();
        places.sort_unstable();
        assert!(places.into_iter().eq(0..CLASSES), "a bitmap for each class");
        let alone = (0..ZoneKind::COUNT).map(|limit| ScanClass {
            order_class: ORDER_CLASSES - 1,
            watermark: Watermark::Low,
            urgency: 0,
            limit,
            is_alone: true,
        });
        let bound = |class: ScanClass| {
            let mut bound = Vec::new();
            class.for_each_bound(|class| bound.push(class));
            bound
        };
        alone.for_each(|class| assert_eq!(bound(class), [class]));
        for (marking, next) in every_class().flat_map(|a| every_class().map(move |b| (a, b))) {
            let binds = next.order_class >= marking.order_class
                && next.watermark >= marking.watermark
                && next.urgency <= marking.urgency
                && next.limit >= marking.limit;
            assert_eq!(bound(marking).contains(&next), binds, "{marking:?} {next:?}");
            assert_eq!(
                marking.bound_orders().contains(next.order_class),
                next.order_class >= marking.order_class
            );
        }
    }
}

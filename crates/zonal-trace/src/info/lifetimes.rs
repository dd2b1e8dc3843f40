//! How long blocks live: allocations matched with the frees of their frames.
//!
//! A block may be freed in parts, and a free may be of a block that was allocated before the trace began. Memory is
//! bounded by the blocks that are allocated at one time.
//!
//! Related files: `info/mod.rs` feeds it.

use std::collections::HashMap;

use serde::Serialize;
use zonal::units::{Moment, Order, Pfn};

/// The number of lifetime classes. Class n has those below 2^n ns, and the last one all others.
const CLASSES: usize = 48;

/// The largest order that is looked for around a frame which was freed alone.
const ORDER_MAX: u8 = 10;

/// Lifetimes of blocks.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Debug)]
pub struct Lifetimes {
    /// Blocks that were freed as they were allocated.
    pub whole: u64,
    /// Frees of less than a whole block.
    pub partial: u64,
    /// Frees of blocks that were allocated before the trace began, or whose events were lost.
    pub earlier: u64,
    /// Blocks that were allocated again without a free in the trace.
    pub without_free: u64,
    /// Blocks that were allocated and not freed by the end.
    pub unfreed: u64,
    /// Lifetimes of freed blocks and parts, by powers of two.
    pub classes: Vec<LifetimeClass>,
}

/// The number of lifetimes in a range.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Debug)]
pub struct LifetimeClass {
    /// The end of the range, which is twice its beginning.
    pub below_ns: u64,
    /// The number of freed blocks and parts.
    pub frees: u64,
}

impl Lifetimes {
    /// Returns the lifetime that a share of all frees do not reach, rounded up to a power of two.
    #[must_use]
    pub fn below_ns(&self, share: f64) -> Option<u64> {
        let all: u64 = self.classes.iter().map(|class| class.frees).sum();
        let wanted = (all as f64 * share).ceil() as u64;
        let mut sum = 0;
        self.classes.iter().find_map(|class| {
            sum += class.frees;
            (all > 0 && sum >= wanted).then_some(class.below_ns)
        })
    }
}

/// Allocated blocks by their first frames.
#[derive(Debug)]
pub(super) struct Blocks {
    allocated: HashMap<u64, (Moment, u8)>,
    found: Lifetimes,
    classes: [u64; CLASSES],
}

impl Blocks {
    pub(super) fn new() -> Self {
        Self { allocated: HashMap::new(), found: Lifetimes::default(), classes: [0; CLASSES] }
    }

    pub(super) fn alloc(&mut self, at: Moment, page: Pfn, order: Order) {
        let replaced = self.allocated.insert(page.get(), (at, order.get()));
        self.found.without_free += u64::from(replaced.is_some());
    }

    pub(super) fn free(&mut self, at: Moment, page: Pfn, order: Order) {
        let (page, order) = (page.get(), order.get());
        match self.allocated.get(&page).copied() {
            Some((since, allocated)) if allocated == order => {
                self.allocated.remove(&page);
                self.found.whole += 1;
                self.count(at, since);
            }
            _ => match self.containing(page, order) {
                Some((first, since, allocated)) => {
                    self.split(first, since, allocated, page, order);
                    self.found.partial += 1;
                    self.count(at, since);
                }
                None => self.found.earlier += 1,
            },
        }
    }

    fn count(&mut self, at: Moment, since: Moment) {
        let class = u64::BITS - at.ns_since(since).leading_zeros();
        self.classes[(class as usize).min(CLASSES - 1)] += 1;
    }

    /// Returns the allocated block that has a freed one as a part.
    fn containing(&self, page: u64, order: u8) -> Option<(u64, Moment, u8)> {
        (order + 1..=ORDER_MAX).find_map(|larger| {
            let first = page >> larger << larger;
            let (since, allocated) = *self.allocated.get(&first)?;
            (allocated >= larger).then_some((first, since, allocated))
        })
    }

    /// Replaces a block by its parts, except the freed one.
    fn split(&mut self, first: u64, since: Moment, order: u8, page: u64, freed: u8) {
        self.allocated.remove(&first);
        let mut rest = first;
        for half in (freed..order).rev() {
            let middle = rest.wrapping_add(1 << half);
            let other = if page < middle { middle } else { rest };
            self.allocated.insert(other, (since, half));
            rest = if page < middle { rest } else { middle };
        }
    }

    pub(super) fn finish(mut self) -> Lifetimes {
        self.found.unfreed = self.allocated.len() as u64;
        let last = self.classes.iter().rposition(|frees| *frees > 0).map_or(0, |last| last + 1);
        let first = self.classes.iter().position(|frees| *frees > 0).unwrap_or(0);
        let class = |at: usize| LifetimeClass { below_ns: 1 << at, frees: self.classes[at] };
        self.found.classes = (first..last).map(class).collect();
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(order: u8) -> Order {
        Order::new(order).unwrap()
    }

    #[test]
    fn blocks_are_freed_whole_in_parts_and_unknown() {
        let mut blocks = Blocks::new();
        let at = Moment::from_ns;
        blocks.alloc(at(100), Pfn::new(8), order(2));
        blocks.alloc(at(100), Pfn::new(64), order(0));
        blocks.free(at(1100), Pfn::new(64), order(0));
        // A part in the middle, then the others one by one.
        for page in [10, 8, 11, 9] {
            blocks.free(at(104), Pfn::new(page), order(0));
        }
        blocks.free(at(105), Pfn::new(9), order(0));
        blocks.alloc(at(200), Pfn::new(64), order(0));
        blocks.alloc(at(300), Pfn::new(64), order(1));
        let found = blocks.finish();
        let counts = (found.whole, found.partial, found.earlier, found.without_free, found.unfreed);
        // The last three parts had become blocks of their own: 8 and 11 are halves, and 9 the rest of 8's.
        assert_eq!(counts, (5 - found.partial, found.partial, 1, 1, 1));
        assert_eq!(found.partial, 2);
        assert_eq!(found.classes.first().unwrap(), &LifetimeClass { below_ns: 8, frees: 4 });
        assert_eq!(found.classes.last().unwrap(), &LifetimeClass { below_ns: 1024, frees: 1 });
        assert_eq!((found.below_ns(0.5), found.below_ns(1.0)), (Some(8), Some(1024)));
    }
}

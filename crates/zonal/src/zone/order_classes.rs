//! Classes of orders: for the orders of one class, a zone is usually full at the same time.
//!
//! Related files: `zone/mod.rs` records for which classes a zone may have full bits, and `zonelist/full_cache.rs` has
//! the full bits.

use crate::units::Order;

/// A set of order classes; the classes are order 0, orders 1 to 3, and larger orders.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OrderClasses(pub(crate) u64);

impl OrderClasses {
    pub(crate) const COUNT: usize = 3;
    pub(crate) const ALL: Self = Self((1 << Self::COUNT) - 1);

    pub(crate) const fn contains(self, class: usize) -> bool {
        self.0 & 1 << class != 0
    }

    /// Returns the class of an order.
    pub(crate) const fn class_of(order: Order) -> usize {
        match order.get() {
            0 => 0,
            1..=3 => 1,
            _ => 2,
        }
    }

    /// Returns the classes in the set.
    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        (0..Self::COUNT).filter(move |&class| self.contains(class))
    }
}

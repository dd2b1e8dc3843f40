//! Records which zonelist caches have full bits of a zone, and clears these bits after frees.
//!
//! Related files: `zonelist/full_cache.rs` holds the full bits, `alloc/scan.rs` sets them, and `pageset/drain.rs`
//! clears them before they expire.

use core::sync::atomic::Ordering::Relaxed;

use crate::pageset::StackId;
use crate::pageset::state::MachineState;
use crate::platform::{Atomic, Platform};
use crate::units::Order;
use crate::zone::Zone;
use crate::zone::events::Event;
use crate::zone::order_classes::OrderClasses;

impl<'m, P: Platform> MachineState<'m, P> {
    /// Clears the full bits of a zone that has more than `low` free frames, for the order classes that have free
    /// blocks.
    ///
    /// Called after frames have been freed to the buddy. Linux clears full bits only by age; this rule is our own.
    #[inline]
    pub(crate) fn clear_full_bits_early(&self, zone: &Zone<'_, P>) {
        // Relaxed: full bits are hints.
        let marked = zone.cells.marked.load(Relaxed);
        if marked != 0 && zone.free() > zone.watermarks().low {
            // Each class is represented by the order of its most common requests.
            let usual = [Order::PAGE, self.cached.order(StackId::SMALL), self.cached.order(StackId::LARGE)];
            let free = usual.into_iter().filter(|&order| zone.free_areas.has_block(order, 0));
            let free = free.fold(0, |word, order| word | 1 << OrderClasses::class_of(order));
            self.clear_full_bits(zone, OrderClasses(marked & free));
        }
    }

    /// Clears, in all caches, the full bits of a zone that scans for `orders` check.
    pub(crate) fn clear_full_bits(&self, zone: &Zone<'_, P>, orders: OrderClasses) {
        if orders.0 == 0 {
            return;
        }
        // Relaxed throughout: full bits and this record of them are hints.
        orders.iter().for_each(|class| zone.cells.reclaim_failed_at[class].store(0, Relaxed));
        let left = zone.cells.marked.fetch_and(!orders.0, Relaxed) & !orders.0;
        for (at, word) in zone.full_in.iter().enumerate() {
            let mut targets = word.load(Relaxed);
            if left == 0 && targets != 0 {
                word.fetch_and(!targets, Relaxed);
            }
            while targets != 0 {
                let place = at * 64 + targets.trailing_zeros() as usize;
                if self.lists.clear_full(place, zone.id, zone.node_id, orders) {
                    self.nodes[zone.node].events.add(Event::EarlyClears, 1);
                }
                self.recall_cpus(place);
                targets &= targets - 1;
            }
        }
    }

    /// Records the order classes for which a cache may have full bits of `zone`.
    pub(crate) fn note_full(&self, zone: &Zone<'_, P>, orders: OrderClasses) {
        // Relaxed: a hint. The word is read before it is written, to keep the cache line shared.
        if zone.cells.marked.load(Relaxed) & orders.0 != orders.0 {
            zone.cells.marked.fetch_or(orders.0, Relaxed);
        }
    }
}

//! `/proc/buddyinfo`: one line per zone that has frames, with the free block count of each order.

use core::fmt;

use super::text::Snapshot;
use crate::platform::Platform;
use crate::units::{PageCount, ZoneKind};

pub(super) struct BuddyInfo<'a, 'm, P: Platform>(pub(super) Snapshot<'a, 'm, P>);

impl<P: Platform> fmt::Display for BuddyInfo<'_, '_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let orders = 0..=usize::from(self.0.0.max_order().get());
        for (place, node) in self.0.node_ids().enumerate() {
            let zones = ZoneKind::ALL.into_iter().filter_map(|kind| self.0.zone(place, kind));
            for zone in zones.filter(|zone| zone.managed > PageCount::ZERO) {
                write!(f, "Node {node}, zone {:>8} ", zone.kind.name())?;
                for blocks in &zone.free_blocks[orders.clone()] {
                    write!(f, "{blocks:>6} ")?;
                }
                writeln!(f)?;
            }
        }
        Ok(())
    }
}

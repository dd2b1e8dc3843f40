//! The allocator of a described machine, filled as requested.

use std::collections::BTreeMap;
use std::fs;

use zonal::config::NodeReclaim;
use zonal::machine::FrameRange;
use zonal::platform::one_thread::OneThread;
use zonal::units::{NodeId, PageCount, PageKind, ZoneKind};
use zonal::{Allocator, Config};
use zonal_bench::{DescribedError, with_described};
use zonal_machine::{MachineModel, OwnedMachine};

use crate::outcome::Failure;
use crate::values::Percent;

/// A machine and how full it is to be.
pub(super) struct Filled<'a> {
    model: &'a MachineModel,
    /// Node whose first CPU makes the request.
    node: NodeId,
    fill: &'a [(NodeId, Percent)],
    /// Free frames of this machine's zones now, if it is described.
    free_now: BTreeMap<(NodeId, ZoneKind), PageCount>,
}

impl<'a> Filled<'a> {
    pub(super) fn new(
        model: &'a MachineModel,
        node: NodeId,
        fill: &'a [(NodeId, Percent)],
        is_live: bool,
    ) -> Result<Self, Failure> {
        let file = "/proc/zoneinfo";
        let free_now = if is_live {
            let text = fs::read_to_string(file)
                .map_err(|error| Failure::failed(format!("cannot read {file}: {error}")))?;
            free_frames(&text)
        } else {
            BTreeMap::new()
        };
        Ok(Self { model, node, fill, free_now })
    }

    /// Builds the allocator, fills it, and calls `ask` with it.
    pub(super) fn with<R>(
        &self,
        ask: impl FnOnce(&Allocator<'_, OneThread>) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        let mode = self.model.settings.zone_reclaim_mode;
        let node_reclaim = NodeReclaim::from_mode(mode).map_err(Failure::bad_input)?;
        let config = Config { node_reclaim, ..self.model.config() };
        let owned = OwnedMachine::from(self.model);
        let asked = with_described(&owned, &config, |allocator| {
            self.fill(allocator)?;
            ask(allocator)
        });
        asked.map_err(|error| match error {
            DescribedError::NoMemory { .. } => Failure::failed(error),
            error => Failure::bad_input(error),
        })?
    }

    /// Allocates what is in use, and makes the first CPU of the node the current one.
    fn fill(&self, allocator: &Allocator<'_, OneThread>) -> Result<(), Failure> {
        let node = self.model.online_nodes().find(|node| node.id == self.node);
        if let Some(&cpu) = node.and_then(|node| node.cpus.first()) {
            allocator.platform().set_current_cpu(cpu);
        }
        let zones: Vec<_> = allocator.zones().collect();
        for zone in zones {
            let share = self.fill.iter().rfind(|(node, _)| *node == zone.node);
            let all = zone.managed.get();
            let used = match (share, self.free_now.get(&(zone.node, zone.kind))) {
                (Some((_, Percent(percent))), _) => (u128::from(all) * u128::from(*percent) / 100) as u64,
                (None, Some(free)) => all.saturating_sub(free.get()),
                (None, None) => 0,
            };
            if used != 0 {
                let range = FrameRange { start: zone.span.start, count: PageCount::new(used) };
                allocator.alloc_range(range, PageKind::User).map_err(Failure::failed)?;
            }
        }
        Ok(())
    }
}

/// Returns each zone's free frames in the text of `/proc/zoneinfo`.
fn free_frames(text: &str) -> BTreeMap<(NodeId, ZoneKind), PageCount> {
    let (mut zone, mut free) = (None, BTreeMap::new());
    for line in text.lines() {
        let words: Vec<&str> = line.split([' ', ',']).filter(|word| !word.is_empty()).collect();
        match words[..] {
            ["Node", node, "zone", kind] => {
                let kind = ZoneKind::ALL.into_iter().find(|known| known.to_string() == kind);
                zone = node.parse().ok().and_then(NodeId::new).zip(kind);
            }
            ["pages", "free", count] => {
                if let (Some(zone), Ok(count)) = (zone, count.parse()) {
                    free.insert(zone, PageCount::new(count));
                }
            }
            _ => {}
        }
    }
    free
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_frames_are_read_by_zone() {
        let text = "Node 0, zone    DMA32\n  per-node stats\n      nr_inactive_anon 5\n  pages free     2816\n        \
                    boost    0\nNode 1, zone   Normal\n  pages free     77\nNode 1, zone   Device\n  pages free 9\n";
        let id = |id| NodeId::new(id).unwrap();
        let expected = [((id(0), ZoneKind::Dma32), 2816), ((id(1), ZoneKind::Normal), 77)];
        assert!(free_frames(text).into_iter().eq(expected.map(|(zone, free)| (zone, PageCount::new(free)))));
    }
}

//! The allocator of a described machine, filled as requested.

use zonal::config::NodeReclaim;
use zonal::explain::ZoneName;
use zonal::machine::FrameRange;
use zonal::rules::watermarks::{Watermark, Watermarks};
use zonal::units::{NodeId, Order, PageCount, PageKind};
use zonal::{Allocator, Config};
use zonal_bench::{Described, DescribedError, with_described};
use zonal_machine::state::Sample;
use zonal_machine::{MachineModel, OwnedMachine, ZoneModel};

use super::{ExplainArgs, Fill};
use crate::outcome::Failure;
use crate::values::Percent;

/// A machine and how full it is to be.
#[derive(Clone)]
pub(super) struct Filled<'a> {
    pub(super) model: &'a MachineModel,
    pub(super) config: Config,
    /// Node whose first CPU makes the request.
    pub(super) node: NodeId,
    /// State of the machine, if it is known.
    pub(super) state: Option<&'a Sample>,
    pub(super) args: &'a ExplainArgs,
    /// Frames of a zone that reclaim has freed.
    pub(super) freed: Option<(ZoneName, PageCount)>,
}

/// Returns how many frames node reclaim wants for a block.
pub(super) fn reclaim_target(order: Order) -> PageCount {
    const AT_LEAST: PageCount = PageCount::new(32);
    order.pages().max(AT_LEAST)
}

impl Filled<'_> {
    /// Builds the allocator, fills it, and calls `ask` with it.
    pub(super) fn with<R>(
        &self,
        ask: impl FnOnce(&Allocator<'_, Described>) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        let mode = self.model.settings.zone_reclaim_mode;
        let node_reclaim = NodeReclaim::from_mode(mode).map_err(Failure::bad_input)?;
        let config = Config { node_reclaim, ..self.config };
        let owned = OwnedMachine::from(self.model);
        let asked = with_described(&owned, &config, Described::new(self.reclaimable()), |allocator| {
            self.fill(allocator)?;
            ask(allocator)
        });
        asked.map_err(|error| match error {
            DescribedError::NoMemory { .. } => Failure::failed(error),
            error => Failure::bad_input(error),
        })?
    }

    /// Allocates what is in use, and makes the first CPU of the node the current one.
    fn fill(&self, allocator: &Allocator<'_, Described>) -> Result<(), Failure> {
        let node = self.model.online_nodes().find(|node| node.id == self.node);
        if let Some(&cpu) = node.and_then(|node| node.cpus.first()) {
            allocator.platform().set_current_cpu(cpu);
        }
        // The allocator may have several zones for one that is too large.
        let zones: Vec<_> = allocator.zones().collect();
        for zone in &self.model.zones {
            let known = zones.iter().find(|known| (known.node, known.kind) == (zone.node, zone.kind));
            for used in self.used(zone, known.map(|known| known.watermarks)) {
                for part in zones.iter().filter_map(|zone| used.intersection(&zone.span)) {
                    allocator.alloc_range(part, PageKind::User).map_err(Failure::failed)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the frames of a zone that are in use, ascending. The watermarks are those of the allocator.
    fn used(&self, zone: &ZoneModel, marks: Option<Watermarks>) -> Vec<FrameRange> {
        let first = |count| FrameRange { start: zone.start, count: PageCount::new(count) };
        let managed = zone.managed.get();
        let share = self.args.fill.iter().rfind(|(node, _)| *node == zone.node);
        let known = self.state.and_then(|state| state.zone(zone.node, zone.kind));
        let mut used = match (share, known) {
            (Some((_, Fill::Percent(percent))), _) => vec![first(part(managed, *percent))],
            (Some((_, Fill::To(mark))), _) => {
                vec![first(managed.saturating_sub(marks.map_or(0, |marks| at(&marks, *mark).get())))]
            }
            (None, Some(known)) => known.used_in(first(managed)),
            (None, None) => Vec::new(),
        };
        if let Some((name, freed)) = self.freed
            && (name.node, name.kind) == (zone.node, zone.kind)
        {
            shorten(&mut used, freed.get());
        }
        used.retain(|run| run.count > PageCount::ZERO);
        used
    }

    /// Returns the frames that could be reclaimed, by node.
    fn reclaimable(&self) -> Vec<(NodeId, PageCount)> {
        let of_node = |&(node, percent): &(NodeId, Percent)| {
            let runs = self.model.zones_of(node).flat_map(|zone| self.used(zone, None));
            let used: PageCount = runs.map(|run| run.count).sum();
            (node, PageCount::new(part(used.get(), percent)))
        };
        self.args.reclaimable.iter().map(of_node).collect()
    }
}

const fn at(marks: &Watermarks, mark: Watermark) -> PageCount {
    match mark {
        Watermark::Min => marks.min,
        Watermark::Low => marks.low,
    }
}

fn part(all: u64, Percent(percent): Percent) -> u64 {
    (u128::from(all) * u128::from(percent) / 100) as u64
}

/// Frees the last `frames` of the runs.
fn shorten(runs: &mut [FrameRange], mut frames: u64) {
    for run in runs.iter_mut().rev() {
        let freed = frames.min(run.count.get());
        run.count = PageCount::new(run.count.get() - freed);
        frames -= freed;
    }
}

#[cfg(test)]
mod tests {
    use zonal::units::Pfn;

    use super::*;

    #[test]
    fn the_last_frames_are_freed_first() {
        let run = |start, count| FrameRange { start: Pfn::new(start), count: PageCount::new(count) };
        let mut runs = [run(0, 8), run(16, 4)];
        shorten(&mut runs, 6);
        assert_eq!(runs, [run(0, 6), run(16, 0)]);
        shorten(&mut runs, 60);
        assert_eq!(runs, [run(0, 0), run(16, 0)]);
    }
}

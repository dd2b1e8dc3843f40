//! Machines for histories, and the world around an allocator.
//!
//! The buffers of the metadata are filled with garbage, because the allocator must itself write every value on which it
//! relies.
//!
//! Related files: `platform.rs` is the platform.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;

use zonal::error::ConfigError;
use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
use zonal::units::{CpuId, NodeId, PageCount, Pfn, ZoneKind};
use zonal::{Allocator, Buffer, Config, Layout, Machine, NodeMask};

use super::platform::{Cells, ControlledPlatform, Controls, Plain};

/// The byte with which buffers are filled.
const GARBAGE: u8 = 0xa5;

/// A zone to build, with positions and lengths in frames.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ZonePlan {
    /// Node of the zone.
    pub node: u16,
    /// Kind of the zone.
    pub kind: ZoneKind,
    /// First frame of the zone's span.
    pub start: u64,
    /// Number of frames in the span.
    pub spanned: u64,
    /// Managed ranges, each with its first frame and its length.
    pub managed: Vec<(u64, u64)>,
}

/// A machine to build.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// Nodes in ascending order of id, each with its CPUs.
    pub nodes: Vec<(u16, Vec<u32>)>,
    /// Distances between nodes, one row for each node.
    pub distances: Vec<Vec<u8>>,
    /// Zones, by node and kind.
    pub zones: Vec<ZonePlan>,
    /// Weights of nodes in weighted policies, by index. Nodes without an entry have weights 3, 2, 1, 3 and so on.
    pub weights: Vec<u8>,
    /// Additional sets of nodes for policies, with a bit for each node.
    pub masks: Vec<u8>,
}

/// An allocator over a machine, and the controls of its platform.
pub struct World<'m, C: Cells> {
    /// The allocator.
    pub allocator: Allocator<'m, ControlledPlatform<'m, C>>,
    /// The CPU and the clock.
    pub controls: Arc<Controls>,
    /// Addresses of the metadata.
    pub(super) metadata: Vec<Range<usize>>,
}

/// Returns the id of a plan's node.
pub(super) fn node_id(id: u16) -> NodeId {
    NodeId::new(id).expect("ids of nodes are small")
}

/// Returns the set of nodes whose bits are set.
pub(super) fn mask_of(bits: u8) -> NodeMask {
    (0..8).filter(|bit| bits >> bit & 1 == 1).filter_map(NodeId::new).collect()
}

/// Returns a range of frames.
pub(super) const fn range(start: u64, count: u64) -> FrameRange {
    FrameRange { start: Pfn::new(start), count: PageCount::new(count) }
}

impl Plan {
    /// Returns a machine of `nodes` nodes with `cpus` CPUs each, all equally distant, without memory.
    #[must_use]
    pub fn nodes(nodes: u16, cpus: u32) -> Self {
        let of = |id: u16| (u32::from(id) * cpus..(u32::from(id) + 1) * cpus).collect();
        let row = |from| (0..nodes).map(|to| if from == to { 10 } else { 20 }).collect();
        Self {
            nodes: (0..nodes).map(|id| (id, of(id))).collect(),
            distances: (0..nodes).map(row).collect(),
            ..Self::default()
        }
    }

    /// Adds a zone without holes to the plan.
    #[must_use]
    pub fn zone(mut self, node: u16, kind: ZoneKind, start: u64, frames: u64) -> Self {
        self.zones.push(ZonePlan { node, kind, start, spanned: frames, managed: vec![(start, frames)] });
        self
    }

    /// Builds an allocator over this machine and calls `work` with it.
    ///
    /// # Errors
    /// Returns an error if the configuration does not fit the machine.
    ///
    /// # Panics
    /// Panics if `work` does.
    pub fn with_world<C: Cells, R>(
        &self,
        config: &Config,
        work: impl FnOnce(&World<'_, C>) -> R,
    ) -> Result<R, ConfigError> {
        let cpus: Vec<Vec<CpuId>> =
            self.nodes.iter().map(|(_, cpus)| cpus.iter().map(|&cpu| CpuId::new(cpu)).collect()).collect();
        let nodes: Vec<NodeDescription<'_>> = (self.nodes.iter().zip(&cpus).zip(&self.distances))
            .map(|(((node, _), cpus), distances)| NodeDescription { id: node_id(*node), cpus, distances })
            .collect();
        let managed: Vec<Vec<FrameRange>> = (self.zones.iter())
            .map(|zone| zone.managed.iter().map(|&(start, count)| range(start, count)).collect())
            .collect();
        let zones: Vec<ZoneDescription<'_>> = (self.zones.iter().zip(&managed))
            .map(|(zone, managed)| ZoneDescription {
                node: node_id(zone.node),
                kind: zone.kind,
                span: range(zone.start, zone.spanned),
                managed,
            })
            .collect();
        let machine = Machine::new(&nodes, &zones)?;
        // Memory may come online in all holes.
        let hotplug: Vec<FrameRange> = self.zones.iter().flat_map(ZonePlan::holes).collect();
        let machine = machine.with_hotplug(&hotplug).expect("holes are between what is managed");
        World::build(&machine, config, work)
    }
}

impl ZonePlan {
    /// Returns the ranges that are not managed at the start, ascending.
    fn holes(&self) -> Vec<FrameRange> {
        let ends = self.managed.iter().map(|&(start, count)| start + count);
        let starts = self.managed.iter().map(|&(start, _)| start);
        let from = [self.start].into_iter().chain(ends);
        let to = starts.chain([self.start + self.spanned]);
        let holes = from.zip(to).map(|(from, to)| range(from, to - from));
        holes.filter(|hole| hole.count > PageCount::ZERO).collect()
    }
}

impl World<'_, Plain> {
    /// Builds an allocator over a machine, with metadata in buffers of garbage, and calls `work` with it.
    ///
    /// # Errors
    /// Returns an error if the configuration does not fit the machine.
    ///
    /// # Panics
    /// Panics if `work` does.
    pub fn build<C: Cells, R>(
        machine: &Machine<'_>,
        config: &Config,
        work: impl FnOnce(&World<'_, C>) -> R,
    ) -> Result<R, ConfigError> {
        let requests = Layout::new(machine, config)?;
        let mut buffers: Vec<Vec<MaybeUninit<u8>>> = (requests.requests::<ControlledPlatform<'_, C>>())
            .map(|request| vec![MaybeUninit::new(GARBAGE); request.bytes])
            .collect();
        let metadata = buffers.iter().map(|buffer| {
            let bytes = buffer.as_ptr_range();
            bytes.start.addr()..bytes.end.addr()
        });
        let metadata = metadata.collect();
        let mut buffers = buffers.iter_mut();
        let controls = Arc::new(Controls::default());
        let allocator =
            Allocator::new(ControlledPlatform::new(Arc::clone(&controls)), machine, config, |_| {
                buffers.next().map(|buffer| Buffer::uninit(buffer))
            })?;
        let world = World { allocator, controls, metadata };
        world.allocator.platform().reclaimer.attach(&world.allocator);
        Ok(work(&world))
    }
}

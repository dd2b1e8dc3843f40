//! The part of a pool that frames keep alive: allocator, metadata and memory, but no threads.
//!
//! Neighbours: `pool/handle.rs` is the handle that programs hold and owns the threads; `pool/frames.rs` keeps this
//! alive.

use std::sync::Arc;

use parking_lot::Mutex;
use zonal::error::ConfigError;
use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
use zonal::{Allocator, Config, Machine};

use super::cpu_map::{ActAs, CpuMap};
use super::key::PoolKey;
use super::platform::LinuxPlatform;
use crate::error::{PoolError, Warning, Warnings};
use crate::memory::metadata::Metadata;
use crate::memory::zones::{MapOptions, PoolMemory};
use crate::sequences::Sequences;
use crate::topology::Topology;

/// A pool without its threads, kept alive by [`Frames`](crate::Frames). Opaque.
pub struct PoolCore {
    /// Stands first, because fields are dropped in this order and the allocator is stored in `_metadata`.
    allocator: Allocator<'static, LinuxPlatform>,
    _metadata: Metadata,
    pub(super) topology: Topology,
    pub(super) warnings: Vec<Warning>,
    /// Held while memory goes offline or comes online, so that memory coming online is not discarded.
    pub(super) hotplug: Mutex<()>,
}

impl std::fmt::Debug for PoolCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolCore").field("platform", self.platform()).finish_non_exhaustive()
    }
}

impl PoolCore {
    #[inline]
    pub(super) fn allocator(&self) -> &Allocator<'static, LinuxPlatform> {
        &self.allocator
    }

    #[inline]
    pub(super) fn platform(&self) -> &LinuxPlatform {
        self.allocator.platform()
    }

    #[inline]
    pub(super) fn memory(&self) -> &PoolMemory {
        &self.platform().memory
    }

    /// Starts an allocator over `memory`.
    pub(super) fn new(
        topology: Topology,
        memory: PoolMemory,
        config: &Config,
        options: MapOptions,
        sequences: Option<Sequences>,
        mut warnings: Warnings,
    ) -> Result<Arc<Self>, PoolError> {
        let ranges: Vec<[FrameRange; 1]> = memory.zones().iter().map(|zone| [zone.range]).collect();
        let zones = memory.zones().iter().zip(&ranges);
        let zones: Vec<_> = zones
            .map(|(zone, managed)| ZoneDescription {
                node: zone.node,
                kind: zone.kind,
                span: zone.range,
                managed,
            })
            .collect();
        let nodes = topology.nodes().iter();
        let nodes: Vec<_> = nodes
            .map(|node| NodeDescription { id: node.id, cpus: &node.cpus, distances: &node.distances })
            .collect();
        let machine = Machine::new(&nodes, &zones)?;
        let key = PoolKey::fresh();
        let act_as = if topology.is_emulated() { ActAs::AllowedIn(key) } else { ActAs::Forbidden };
        let detect = || if topology.has_real_cpus() { Sequences::detect() } else { Sequences::none() };
        let sequences = sequences.unwrap_or_else(detect);
        let platform =
            LinuxPlatform::new(key, CpuMap::new(topology.cpus_by_real_cpu(), act_as), sequences, memory);
        let mut metadata = Metadata::new(options);
        let allocator = Allocator::new(platform, &machine, config, |request| {
            // SAFETY: the allocator is dropped before `metadata`, both here on failure and later by the order of
            // the fields, and it returns no reference to its buffers.
            unsafe { metadata.supply(request, &topology, &mut warnings) }
        });
        let allocator = allocator.map_err(|error| refused(error, &mut metadata))?;
        Ok(Arc::new(Self {
            allocator,
            _metadata: metadata,
            topology,
            warnings: warnings.into_vec(),
            hotplug: Mutex::new(()),
        }))
    }
}

/// Returns the kernel's refusal if there is one, because it explains a missing buffer better.
fn refused(error: ConfigError, metadata: &mut Metadata) -> PoolError {
    match (error, metadata.failure()) {
        (ConfigError::Buffer { .. }, Some(failure)) => failure,
        (error, _) => error.into(),
    }
}

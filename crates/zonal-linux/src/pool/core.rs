//! The type [`PoolCore`], which owns the allocator, the metadata and the memory of a pool, but not its threads.
//!
//! Related files: each handle (`pool/handle.rs`) and each block (`pool/frames.rs`) holds a reference to the core.
//! Handles also own the threads.

use std::sync::Arc;

use parking_lot::Mutex;
use zonal::error::ConfigError;
use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
use zonal::units::PageCount;
use zonal::{Allocator, Config, Machine};

use super::cpu_map::{ActAs, CpuMap};
use super::key::PoolKey;
use super::platform::LinuxPlatform;
use crate::error::{PoolError, Warning, Warnings};
use crate::memory::metadata::Metadata;
use crate::memory::zones::{MapOptions, PoolMemory, ZoneMemory};
use crate::sequences::Sequences;
use crate::sequences::shared_count::SharedCount;
use crate::topology::Topology;

/// A pool without its threads. Each [`Frames`](crate::Frames) holds a reference to it. The type is opaque.
pub struct PoolCore {
    /// Declared before `_metadata`, because fields are dropped in this order and the allocator uses buffers in
    /// `_metadata`.
    allocator: Allocator<'static, LinuxPlatform>,
    _metadata: Metadata,
    pub(super) topology: Topology,
    pub(super) warnings: Vec<Warning>,
    /// Whether free frames hold the poison pattern.
    pub(super) poisons: bool,
    /// Held while memory goes offline or comes online. Without this lock, one thread could discard the contents of
    /// memory that another thread is bringing online.
    pub(super) hotplug: Mutex<()>,
    /// Counts the references that blocks hold.
    pub(super) owners: SharedCount,
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
        let online = |zone: &ZoneMemory| FrameRange { start: zone.range.start, count: zone.online };
        let has_frames = |range: &FrameRange| range.count != PageCount::ZERO;
        let ranges: Vec<Vec<FrameRange>> = memory
            .zones()
            .iter()
            .map(|zone| [online(zone)].into_iter().filter(has_frames).collect())
            .collect();
        let later = memory.zones().iter().map(|zone| FrameRange {
            start: online(zone).end(),
            count: zone.range.count.saturating_minus(zone.online),
        });
        let mut later: Vec<FrameRange> = later.filter(has_frames).collect();
        later.sort_by_key(|range| range.start);
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
        let machine = Machine::new(&nodes, &zones)?.with_hotplug(&later)?;
        let key = PoolKey::fresh();
        // A sequence excludes other threads only on the real CPU that runs it, so no thread may act as another CPU.
        let (act_as, sequences) = if topology.has_emulated_cpus() {
            (ActAs::AllowedIn(key), Sequences::none())
        } else {
            (ActAs::Forbidden, sequences.unwrap_or_else(Sequences::detect))
        };
        let owners = SharedCount::new(sequences, topology.cpus_by_real_cpu().len());
        let platform =
            LinuxPlatform::new(key, CpuMap::new(topology.cpus_by_real_cpu(), act_as), sequences, memory);
        let mut metadata = Metadata::new(options);
        let allocator = Allocator::new(platform, &machine, config, |request| {
            // SAFETY: the allocator is dropped before `metadata`, which owns the buffers. This holds here if
            // `Allocator::new` fails, and later because of the field order. The allocator returns no reference to its
            // buffers.
            unsafe { metadata.supply(request, &topology, &mut warnings) }
        });
        let allocator = allocator.map_err(|error| refused(error, &mut metadata))?;
        Ok(Arc::new(Self {
            allocator,
            _metadata: metadata,
            topology,
            warnings: warnings.into_vec(),
            poisons: config.hardening.poison.is_some(),
            hotplug: Mutex::new(()),
            owners,
        }))
    }
}

/// Converts an error of the allocator. For a missing buffer, returns the error with which the kernel refused its
/// mapping, if there is one, because that error contains the cause.
fn refused(error: ConfigError, metadata: &mut Metadata) -> PoolError {
    match (error, metadata.failure()) {
        (ConfigError::Buffer { .. }, Some(failure)) => failure,
        (error, _) => error.into(),
    }
}

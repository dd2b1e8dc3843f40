//! The type [`PoolCore`], which owns the allocator, the metadata and the memory of a pool, but not its threads.
//!
//! Related files: each handle (`pool/handle.rs`) and each block (`pool/frames.rs`) holds a reference to the core.
//! Handles also own the threads.

use std::sync::Arc;

use parking_lot::Mutex;
use zonal::error::ConfigError;
use zonal::layout::{BufferRequest, Place};
use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
use zonal::units::{CpuId, NodeId, PageCount, ZoneKind};
use zonal::{Allocator, Config, Machine};

use super::cpu_map::{ActAs, CpuMap};
use super::entered::Entered;
use super::key::PoolKey;
use super::members::{Membership, Part};
use super::platform::LinuxPlatform;
use crate::error::{PoolError, Warning, Warnings};
use crate::memory::metadata::Metadata;
use crate::memory::page_sizes::os_page_bytes;
use crate::memory::zones::{MapOptions, PoolMemory};
use crate::sequences::Sequences;
use crate::sequences::shared_count::SharedCount;
use crate::topology::Topology;

/// A process's part in a shared pool: its membership, the offset of the first buffer in the file, and whether it is the first.
pub(super) type Share = (Arc<Entered>, usize, Part);

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
    /// Returns this process's part in a shared pool.
    pub(super) fn members(&self) -> Option<&Membership> {
        self.platform().members.as_deref().map(|entered| &**entered)
    }

    /// Whether this process is a child, made by `fork`, of one that shares the pool. It has neither the frames nor the allocator.
    #[inline]
    pub(super) fn is_of_parent(&self) -> bool {
        self.members().is_some_and(|members| !members.is_here())
    }

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
        share: Option<Share>,
    ) -> Result<Arc<Self>, PoolError> {
        let zones: Vec<_> =
            memory.zones().iter().map(|zone| (zone.node, zone.kind, zone.range, zone.online)).collect();
        let key = PoolKey::fresh();
        // A sequence excludes other threads only on the real CPU that runs it, so no thread may act as another CPU.
        let (act_as, sequences) = if topology.has_emulated_cpus() {
            (ActAs::AllowedIn(key), Sequences::none())
        } else {
            (ActAs::Forbidden, sequences.unwrap_or_else(Sequences::detect))
        };
        let owners = SharedCount::new(sequences, topology.cpus_by_real_cpu().len());
        let members = share.as_ref().map(|share| Arc::clone(&share.0));
        let sequences = match &members {
            Some(members) => sequences.with_first_cpu(first_cpu(&topology, members.process())),
            None => sequences,
        };
        let cpus = CpuMap::new(topology.cpus_by_real_cpu(), act_as);
        let platform =
            LinuxPlatform::new(key, cpus, sequences, memory, members.clone(), cpus_of_each(&topology));
        let mut metadata = Metadata::new(options);
        let mut at = share.as_ref().map_or(0, |share| share.1);
        let processes = config.processes;
        let allocator = with_machine(&topology, &zones, processes, |machine| {
            let supply = |request: BufferRequest| match &members {
                Some(members) if request.place != Place::Local => {
                    // SAFETY: as below; the file's mapping lives as long as the platform, which the allocator owns. Each
                    // request has its own part, and no other reference to it is made.
                    let buffer = unsafe { members.buffer(at, request.bytes) };
                    at += request.bytes.next_multiple_of(os_page_bytes());
                    buffer
                }
                // SAFETY: the allocator is dropped before `metadata`, which owns the buffers. This holds here if
                // `Allocator::new` fails, and later because of the field order. The allocator returns no reference to its
                // buffers.
                _ => unsafe { metadata.supply(request, &topology, &mut warnings) },
            };
            let allocator = match share.as_ref().map(|share| share.2) {
                Some(Part::Further) => Allocator::join(platform, machine, config, supply),
                Some(Part::First) | None => Allocator::new(platform, machine, config, supply),
            };
            Ok::<_, PoolError>(allocator)
        })?;
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

impl Drop for PoolCore {
    fn drop(&mut self) {
        if let Some(members) = self.members() {
            members.leave(|process| self.allocator.recover(process));
        }
    }
}

// Sums of ids that are too large for a machine saturate: `Machine::new` refuses them.

/// Returns how many CPU ids each process of a shared pool has.
pub(super) fn cpus_of_each(topology: &Topology) -> u32 {
    let ids = topology.nodes().iter().flat_map(|node| &node.cpus).map(|cpu| cpu.get().saturating_add(1));
    ids.max().unwrap_or(1)
}

/// Returns the id that the first CPU of a process has in a shared pool.
fn first_cpu(topology: &Topology, process: u8) -> u32 {
    cpus_of_each(topology).saturating_mul(u32::from(process - 1))
}

/// Calls `then` with the machine of a pool with these zones: node, kind, range, and frames that are online at first. If
/// `processes` share the pool, each has the topology's CPUs.
///
/// # Errors
/// Those of the machine, and of `then`.
pub(super) fn with_machine<T>(
    topology: &Topology,
    zones: &[(NodeId, ZoneKind, FrameRange, PageCount)],
    processes: u8,
    then: impl FnOnce(&Machine<'_>) -> Result<T, PoolError>,
) -> Result<T, PoolError> {
    let online = |zone: &(_, _, FrameRange, PageCount)| FrameRange { start: zone.2.start, count: zone.3 };
    let has_frames = |range: &FrameRange| range.count != PageCount::ZERO;
    let ranges: Vec<Vec<FrameRange>> =
        zones.iter().map(|zone| [online(zone)].into_iter().filter(has_frames).collect()).collect();
    let later = zones
        .iter()
        .map(|zone| FrameRange { start: online(zone).end(), count: zone.2.count.saturating_minus(zone.3) });
    let mut later: Vec<FrameRange> = later.filter(has_frames).collect();
    later.sort_by_key(|range| range.start);
    let zones: Vec<_> = zones
        .iter()
        .zip(&ranges)
        .map(|(&(node, kind, span, _), managed)| ZoneDescription { node, kind, span, managed })
        .collect();
    let firsts = (1..=processes.max(1)).map(|process| first_cpu(topology, process));
    let of_all = |cpus: &[CpuId]| -> Vec<CpuId> {
        firsts
            .clone()
            .flat_map(|first| cpus.iter().map(move |cpu| CpuId::new(first.saturating_add(cpu.get()))))
            .collect()
    };
    let cpus: Vec<Vec<CpuId>> = topology.nodes().iter().map(|node| of_all(&node.cpus)).collect();
    let nodes: Vec<_> = topology
        .nodes()
        .iter()
        .zip(&cpus)
        .map(|(node, cpus)| NodeDescription { id: node.id, cpus, distances: &node.distances })
        .collect();
    then(&Machine::new(&nodes, &zones)?.with_hotplug(&later)?)
}

/// Converts an error of the allocator. For a missing buffer, returns the error with which the kernel refused its
/// mapping, if there is one, because that error contains the cause.
fn refused(error: ConfigError, metadata: &mut Metadata) -> PoolError {
    match (error, metadata.failure()) {
        (ConfigError::Buffer { .. }, Some(failure)) => failure,
        (error, _) => error.into(),
    }
}

//! The [`Allocator`] type, its construction and its simple queries.
//!
//! An allocator consists of views onto metadata that is stored in the caller's buffers. Related files: `layout.rs`
//! lays out the buffers. `admin/rebuild_zonelists.rs` and `admin/settings.rs` compute zonelists and limits.
//! `alloc/mod.rs` allocates and frees blocks.

use core::sync::atomic::Ordering::Relaxed;

use crate::config::{Config, Faults, Hardening, InvalidFree, ZeroOn};
use crate::error::ConfigError;
use crate::layout::{BufferRequest, Layout};
use crate::machine::{FrameRange, Machine};
use crate::metadata::arena::{Arena, Buffer};
use crate::node_mask::NodeMask;
use crate::pageset::Pageset;
use crate::pageset::state::MachineState;
use crate::platform::cpu_local::CpuLocal;
use crate::platform::pageset_slot::PagesetSlots;
use crate::platform::{Atomic, Platform};
use crate::request::policy::PolicyNodes;
use crate::rules::stat_threshold::TotalsRule;
use crate::units::{CpuId, NodeId, Order, Pfn};
use crate::zone::Zone;
use crate::zone::shared::SharedCells;
use crate::zonelist::Zonelists;
use crate::zonelist::nearest_zones::NearestZones;

/// A NUMA-aware page-frame allocator for the memory of one machine.
///
/// The allocator returns frame numbers and never accesses the frames itself. Zeroing and poisoning are done by the
/// platform. All methods take `&self` and may be called from any CPU at any time. The platform's reclaimers are called
/// with no lock held.
pub struct Allocator<'m, P: Platform> {
    pub(crate) state: MachineState<'m, P>,
}

impl<P: Platform> PolicyNodes for Allocator<'_, P> {
    type Platform = P;

    fn has_node(&self, id: NodeId) -> bool {
        self.state.place_of(id).is_some()
    }

    fn memory_nodes(&self) -> NodeMask {
        self.state.memory_nodes()
    }
}

impl<'m, P: Platform> Allocator<'m, P> {
    /// Creates an allocator for `machine`, with all CPUs and managed ranges online and all frames free.
    ///
    /// Take CPUs that do not run yet offline at once ([`Allocator::offline_cpu`]), so that they have no share in the
    /// pageset limits, and bring them online when they start.
    ///
    /// Calls `supply` once for each metadata buffer, in the order of [`Layout::requests`]. If the memory of a buffer is
    /// known to be zero, `supply` should return it as [`Buffer::zeroed`], so that it is not zeroed again.
    ///
    /// # Errors
    /// Returns an error if a value in `config` is out of bounds, a buffer is missing or too small, the machine has
    /// several CPUs but the platform cannot access other CPUs' pagesets, or `config` needs access to the contents of
    /// frames and the platform has none.
    pub fn new(
        platform: P,
        machine: &Machine<'_>,
        config: &Config,
        supply: impl FnMut(BufferRequest) -> Option<Buffer<'m>>,
    ) -> Result<Self, ConfigError> {
        Self::build(platform, machine, config, supply, true)
    }

    /// Joins an allocator that another process has created with the same machine and configuration.
    ///
    /// `supply` must return the other process's buffers ([`Buffer::of_process`]), except for
    /// [`Place::Local`](crate::layout::Place::Local), for which each process has a buffer of its own. No other process that
    /// lives has the same number ([`Platform::process`]); what a dead one with this number held is given back first.
    ///
    /// # Errors
    /// As [`Allocator::new`].
    pub fn join(
        platform: P,
        machine: &Machine<'_>,
        config: &Config,
        supply: impl FnMut(BufferRequest) -> Option<Buffer<'m>>,
    ) -> Result<Self, ConfigError> {
        Self::build(platform, machine, config, supply, false)
    }

    fn build(
        platform: P,
        machine: &Machine<'_>,
        config: &Config,
        mut supply: impl FnMut(BufferRequest) -> Option<Buffer<'m>>,
        is_new: bool,
    ) -> Result<Self, ConfigError> {
        let config = P::CONFIG.unwrap_or(config);
        let layout = Layout::new(machine, config)?;
        let cpus = machine.nodes().iter().map(|node| node.cpus.len()).sum();
        check_platform(&platform, config, cpus)?;
        let process = platform.process();
        let mut metadata_bytes = 0;
        let mut arena = |request: BufferRequest| {
            metadata_bytes += request.bytes as u64;
            match supply(request) {
                Some(buffer) if buffer.len() >= request.bytes => Ok(Arena::new::<P>(buffer, request.bytes)),
                other => {
                    let supplied = other.map_or(0, |buffer| buffer.len());
                    Err(ConfigError::Buffer { needed: request.bytes, supplied })
                }
            }
        };
        let mut requests = layout.requests::<P>();
        let mut shared_arena = arena(requests.next().expect("the shared buffer comes first"))?;
        let mut local_arena = arena(requests.next().expect("the local buffer comes second"))?;
        let local = layout.build_local::<P>(&mut local_arena, process);
        let shared: &SharedCells<P> = &shared_arena.fresh::<P, SharedCells<P>>(1)[0];
        let cpus_online = shared_arena.u32s::<P>(machine.cpu_ids());
        let machine_totals =
            (config.counters.totals == TotalsRule::AndMachine).then_some(&shared.machine_totals.0);
        let null_slot = &shared_arena.fresh::<P, Pageset<P>>(1)[0].head;
        let mut zones = local_arena.list(machine.zones().len());
        let mut nodes = local_arena.list(machine.nodes().len());
        let mut lists = local_arena.list(machine.nodes().len());
        let mut pagesets = local_arena.list(machine.zones().len());
        for (at, request) in requests.enumerate() {
            let mut node_arena = arena(request)?;
            let mut sink = |zone, its_pagesets| {
                zones.push(zone);
                pagesets.push(its_pagesets);
            };
            let (node, list) = layout.build_node(&mut node_arena, at, &local, machine_totals, &mut sink);
            nodes.push(node);
            lists.push(list);
        }
        let mut allocator = Self {
            state: MachineState {
                platform,
                shared,
                zones: zones.finish(),
                nodes: nodes.finish(),
                lists: Zonelists::new(lists.finish(), &shared.lists_current, &shared.lists_begun),
                pagesets: pagesets.finish(),
                slots: PagesetSlots::new(&[], &[], 0, 0),
                nearest: NearestZones::build(&mut local_arena, cpus, layout.node_ids()),
                cpus: local.cpus,
                cpus_online,
                cached: layout.cached_orders::<P>(),
                deferred: shared_arena.fresh(cpus),
                distances: local.distances,
                starts: local.starts,
                memory: local.memory,
                claims_by_exchange: config.invalid_free == InvalidFree::Exact && config.processes == 0,
                process,
                config: *config,
                metadata_bytes,
            },
        };
        if is_new {
            allocator.state.bring_online(machine, config)?;
        } else {
            allocator.begin_process();
        }
        allocator.state.make_slots(&mut local_arena, null_slot, is_new);
        Ok(allocator)
    }

    /// Counts the CPUs of a process that joins, as if they came online.
    ///
    /// A dead process with the same number may have left two things: a locked pageset, which nothing else would unlock, and a
    /// mark that it reported memory pressure, which would hide the pressure from this process. Reports that it made within
    /// the last second may delay the first ones of this process.
    fn begin_process(&self) {
        self.recover(self.state.process);
        self.state.nodes.iter().for_each(|node| node.own.is_low.store(0, Relaxed)); // relaxed: nothing reports yet
        let held = self.state.lock_changes();
        self.state.local_cpus().for_each(|cpu| self.state.mark_cpu_online(cpu.id));
        self.state.apply_settings(&held);
    }

    /// Returns the embedder's platform.
    pub const fn platform(&self) -> &P {
        &self.state.platform
    }

    /// Returns the total size of all metadata buffers requested, in bytes.
    pub const fn metadata_bytes(&self) -> u64 {
        self.state.metadata_bytes
    }

    /// Returns the size of a frame in bytes.
    pub const fn page_bytes(&self) -> u32 {
        self.state.config().page_bytes
    }

    /// Returns the largest order.
    pub const fn max_order(&self) -> Order {
        self.state.config().max_order
    }

    /// Returns the node that a CPU is on.
    #[must_use]
    pub fn node_of_cpu(&self, cpu: CpuId) -> Option<NodeId> {
        self.state.cpu_info(cpu).map(|cpu| self.state.nodes[usize::from(cpu.node)].id)
    }

    /// Returns the range of frames spanned by the zone that holds `frame`.
    #[must_use]
    pub fn span_of(&self, frame: Pfn) -> Option<FrameRange> {
        self.state.zone_of(frame).map(|zone| zone.span)
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Whether neither hardening nor fault injection is configured, so that an operation has to check only the frame's
    /// state.
    pub(super) fn is_plain(&self) -> bool {
        self.config().hardening == Hardening::default() && self.config().faults == Faults::None
    }

    /// Returns the zone whose span holds `frame`.
    pub(crate) fn zone_of(&self, frame: Pfn) -> Option<&Zone<'m, P>> {
        let after = self.starts.partition_point(|&(start, _)| start <= frame);
        let (_, zone) = self.starts[after.checked_sub(1)?];
        let zone = &self.zones[usize::from(zone)];
        (frame < zone.span.end()).then_some(zone)
    }
}

/// Checks that the platform has what the configuration and this many CPUs need.
fn check_platform<P: Platform>(platform: &P, config: &Config, cpus: usize) -> Result<(), ConfigError> {
    let (process, processes) = (platform.process(), config.processes);
    if process > processes || (process == 0) != (processes == 0) || (processes > 0 && !P::IS_SHARED) {
        return Err(ConfigError::Processes { process, processes });
    }
    let zeroes = config.hardening.zero == ZeroOn::EveryAllocation;
    if (config.hardening.poison.is_some() || zeroes) && platform.contents().is_none() {
        return Err(ConfigError::NoContents);
    }
    if cpus > 1 && !platform.cpu_local().reaches_other_cpus() {
        return Err(ConfigError::UnreachableCpus(cpus));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use core::panic::{RefUnwindSafe, UnwindSafe};

    use super::*;
    use crate::testing::Native;

    /// Programs share an allocator among threads, and go on with it after one of them has panicked.
    #[test]
    fn types_can_be_shared_and_outlive_panics() {
        const fn check<T: Send + Sync + UnwindSafe + RefUnwindSafe>() {}
        check::<Config>();
        check::<Allocator<'static, Native>>();
    }
}

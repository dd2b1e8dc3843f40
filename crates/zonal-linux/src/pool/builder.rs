//! Building a pool: the options, and the steps from options to a running pool.
//!
//! Neighbours: `topology`, `topology/limits.rs`, `memory/plan.rs`, `memory/zones.rs`, `pool/prefault.rs` and
//! `pool/core.rs` are the steps, in this order.

use std::ops::ControlFlow;
use std::path::Path;

use zonal::Config;
use zonal::units::NodeId;
use zonal_machine::MachineModel;

use super::core::PoolCore;
use super::handle::Pool;
use super::prefault::{OnProgress, Progress, prefault};
use crate::error::{Limit, PoolError, Warning, Warnings};
use crate::memory::page_sizes::{HUGE_PAGE_BYTES, os_page_bytes};
use crate::memory::plan::{ZonePlan, plan};
use crate::memory::promised::excess;
use crate::memory::zones::{Binding, HugePages, Manner, PoolMemory, free_huge_pages};
use crate::sequences::Sequences;
use crate::topology::Topology;
use crate::topology::limits;

/// Default size of a pool, on machines with at least twice as much memory available.
const SIZE_DEFAULT: u64 = 1 << 30;

impl Pool {
    /// Returns a builder with the default options.
    pub fn builder() -> PoolBuilder<'static> {
        PoolBuilder::default()
    }
}

/// When a pool obtains its memory from the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Prefault {
    /// Frame by frame, on first use.
    #[default]
    OnUse,
    /// All of it, before the pool can be used; offline memory is backed again before it comes online.
    AtOnce,
}

/// The machine a pool is built over.
#[derive(Clone, Debug, Default)]
enum Source {
    #[default]
    Live,
    Fake(usize),
    Given(Topology),
}

/// Options for a [`Pool`]; each has a default.
#[derive(Clone)]
#[must_use = "a builder does nothing until `build`"]
pub struct PoolBuilder<'a> {
    size: Option<u64>,
    source: Source,
    nodes: Vec<NodeId>,
    config: Config,
    huge_pages: HugePages,
    prefault: Prefault,
    on_progress: OnProgress<'a>,
    sequences: Option<Sequences>,
}

impl Default for PoolBuilder<'_> {
    fn default() -> Self {
        Self {
            size: None,
            source: Source::Live,
            nodes: Vec::new(),
            config: Config::default(),
            huge_pages: HugePages::default(),
            prefault: Prefault::default(),
            on_progress: &|_: Progress| ControlFlow::Continue(()),
            sequences: None,
        }
    }
}

impl<'a> PoolBuilder<'a> {
    /// Sets the size of the pool in bytes, rounded down to a multiple of 2 MiB on each node, or of 64 frames where
    /// that would leave a node without memory. Default: 1 GiB, or half of the available memory if that is less.
    pub fn size(self, bytes: u64) -> Self {
        Self { size: Some(bytes), ..self }
    }

    /// Uses memory of these nodes only. Default: all nodes.
    pub fn nodes(self, nodes: impl IntoIterator<Item = NodeId>) -> Self {
        Self { nodes: nodes.into_iter().collect(), ..self }
    }

    /// Splits the machine into `count` emulated nodes; see [`Topology::fake`].
    pub fn fake_nodes(self, count: usize) -> Self {
        Self { source: Source::Fake(count), ..self }
    }

    /// Builds the pool over this topology. Default: the live one.
    pub fn topology(self, topology: Topology) -> Self {
        Self { source: Source::Given(topology), ..self }
    }

    /// Emulates a machine that was read, captured or loaded from a preset; see [`Topology::of_machine`].
    ///
    /// # Errors
    /// When the machine has no CPU.
    pub fn machine(self, model: &MachineModel) -> Result<Self, PoolError> {
        Ok(self.topology(Topology::of_machine(model)?))
    }

    /// Sets the allocator's own settings.
    pub fn config(self, config: Config) -> Self {
        Self { config, ..self }
    }

    /// Sets which huge pages back the pool. Default: [`HugePages::Transparent`].
    pub fn huge_pages(self, huge_pages: HugePages) -> Self {
        Self { huge_pages, ..self }
    }

    /// Sets when memory is obtained from the kernel. Default: [`Prefault::OnUse`].
    pub fn prefault(self, prefault: Prefault) -> Self {
        Self { prefault, ..self }
    }

    /// Sets a callback that receives the progress of prefaulting and can stop it.
    pub fn on_progress<'b>(self, on_progress: OnProgress<'b>) -> PoolBuilder<'b>
    where
        'a: 'b,
    {
        PoolBuilder { on_progress, ..self }
    }

    /// Accesses pagesets with try-locks, as on systems without restartable sequences. This is for debuggers, where
    /// each single step restarts a sequence, and for comparisons.
    pub fn without_sequences(self) -> Self {
        Self { sequences: Some(Sequences::none()), ..self }
    }

    /// Uses restartable sequences with an area `offset` bytes from the thread pointer that the kernel does not
    /// maintain. This is for counting instructions in simulators that do not implement such areas.
    ///
    /// # Safety
    /// Only the calling thread uses the pool, and at `offset` it owns 32 bytes that are laid out as `struct rseq`
    /// and contain CPU 0.
    #[doc(hidden)]
    pub unsafe fn assume_area(self, offset: isize) -> Self {
        Self { sequences: Some(Sequences::at(offset)), ..self }
    }

    /// Maps the memory, and starts the allocator and the pool's threads.
    ///
    /// # Errors
    /// When more memory is requested than is available, when nodes do not exist, when the kernel refuses, or when
    /// the configuration is invalid. Everything mapped or started so far is released.
    pub fn build(self) -> Result<Pool, PoolError> {
        let mut warnings = Warnings::default();
        let topology = self.resolve_topology()?;
        if let Some(reason) = topology.missing() {
            warnings.add(Warning::NoTopology { reason: reason.into() });
        }
        let manner = self.manner(&topology)?;
        let root = Path::new("/");
        let available = limits::available(root)?;
        let plans = plan(&topology, self.checked_size(available)?, self.config.page_bytes)?;
        self.check_rooms(&topology, &plans)?;
        let mut memory = PoolMemory::map(&plans, manner, &mut warnings)?;
        let limited_by = available.limited_by;
        if let Some((promised, available)) =
            excess(available, || limits::available(root).unwrap_or(available))
        {
            warnings.add(Warning::Overcommitted { promised, available, limited_by });
        }
        if self.prefault == Prefault::AtOnce {
            prefault(&memory, self.on_progress)?;
            memory.is_prefaulted = true;
        }
        Pool::start(PoolCore::new(topology, memory, &self.config, manner, self.sequences, warnings)?)
    }

    fn resolve_topology(&self) -> Result<Topology, PoolError> {
        let topology = match &self.source {
            Source::Live => Topology::live(),
            Source::Fake(count) => Topology::fake(*count)?,
            Source::Given(topology) => topology.clone(),
        };
        if self.nodes.is_empty() { Ok(topology) } else { topology.restricted_to(&self.nodes) }
    }

    fn manner(&self, topology: &Topology) -> Result<Manner, PoolError> {
        let (page_bytes, smallest) = (self.config.page_bytes, os_page_bytes());
        if !page_bytes.is_power_of_two() || (page_bytes as usize) < smallest {
            return Err(PoolError::PageBytes { asked: page_bytes, smallest });
        }
        let binding = if topology.can_be_bound() { Binding::ToNodes } else { Binding::None };
        let (max_order, huge_pages) = (self.config.max_order, self.huge_pages);
        Ok(Manner { page_bytes, max_order, huge_pages, binding })
    }

    fn checked_size(&self, available: limits::Available) -> Result<u64, PoolError> {
        let limits::Available { bytes: available, limited_by } = available;
        let asked = self.size.unwrap_or(SIZE_DEFAULT.min(available / 2));
        let available = available + self.reserve(None);
        if asked > available {
            return Err(PoolError::TooLarge { asked, available, limited_by });
        }
        Ok(asked)
    }

    /// Returns the bytes of the reserve of huge pages that this pool can use, on one node or on all: the kernel
    /// does not count them as available.
    fn reserve(&self, node: Option<NodeId>) -> u64 {
        match self.huge_pages {
            HugePages::Explicit => free_huge_pages(node).unwrap_or(0) * HUGE_PAGE_BYTES as u64,
            HugePages::Never | HugePages::Transparent => 0,
        }
    }

    /// Checks that each node has enough available memory for what will be bound to it.
    fn check_rooms(&self, topology: &Topology, plans: &[ZonePlan]) -> Result<(), PoolError> {
        if !topology.can_be_bound() {
            return Ok(());
        }
        for plan in plans {
            let asked = plan.frames.get() * u64::from(self.config.page_bytes);
            let room = topology.room_on(plan.node).map(|room| room + self.reserve(Some(plan.node)));
            if let Some(available) = room.filter(|&room| room < asked) {
                let limited_by = Limit::Node(plan.node);
                return Err(PoolError::TooLarge { asked, available, limited_by });
            }
        }
        Ok(())
    }
}

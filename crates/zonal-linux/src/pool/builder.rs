//! Building a pool: what can be chosen, and the steps from there to running.
//!
//! Neighbours: `topology`, `topology/limits.rs`, `memory/plan.rs`, `memory/zones.rs`, `prefault.rs` and `core.rs`
//! are the steps, in this order.

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

/// Size of a pool when nothing is said, where the machine has twice as much.
const SIZE_DEFAULT: u64 = 1 << 30;

impl Pool {
    /// Choices for a pool.
    pub fn builder() -> PoolBuilder<'static> {
        PoolBuilder::default()
    }
}

/// When a pool's memory is taken from the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Prefault {
    /// Frame by frame, when they are first used.
    #[default]
    OnUse,
    /// All of it, before the pool can be used; and what was offline, before it comes back.
    AtOnce,
}

/// Which machine the pool is built over.
#[derive(Clone, Debug, Default)]
enum Source {
    #[default]
    Live,
    Fake(usize),
    Given(Topology),
}

/// The choices for a [`Pool`]; each can be left at its default.
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
    /// Bytes of memory, rounded down to whole pieces of 2 MiB for each node, or of 64 frames where that
    /// leaves a node without. Default: 1 GiB, or half of what is available where that is less.
    pub fn size(self, bytes: u64) -> Self {
        Self { size: Some(bytes), ..self }
    }

    /// Takes memory from these nodes alone. Default: all.
    pub fn nodes(self, nodes: impl IntoIterator<Item = NodeId>) -> Self {
        Self { nodes: nodes.into_iter().collect(), ..self }
    }

    /// Splits the machine into `count` emulated nodes; see [`Topology::fake`].
    pub fn fake_nodes(self, count: usize) -> Self {
        Self { source: Source::Fake(count), ..self }
    }

    /// Builds over this machine. Default: the live one.
    pub fn topology(self, topology: Topology) -> Self {
        Self { source: Source::Given(topology), ..self }
    }

    /// Emulates a machine that was read, captured or taken from a preset; see
    /// [`Topology::of_machine`].
    ///
    /// # Errors
    /// When the machine has no CPU.
    pub fn machine(self, model: &MachineModel) -> Result<Self, PoolError> {
        Ok(self.topology(Topology::of_machine(model)?))
    }

    /// The allocator's own settings.
    pub fn config(self, config: Config) -> Self {
        Self { config, ..self }
    }

    /// Which huge pages back the pool. Default: [`HugePages::Transparent`].
    pub fn huge_pages(self, huge_pages: HugePages) -> Self {
        Self { huge_pages, ..self }
    }

    /// When memory is taken from the kernel. Default: [`Prefault::OnUse`].
    pub fn prefault(self, prefault: Prefault) -> Self {
        Self { prefault, ..self }
    }

    /// Told how prefaulting goes on; can stop it.
    pub fn on_progress<'b>(self, on_progress: OnProgress<'b>) -> PoolBuilder<'b>
    where
        'a: 'b,
    {
        PoolBuilder { on_progress, ..self }
    }

    /// Reaches pagesets by locks that are tried, as where the system offers no restartable sequences:
    /// for debuggers, whose single steps restart a sequence each time, and for comparisons.
    pub fn without_sequences(self) -> Self {
        Self { sequences: Some(Sequences::none()), ..self }
    }

    /// Uses restartable sequences with an area that no kernel looks after, `offset` bytes from the
    /// thread pointer: for counting instructions in simulators that know of no such areas.
    ///
    /// # Safety
    /// Only the calling thread uses the pool, and at `offset` it has 32 bytes for it alone that
    /// are laid out as `struct rseq` and say CPU 0.
    #[doc(hidden)]
    pub unsafe fn assume_area(self, offset: isize) -> Self {
        Self { sequences: Some(Sequences::at(offset)), ..self }
    }

    /// Maps the memory, starts the allocator and its threads.
    ///
    /// # Errors
    /// When more is asked for than there is, when nodes do not exist, when the kernel refuses, or
    /// when the configuration cannot be used. Nothing stays behind.
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

    /// Bytes that this pool can have of the reserve of huge pages, on a node or on all: the kernel does not count
    /// them as available.
    fn reserve(&self, node: Option<NodeId>) -> u64 {
        match self.huge_pages {
            HugePages::Explicit => free_huge_pages(node).unwrap_or(0) * HUGE_PAGE_BYTES as u64,
            HugePages::Never | HugePages::Transparent => 0,
        }
    }

    /// Memory that is bound to a node must be there.
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

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
use crate::memory::committed::overcommitment;
use crate::memory::page_sizes::{HUGE_PAGE_BYTES, os_page_bytes};
use crate::memory::plan::{ZonePlan, plan};
use crate::memory::zones::{Binding, HugePages, MapOptions, PoolMemory, free_huge_pages};
use crate::sequences::Sequences;
use crate::topology::Topology;
use crate::topology::limits;

/// Default size of a pool, on machines with at least twice as much memory available.
const SIZE_DEFAULT: u64 = 1 << 30;

impl Pool {
    /// Returns a builder with the default options.
    ///
    /// ```
    /// use zonal_linux::Pool;
    ///
    /// let pool = Pool::builder().size(256 << 20).build()?;
    /// for warning in pool.warnings() {
    ///     eprintln!("warning: {warning}"); // what the kernel did not grant, such as huge pages
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
///
/// | option | default |
/// |---|---|
/// | [`size`](Self::size) | 1 GiB, or half of [`available_bytes`](crate::available_bytes) if that is less |
/// | [`nodes`](Self::nodes) | all nodes, each with memory in proportion to what it has available |
/// | [`topology`](Self::topology) | the running machine |
/// | [`config`](Self::config) | `Config::default()`: see the [crate's page](crate#defaults) |
/// | [`huge_pages`](Self::huge_pages) | [`HugePages::Transparent`] |
/// | [`prefault`](Self::prefault) | [`Prefault::OnUse`] |
///
/// ```
/// use zonal_linux::{HugePages, Pool};
///
/// let pool = Pool::builder().size(64 << 20).huge_pages(HugePages::Never).build()?;
/// // The size is rounded down to 2 MiB on each node.
/// let bytes = pool.frames().get() * pool.page_bytes() as u64;
/// assert!(bytes <= 64 << 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
    ///
    /// ```
    /// use zonal_linux::{Pool, PoolError, available_bytes};
    ///
    /// // A pool larger than the machine is refused; the error names a size that fits.
    /// let too_large = Pool::builder().size(1 << 60).build();
    /// let Err(PoolError::TooLarge { asked, available, .. }) = too_large else { panic!("it cannot fit") };
    /// assert!(asked == 1 << 60 && available < asked);
    ///
    /// let pool = Pool::builder().size(available_bytes()? / 100).build()?;
    /// # drop(pool);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn size(self, bytes: u64) -> Self {
        Self { size: Some(bytes), ..self }
    }

    /// Uses memory of these nodes only. Default: all nodes.
    ///
    /// ```
    /// use zonal_linux::{NodeId, Pool, PoolRequest, Topology};
    ///
    /// // A pool on one node: here the first node with memory; `NodeId::new(1)` names node 1.
    /// let live = Topology::live();
    /// let node: NodeId = live.nodes().iter().find(|node| !node.zones.is_empty()).expect("memory").id;
    /// let pool = Pool::builder().size(16 << 20).nodes([node]).build()?;
    /// assert_eq!(pool.alloc(&PoolRequest::page())?.node(), node);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn nodes(self, nodes: impl IntoIterator<Item = NodeId>) -> Self {
        Self { nodes: nodes.into_iter().collect(), ..self }
    }

    /// Splits the machine into `count` emulated nodes; see [`Topology::fake`]. NUMA behaviour can then be tested on
    /// any machine: fallback, policies and accounting are those of `count` nodes, but the speed of memory is not.
    ///
    /// ```
    /// use zonal_linux::{NodeId, Pool, PoolRequest};
    ///
    /// let pool = Pool::builder().size(64 << 20).fake_nodes(4).build()?;
    /// let node = |id| NodeId::new(id).unwrap();
    /// // The nodes are on a ring: 1 and 3 are nearer to 0 than 2 is.
    /// assert_eq!(pool.fallback_order(node(0)).last(), Some(&node(2)));
    /// let on_two = pool.bind([node(2)].into_iter().collect())?;
    /// assert_eq!(pool.alloc(&PoolRequest::page().policy(&on_two))?.node(), node(2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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

    /// Sets the allocator's own settings. Default: [`Config::default`].
    ///
    /// ```
    /// use zonal_linux::{Config, Hardening, Order, Pool, PoolRequest};
    ///
    /// // Blocks of up to 16 MiB, and a pattern in free frames that detects use after free.
    /// let hardening = Hardening { poison: Some(0xdead_beef), ..Hardening::default() };
    /// let max_order = Order::new(12).unwrap();
    /// let config = Config { max_order, hardening, ..Config::default() };
    /// let pool = Pool::builder().size(64 << 20).config(config).fake_nodes(1).build()?;
    /// assert_eq!(pool.alloc(&PoolRequest::new(max_order))?.len(), 16 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn config(self, config: Config) -> Self {
        Self { config, ..self }
    }

    /// Sets which huge pages back the pool. Default: [`HugePages::Transparent`].
    ///
    /// A pool is built even if the kernel has too few huge pages; [`Pool::warnings`] then says so.
    ///
    /// ```
    /// use zonal_linux::{HugePages, Pool, Warning};
    ///
    /// let pool = Pool::builder().size(64 << 20).huge_pages(HugePages::Explicit).build()?;
    /// for warning in pool.warnings() {
    ///     // For example: node 0 Normal: 32 huge pages of 2 MiB requested, 0 free (...)
    ///     eprintln!("warning: {warning}");
    ///     if let Warning::NoExplicitHugePages { needed, free, .. } = warning {
    ///         assert!(free.is_none_or(|free| free < *needed));
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn huge_pages(self, huge_pages: HugePages) -> Self {
        Self { huge_pages, ..self }
    }

    /// Sets when memory is obtained from the kernel. Default: [`Prefault::OnUse`].
    ///
    /// A prefaulted pool causes no page faults later, and a lack of memory is an error of
    /// [`build`](Self::build) instead of a kill by the kernel at first use.
    ///
    /// ```
    /// use zonal_linux::{Pool, Prefault};
    ///
    /// let pool = Pool::builder().size(16 << 20).prefault(Prefault::AtOnce).build()?;
    /// # drop(pool);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prefault(self, prefault: Prefault) -> Self {
        Self { prefault, ..self }
    }

    /// Sets a callback that receives the progress of prefaulting and can stop it.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// use zonal_linux::{Pool, Prefault, Progress};
    ///
    /// // Several threads prefault, so the callback may be called by any of them.
    /// let backed = AtomicU64::new(0);
    /// let report = |Progress { done, total }: Progress| {
    ///     backed.fetch_max(done, Ordering::Relaxed);
    ///     eprintln!("{} % of {total} bytes", 100 * done / total);
    ///     ControlFlow::Continue(()) // or Break(()), which ends the build with PoolError::Interrupted
    /// };
    /// let pool = Pool::builder().size(64 << 20).prefault(Prefault::AtOnce).on_progress(&report).build()?;
    /// assert_eq!(backed.load(Ordering::Relaxed), pool.frames().get() * pool.page_bytes() as u64);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
        let options = self.map_options(&topology)?;
        let root = Path::new("/");
        let available = limits::available(root)?;
        let plans = plan(&topology, self.checked_size(available)?, self.config.page_bytes)?;
        self.check_nodes(&topology, &plans)?;
        let mut memory = PoolMemory::map(&plans, options, &mut warnings)?;
        let limited_by = available.limited_by;
        if let Some((committed, available)) =
            overcommitment(available, || limits::available(root).unwrap_or(available))
        {
            warnings.add(Warning::Overcommitted { committed, available, limited_by });
        }
        if self.prefault == Prefault::AtOnce {
            prefault(&memory, self.on_progress)?;
            memory.is_prefaulted = true;
        }
        Pool::start(PoolCore::new(topology, memory, &self.config, options, self.sequences, warnings)?)
    }

    fn resolve_topology(&self) -> Result<Topology, PoolError> {
        let topology = match &self.source {
            Source::Live => Topology::live(),
            Source::Fake(count) => Topology::fake(*count)?,
            Source::Given(topology) => topology.clone(),
        };
        if self.nodes.is_empty() { Ok(topology) } else { topology.restricted_to(&self.nodes) }
    }

    fn map_options(&self, topology: &Topology) -> Result<MapOptions, PoolError> {
        let (page_bytes, smallest) = (self.config.page_bytes, os_page_bytes());
        if !page_bytes.is_power_of_two() || (page_bytes as usize) < smallest {
            return Err(PoolError::PageBytes { asked: page_bytes, smallest });
        }
        let binding = if topology.can_be_bound() { Binding::ToNodes } else { Binding::None };
        let (max_order, huge_pages) = (self.config.max_order, self.huge_pages);
        Ok(MapOptions { page_bytes, max_order, huge_pages, binding })
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
    fn check_nodes(&self, topology: &Topology, plans: &[ZonePlan]) -> Result<(), PoolError> {
        if !topology.can_be_bound() {
            return Ok(());
        }
        for plan in plans {
            let asked = plan.frames.get() * u64::from(self.config.page_bytes);
            let on_node = topology.available_on(plan.node);
            let on_node = on_node.map(|bytes| bytes + self.reserve(Some(plan.node)));
            if let Some(available) = on_node.filter(|&bytes| bytes < asked) {
                let limited_by = Limit::Node(plan.node);
                return Err(PoolError::TooLarge { asked, available, limited_by });
            }
        }
        Ok(())
    }
}

//! The options of a pool, and the steps that build a pool from them.
//!
//! Related files, in the order of the steps: `topology` reads the nodes and CPUs of the machine, `topology/limits.rs`
//! determines the available memory, `memory/plan.rs` divides the size among zones, `memory/zones.rs` maps the memory,
//! `pool/prefault.rs` populates it, and `pool/core.rs` starts the allocator.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;

use zonal::Config;
use zonal::units::NodeId;
use zonal_model::MachineModel;

use super::core::PoolCore;
use super::handle::Pool;
use super::joining;
use super::prefault::{OnProgress, Progress, prefault};
use super::settings::{default_size_of, linked};
use crate::error::{Limit, PoolError, Warning, Warnings};
use crate::memory::committed::overcommitment;
use crate::memory::huge_pages::{HugePages, free_huge_pages};
use crate::memory::page_sizes::os_page_bytes;
use crate::memory::plan::{ZonePlan, plan, plan_to_grow};
use crate::memory::pool_file::SharedOptions;
use crate::memory::zones::{Binding, MapOptions, PoolMemory, Sharing};
use crate::sequences::Sequences;
use crate::topology::Topology;
use crate::topology::limits;

impl Pool {
    /// Returns a builder with the default options.
    ///
    /// ```
    /// use zonal_linux::Pool;
    ///
    /// let pool = Pool::builder().size(256 << 20).build()?;
    /// for warning in pool.warnings() {
    ///     eprintln!("warning: {warning}"); // for example, that the kernel has too few huge pages
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder() -> PoolBuilder<'static> {
        PoolBuilder::default()
    }
}

/// When the kernel provides the physical memory of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Prefault {
    /// Page by page, when a page is first accessed.
    #[default]
    OnUse,
    /// At once, before the pool can be used. Memory that was offline is populated before it comes online again.
    AtOnce,
}

/// The machine whose nodes and CPUs a pool uses.
#[derive(Clone, Debug, Default)]
pub(super) enum Source {
    #[default]
    Live,
    Fake(usize),
    Given(Topology),
}

/// Options for building a [`Pool`]. Each option has a default.
///
/// | option | default |
/// |---|---|
/// | [`size`](Self::size) | 1 GiB, or half of [`available_bytes`](crate::available_bytes) if that is less |
/// | [`nodes`](Self::nodes) | all nodes; the share of each node is proportional to its available memory |
/// | [`topology`](Self::topology) | the running machine |
/// | [`config`](Self::config) | [`Pool::default_config`] for the size: see the [crate's page](crate#defaults) |
/// | [`huge_pages`](Self::huge_pages) | [`HugePages::Transparent`] |
/// | [`prefault`](Self::prefault) | [`Prefault::OnUse`] |
/// | [`max_size`](Self::max_size) | the size |
/// | [`shared_memory`](Self::shared_memory) | memory of this process alone |
/// | [`require_huge_pages`](Self::require_huge_pages), [`require_binding`](Self::require_binding) | warn instead |
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
    pub(super) size: Option<u64>,
    pub(super) source: Source,
    pub(super) nodes: Option<Vec<NodeId>>,
    pub(super) config: Option<Config>,
    pub(super) huge_pages: HugePages,
    pub(super) prefault: Prefault,
    pub(super) prefault_threads: Option<NonZeroUsize>,
    pub(super) on_progress: OnProgress<'a>,
    pub(super) sequences: Option<Sequences>,
    pub(super) max_size: Option<u64>,
    pub(super) sharing: Sharing,
    pub(super) requires_huge_pages: bool,
    pub(super) requires_binding: bool,
    pub(super) shared: SharedOptions,
}

impl Default for PoolBuilder<'_> {
    fn default() -> Self {
        Self {
            size: None,
            source: Source::Live,
            nodes: None,
            config: None,
            huge_pages: HugePages::default(),
            prefault: Prefault::default(),
            prefault_threads: None,
            on_progress: &|_: Progress| ControlFlow::Continue(()),
            sequences: None,
            max_size: None,
            sharing: Sharing::Private,
            requires_huge_pages: false,
            requires_binding: false,
            shared: SharedOptions::default(),
        }
    }
}

impl<'a> PoolBuilder<'a> {
    /// Sets the size of the pool in bytes. Default: 1 GiB, or half of the available memory if that is less.
    ///
    /// The size is rounded down to a multiple of 2 MiB, and so is the share of each node. If that would leave a node
    /// without memory, the size and all shares are rounded down to multiples of 64 frames instead. With
    /// [`HugePages::Explicit1G`], all shares are whole GiB.
    ///
    /// ```
    /// use zonal_linux::{Pool, PoolError, available_bytes};
    ///
    /// // A pool larger than the available memory is refused. The error contains the size that is available.
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

    /// Reserves addresses for a pool of up to `bytes`, of which only [`size`](Self::size) is online at first. Default:
    /// the pool cannot grow beyond its size.
    ///
    /// [`Pool::grow`] brings the rest online. Offline memory and its metadata use no physical memory, so the largest size may
    /// exceed the machine's memory; with `mlockall`, the metadata and [`shared_memory`](Self::shared_memory) do. The size is
    /// divided among the zones as the largest size is, and rounded down to 2 MiB in each, but at least 2 MiB are online.
    ///
    /// ```
    /// use zonal_linux::Pool;
    ///
    /// let pool = Pool::builder().size(64 << 20).max_size(1 << 40).fake_nodes(1).build()?;
    /// assert_eq!(pool.accounting().managed.get(), 16384);
    /// pool.grow(32 << 20)?;
    /// assert!(pool.accounting().managed.get() >= 24576);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn max_size(self, bytes: u64) -> Self {
        Self { max_size: Some(bytes), ..self }
    }

    /// Puts the memory of each zone in a file in memory (`memfd_create`) that other processes can map. Default: the
    /// memory is mapped in this process alone.
    ///
    /// [`Pool::memory_files`] returns the files. Only this process allocates from the pool. A child made by `fork` neither
    /// copies nor shares the memory. It may drop its frames and handles, as with [`HugePages::Explicit`]. The other
    /// options do not change. Transparent huge pages depend on `/sys/kernel/mm/transparent_hugepage/shmem_enabled`.
    ///
    /// ```
    /// use zonal_linux::{Pool, PoolRequest, SharedFrames};
    ///
    /// let pool = Pool::builder().size(64 << 20).shared_memory().build()?;
    /// let frames = SharedFrames::from(pool.alloc(&PoolRequest::page())?); // for the ring of a device, for example
    /// // SAFETY: all frames that other processes access are `SharedFrames`.
    /// for file in unsafe { pool.memory_files() } {
    ///     if let Some(offset) = file.offset_of(frames.first()) {
    ///         println!("map descriptor {:?} at {offset}", file.descriptor());
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shared_memory(self) -> Self {
        Self { sharing: Sharing::Files, ..self }
    }

    /// Makes [`build`](Self::build) fail with [`PoolError::Required`] if the pool cannot have the huge pages of
    /// [`huge_pages`](Self::huge_pages). Default: the pool uses other pages and has a [`Warning`].
    ///
    /// ```
    /// use zonal_linux::{HugePages, Pool, PoolError};
    ///
    /// let builder = Pool::builder().size(64 << 20).huge_pages(HugePages::Explicit).require_huge_pages();
    /// match builder.build() {
    ///     Ok(pool) => assert!(pool.warnings().is_empty()),
    ///     Err(PoolError::Required(warning)) => eprintln!("{warning}"), // names the node and vm.nr_hugepages
    ///     Err(other) => return Err(other.into()),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn require_huge_pages(self) -> Self {
        Self { requires_huge_pages: true, ..self }
    }

    /// Makes [`build`](Self::build) fail with [`PoolError::Required`] if the kernel does not bind the pool's memory to
    /// its nodes, or does not report the nodes. Default: the pool has a [`Warning`].
    pub fn require_binding(self) -> Self {
        Self { requires_binding: true, ..self }
    }

    /// Restricts the pool to the memory of these nodes, at least one. Default: all nodes.
    ///
    /// ```
    /// use zonal_linux::{NodeId, Pool, PoolRequest, Topology};
    ///
    /// // A pool on the first node that has memory. To choose node 1, use `NodeId::new(1)`.
    /// let live = Topology::live();
    /// let node: NodeId = live.nodes().iter().find(|node| !node.zones.is_empty()).expect("memory").id;
    /// let pool = Pool::builder().size(16 << 20).nodes([node]).build()?;
    /// assert_eq!(pool.alloc(&PoolRequest::page())?.node(), node);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn nodes(self, nodes: impl IntoIterator<Item = NodeId>) -> Self {
        Self { nodes: Some(nodes.into_iter().collect()), ..self }
    }

    /// Splits the machine into `count` emulated nodes; see [`Topology::fake`].
    ///
    /// With emulated nodes, NUMA behaviour can be tested on any machine. Fallback, policies and accounting work as on a
    /// machine with `count` nodes and this machine's CPUs, but the speed of memory does not depend on the emulated node.
    /// A thread allocates from the node of the CPU that runs it; with [`Topology::with_emulated_cpus`] it may act as any
    /// CPU.
    ///
    /// ```
    /// use zonal_linux::{NodeId, Pool, PoolRequest};
    ///
    /// let pool = Pool::builder().size(64 << 20).fake_nodes(4).build()?;
    /// let node = |id| NodeId::new(id).unwrap();
    /// // The nodes form a ring, so nodes 1 and 3 are nearer to node 0 than node 2 is.
    /// assert_eq!(pool.fallback_order(node(0)).last(), Some(&node(2)));
    /// let on_two = pool.bind([node(2)].into_iter().collect())?;
    /// assert_eq!(pool.alloc(&PoolRequest::page().policy(&on_two))?.node(), node(2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fake_nodes(self, count: usize) -> Self {
        Self { source: Source::Fake(count), ..self }
    }

    /// Sets the topology of the pool. Default: the topology of the running machine.
    pub fn topology(self, topology: Topology) -> Self {
        Self { source: Source::Given(topology), ..self }
    }

    /// Emulates the nodes and CPUs of the machine that `model` describes; see [`Topology::of_machine`].
    ///
    /// A model can be read from a file, captured on a machine, or loaded from a preset.
    ///
    /// # Errors
    /// Returns [`PoolError::NoCpu`] if the machine has no CPU.
    pub fn machine(self, model: &MachineModel) -> Result<Self, PoolError> {
        Ok(self.topology(Topology::of_machine(model)?))
    }

    /// Sets the configuration of the allocator. Default: [`Pool::default_config`] for the size.
    /// An empty [`Config::past`] means all past forms.
    ///
    /// ```
    /// use zonal_linux::{Config, Hardening, Order, Pool, PoolRequest};
    ///
    /// // Blocks of up to 16 MiB. Free frames are filled with a pattern, to detect writes after a free.
    /// let hardening = Hardening { poison: Some(0xdead_beef), ..Hardening::default() };
    /// let max_order = Order::new(12).unwrap();
    /// let size = 64 << 20;
    /// let config = Config { max_order, hardening, ..Pool::default_config(Some(size)) };
    /// let pool = Pool::builder().size(size).config(config).fake_nodes(1).build()?;
    /// assert_eq!(pool.alloc(&PoolRequest::new(max_order))?.len(), 16 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn config(self, config: Config) -> Self {
        Self { config: Some(config), ..self }
    }

    /// Sets which huge pages back the pool. Default: [`HugePages::Transparent`].
    ///
    /// If the kernel has too few huge pages, the pool uses other pages, and [`Pool::warnings`] reports the shortage.
    ///
    /// ```
    /// # use zonal_linux::{HugePages, Pool, Warning};
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
    ///
    /// 1 GiB pages back blocks of up to 1 GiB:
    ///
    /// ```no_run
    /// use zonal_linux::{Config, HugePages, Order, Pool, PoolRequest};
    ///
    /// let gib = Order::new(18).unwrap();
    /// let size = 8 << 30;
    /// let config = Config { max_order: gib, ..Pool::default_config(Some(size)) };
    /// let builder = Pool::builder().size(size).config(config).huge_pages(HugePages::Explicit1G);
    /// let pool = builder.require_huge_pages().build()?; // an error if the reserve has fewer than 8
    /// assert_eq!(pool.alloc(&PoolRequest::new(gib))?.len(), 1 << 30);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn huge_pages(self, huge_pages: HugePages) -> Self {
        Self { huge_pages, ..self }
    }

    /// Sets when the kernel provides the physical memory. Default: [`Prefault::OnUse`].
    ///
    /// With [`Prefault::AtOnce`], accesses to frames cause no page faults later. If the kernel has too little memory,
    /// [`build`](Self::build) returns an error. With [`Prefault::OnUse`], the kernel may instead kill the process when
    /// it first accesses a frame.
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

    /// Sets the thread count of [`Prefault::AtOnce`], including the calling thread. Default: the number of CPUs that
    /// the program may use, at most 16.
    pub fn prefault_threads(self, threads: NonZeroUsize) -> Self {
        Self { prefault_threads: Some(threads), ..self }
    }

    /// Sets a callback that receives the progress of [`Prefault::AtOnce`] and can stop the build.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// use zonal_linux::{Pool, Prefault, Progress};
    ///
    /// // Several threads prefault, and each of them calls the callback.
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

    /// Makes the pool access its per-CPU caches (pagesets) with try-locks instead of restartable sequences.
    ///
    /// Systems without restartable sequences always use try-locks. Use this option under a debugger, where each single
    /// step restarts a sequence, or to compare the two methods.
    pub fn without_sequences(self) -> Self {
        Self { sequences: Some(Sequences::none()), ..self }
    }

    /// Uses restartable sequences with a `struct rseq` that is not registered with the kernel.
    ///
    /// The structure is `offset` bytes from the thread pointer, and the kernel does not update it. This option is for
    /// counting instructions in simulators that do not implement restartable sequences. Pools with emulated CPUs ignore it.
    ///
    /// # Safety
    /// Only the calling thread may use the pool. At `offset`, this thread must own 32 bytes with the layout of
    /// `struct rseq`, whose CPU fields are 0.
    #[doc(hidden)]
    pub unsafe fn assume_area(self, offset: isize) -> Self {
        Self { sequences: Some(Sequences::at(offset)), ..self }
    }

    /// Maps the memory, and starts the allocator and the pool's threads.
    ///
    /// # Errors
    /// Returns an error if more memory is requested than is available, if a requested node does not exist, if the
    /// kernel refuses a system call, if the configuration is invalid, or if the progress callback stops the build.
    /// Before it returns the error, the method removes all mappings and threads that it has already created.
    pub fn build(mut self) -> Result<Pool, PoolError> {
        if let Some((place, _)) = self.shared_place()? {
            self.huge_pages = place.huge_pages(self.huge_pages)?;
        }
        let mut warnings = Warnings::default();
        let topology = self.resolve_topology()?;
        if let Some(reason) = topology.missing() {
            warnings.add(Warning::NoTopology { reason: reason.into() });
        }
        let root = Path::new("/");
        let available = limits::available(root)?;
        let size = self.checked_size(available)?;
        let config = self.config.unwrap_or_else(|| Pool::default_config(Some(size)));
        let config = self.shared_config(linked(config))?;
        let options = self.map_options(&topology, &config)?;
        let plans = self.plans(&topology, size, config.page_bytes)?;
        self.check_nodes(&topology, &plans, config.page_bytes)?;
        if let Some(place) = self.shared_place()? {
            let pool = joining::build(place, topology, &plans, config, options, self.sequences, warnings)?;
            self.check_requirements(pool.warnings())?;
            return joining::published(pool).inspect(|pool| pool.report_built(self.huge_pages));
        }
        let mut memory = PoolMemory::map(&plans, options, &mut warnings)?;
        self.check_requirements(warnings.as_slice())?; // before prefaulting, which may take minutes
        let limited_by = available.limited_by;
        if let Some((committed, available)) =
            overcommitment(available, || limits::available(root).unwrap_or(available))
        {
            warnings.add(Warning::Overcommitted { committed, available, limited_by });
        }
        if self.prefault == Prefault::AtOnce {
            prefault(&memory, self.prefault_threads, self.on_progress)?;
            memory.is_prefaulted = true;
        }
        let core = PoolCore::new(topology, memory, &config, options, self.sequences, warnings, None)?;
        self.check_requirements(&core.warnings)?;
        Pool::start(core).inspect(|pool| pool.report_built(self.huge_pages))
    }

    /// Returns an error if a pool with these warnings lacks what was required.
    fn check_requirements(&self, warnings: &[Warning]) -> Result<(), PoolError> {
        let is_refused = |warning: &&Warning| match warning {
            Warning::NoExplicitHugePages { .. } | Warning::NoTransparentHugePages { .. } => {
                self.requires_huge_pages
            }
            Warning::NotBound { .. } | Warning::NoTopology { .. } => self.requires_binding,
            Warning::Overcommitted { .. } => false,
        };
        warnings.iter().find(is_refused).map_or(Ok(()), |warning| Err(PoolError::Required(warning.clone())))
    }

    fn plans(&self, topology: &Topology, size: u64, page_bytes: u32) -> Result<Vec<ZonePlan>, PoolError> {
        let Some(max) = self.max_size else {
            return plan(topology, size, page_bytes, self.huge_pages.unit_bytes());
        };
        if max < size {
            return Err(PoolError::MaxSize { asked: size, max });
        }
        if !self.huge_pages.explicit_sizes().is_empty() {
            return Err(PoolError::ReservedHugePages);
        }
        plan_to_grow(topology, size, max, page_bytes)
    }

    fn resolve_topology(&self) -> Result<Topology, PoolError> {
        let topology = match &self.source {
            Source::Live => Topology::live(),
            Source::Fake(count) => Topology::fake(*count)?,
            Source::Given(topology) => topology.clone(),
        };
        let Some(nodes) = &self.nodes else { return Ok(topology) };
        topology.restricted_to(nodes)
    }

    fn map_options(&self, topology: &Topology, config: &Config) -> Result<MapOptions, PoolError> {
        let (page_bytes, smallest) = (config.page_bytes, os_page_bytes());
        if !page_bytes.is_power_of_two() || (page_bytes as usize) < smallest {
            return Err(PoolError::PageBytes { asked: page_bytes, smallest });
        }
        let binding = if topology.can_be_bound() { Binding::ToNodes } else { Binding::None };
        let (max_order, huge_pages) = (config.max_order, self.huge_pages);
        Ok(MapOptions { page_bytes, max_order, huge_pages, binding, sharing: self.sharing })
    }

    fn checked_size(&self, available: limits::Available) -> Result<u64, PoolError> {
        let limits::Available { bytes: available, limited_by } = available;
        let asked = self.size.unwrap_or_else(|| default_size_of(available));
        let available = available + self.reserve(None);
        if asked > available {
            return Err(PoolError::TooLarge { asked, available, limited_by });
        }
        Ok(asked)
    }

    /// Returns how many bytes of free explicit huge pages this pool can use, on one node or, for `None`, on all nodes.
    ///
    /// Callers add the result to the available memory, because the kernel does not count these pages as available.
    fn reserve(&self, node: Option<NodeId>) -> u64 {
        let sizes = self.huge_pages.explicit_sizes().iter();
        sizes.map(|&size| free_huge_pages(size, node).unwrap_or(0) * size.bytes() as u64).sum()
    }

    /// Checks that each node has enough available memory for the zones that will be bound to it.
    fn check_nodes(&self, topology: &Topology, plans: &[ZonePlan], page_bytes: u32) -> Result<(), PoolError> {
        if !topology.can_be_bound() {
            return Ok(());
        }
        for plan in plans {
            let asked = plan.online.get() * u64::from(page_bytes);
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

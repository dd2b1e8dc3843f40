//! A machine of virtual CPUs that one thread runs, and an allocator for this machine.
//!
//! Related files: `coherence.rs` records the accesses to every cell of the allocator, and `work.rs` has the work of the
//! CPUs.

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::error::Error;
use std::fmt;
use std::str::FromStr;

use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
use zonal::platform::cpu_local::{Pinned, Quiesce};
use zonal::units::{CpuId, Moment, NodeId, PageCount, Pfn, ZoneKind};
use zonal::{Allocator, Buffer, Config, Layout, Machine, Platform};

use crate::coherence::{CPUS_MAX, Caches, Watcher, with_caches};
use crate::watched::{Cell, Lock};

/// Distance between any two nodes.
const FAR: u8 = 21;

/// Number of nodes, and of CPUs on each.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) nodes: u16,
    pub(crate) cpus: u16,
}

impl Shape {
    /// Returns the machine's CPU count.
    pub(crate) const fn all_cpus(self) -> usize {
        self.nodes as usize * self.cpus as usize
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.nodes, self.cpus)
    }
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('x').and_then(|(nodes, cpus)| nodes.parse().ok().zip(cpus.parse().ok()));
        let shape = parts.map(|(nodes, cpus)| Self { nodes, cpus });
        let fits = |shape: &Self| shape.nodes <= 64 && (1..=CPUS_MAX).contains(&shape.all_cpus());
        shape.filter(fits).ok_or_else(|| format!("nodes x CPUs of each, such as 4x32, up to {CPUS_MAX} CPUs"))
    }
}

/// One thread acts as all CPUs, so no operation is in progress on any CPU between two calls of the allocator.
pub(crate) struct OneThread;

impl Quiesce for OneThread {
    fn quiesce(&self, _cpu: CpuId) {}
}

/// The platform of the virtual CPUs.
pub(crate) struct Virtual {
    clock_ns: AtomicU64,
}

impl Virtual {
    /// Advances the clock. Relaxed here and below, because there is only one thread.
    pub(crate) fn advance(&self, ns: u64) {
        self.clock_ns.fetch_add(ns, Relaxed);
    }
}

impl Platform for Virtual {
    type U8 = Cell<AtomicU8, Watcher>;
    type U32 = Cell<AtomicU32, Watcher>;
    type U64 = Cell<AtomicU64, Watcher>;
    type Lock = Lock<Watcher>;
    type CpuLocal = Pinned<OneThread>;

    fn current_cpu(&self) -> CpuId {
        CpuId::new(with_caches(|caches| caches.cpu()) as u32)
    }

    fn cpu_local(&self) -> &Pinned<OneThread> {
        &Pinned(OneThread)
    }

    fn now(&self) -> Moment {
        Moment::from_ns(self.clock_ns.load(Relaxed))
    }
}

/// Calls `then` with an allocator with `config`, for nodes of `frames` frames each, and with empty caches. Returns the
/// result of `then`.
pub(crate) fn with_world<T>(
    shape: Shape,
    frames: PageCount,
    config: &Config,
    then: impl FnOnce(&Allocator<'_, Virtual>) -> T,
) -> Result<T, Box<dyn Error>> {
    let ids: Vec<NodeId> = (0..shape.nodes).map(|id| NodeId::new(id).expect("few nodes")).collect();
    let count = u32::from(shape.cpus);
    let cpus_of = |node: NodeId| {
        let first = u32::from(node.get()) * count;
        (first..first + count).map(CpuId::new).collect::<Vec<_>>()
    };
    let cpus: Vec<Vec<CpuId>> = ids.iter().copied().map(cpus_of).collect();
    let distance = |from: NodeId, to: NodeId| if from == to { 10 } else { FAR };
    let rows: Vec<Vec<u8>> =
        ids.iter().map(|&from| ids.iter().map(|&to| distance(from, to)).collect()).collect();
    let spans: Vec<FrameRange> = (1..=u64::from(shape.nodes))
        .map(|at| FrameRange { start: Pfn::new(at * frames.get()), count: frames })
        .collect();
    let nodes: Vec<NodeDescription<'_>> = (ids.iter().zip(&cpus).zip(&rows))
        .map(|((&id, cpus), distances)| NodeDescription { id, cpus, distances })
        .collect();
    let zones: Vec<ZoneDescription<'_>> = (ids.iter().zip(&spans))
        .map(|(&node, span)| ZoneDescription {
            node,
            kind: ZoneKind::Normal,
            span: *span,
            managed: core::slice::from_ref(span),
        })
        .collect();
    let machine = Machine::new(&nodes, &zones)?;
    let layout = Layout::new(&machine, config)?;
    let requests: Vec<_> = layout.requests::<Virtual>().collect();
    let mut memory: Vec<Vec<MaybeUninit<u8>>> =
        requests.iter().map(|request| vec![MaybeUninit::uninit(); request.bytes]).collect();

    let node_of_cpu = cpus.iter().zip(0..).flat_map(|(cpus, node)| cpus.iter().map(move |_| node));
    let mut caches = Caches::new(node_of_cpu.collect());
    for (request, bytes) in requests.iter().zip(&memory) {
        caches.watch(request.place, bytes.as_ptr().addr(), bytes.len());
    }
    with_caches(|current| *current = caches);

    let mut buffers = memory.iter_mut();
    let platform = Virtual { clock_ns: AtomicU64::new(0) };
    let allocator =
        Allocator::new(platform, &machine, config, |_| buffers.next().map(|bytes| Buffer::uninit(bytes)))?;
    with_caches(Caches::flush);
    Ok(then(&allocator))
}

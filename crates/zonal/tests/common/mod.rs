//! A world for tests of the public interface: machines of any shape, a CPU, a clock and reclaimers
//! that the test steers.
#![allow(dead_code, unreachable_pub)] // each test file uses a part

pub mod effects;

use core::mem::MaybeUninit;
use std::cell::Cell;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, RwLock};

use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
use zonal::platform::SpinLock;
use zonal::reclaim::{NoReclaimer, Reclaimer};
use zonal::units::{CpuId, Moment, NodeId, PageCount, Pfn, ZoneKind};
use zonal::{Allocator, Buffer, Config, Machine, Platform};

thread_local! {
    static CPU: Cell<u32> = const { Cell::new(0) };
    static RECLAIMING: Cell<bool> = const { Cell::new(false) };
}

/// Moves the calling thread to a CPU.
pub fn run_on(cpu: u32) {
    CPU.set(cpu);
}

/// What the test steers, shared with the platform.
#[derive(Default)]
pub struct Controls {
    clock_ns: AtomicU64,
    reclaimer: RwLock<Option<Arc<dyn Reclaimer + Send>>>,
    woken: Mutex<Vec<NodeId>>,
}

impl Controls {
    pub fn advance_ms(&self, ms: u64) {
        self.clock_ns.fetch_add(ms * 1_000_000, Relaxed);
    }

    pub fn set_reclaimer(&self, reclaimer: Arc<dyn Reclaimer + Send>) {
        *self.reclaimer.write().unwrap() = Some(reclaimer);
    }

    pub fn take_woken(&self) -> Vec<NodeId> {
        std::mem::take(&mut self.woken.lock().unwrap())
    }
}

/// The platform of tests.
pub struct TestPlatform(pub Arc<Controls>);

impl Platform for TestPlatform {
    type U8 = AtomicU8;
    type U32 = AtomicU32;
    type U64 = AtomicU64;
    type Lock = SpinLock;

    fn current_cpu(&self) -> CpuId {
        CpuId::new(CPU.get())
    }

    fn now(&self) -> Moment {
        Moment::from_ns(self.0.clock_ns.load(Relaxed))
    }

    fn relax(&self, _round: u32) {
        std::thread::yield_now();
    }

    fn is_reclaiming(&self) -> bool {
        RECLAIMING.get()
    }

    fn set_reclaiming(&self, reclaiming: bool) {
        RECLAIMING.set(reclaiming);
    }

    fn wake_background_reclaim(&self, node: NodeId) {
        self.0.woken.lock().unwrap().push(node);
    }

    fn reclaimer(&self) -> &dyn Reclaimer {
        self
    }
}

impl Reclaimer for TestPlatform {
    fn count(&self, node: NodeId) -> PageCount {
        let reclaimer = self.0.reclaimer.read().unwrap().clone();
        reclaimer.map_or_else(|| NoReclaimer.count(node), |reclaimer| reclaimer.count(node))
    }

    fn reclaim(&self, node: NodeId, target: PageCount) -> PageCount {
        let reclaimer = self.0.reclaimer.read().unwrap().clone();
        reclaimer.map_or(PageCount::ZERO, |reclaimer| reclaimer.reclaim(node, target))
    }
}

/// A zone to be built: node, kind, start, spanned frames, managed ranges (start, count).
pub type ZonePlan = (u16, ZoneKind, u64, u64, Vec<(u64, u64)>);

/// A machine to be built: each node with its CPUs, zones and distances.
#[derive(Clone, Default)]
pub struct Plan {
    pub nodes: Vec<(u16, Vec<u32>)>,
    pub distances: Vec<Vec<u8>>,
    pub zones: Vec<ZonePlan>,
}

pub fn node(id: u16) -> NodeId {
    NodeId::new(id).unwrap()
}

impl Plan {
    /// `nodes` nodes of `frames` frames and `cpus` CPUs each, all equally distant.
    pub fn even(nodes: u16, cpus: u32, frames: u64) -> Self {
        Self::with_distances(cpus, frames, |_, _| 20, nodes)
    }

    /// As [`Plan::even`], with a distance function for different nodes.
    pub fn with_distances(cpus: u32, frames: u64, distance: impl Fn(u16, u16) -> u8, nodes: u16) -> Self {
        let mut plan = Self::default();
        let stride = frames.next_multiple_of(4096);
        for id in 0..nodes {
            let first = u32::from(id) * cpus;
            plan.nodes.push((id, (first..first + cpus).collect()));
            plan.distances.push((0..nodes).map(|to| if to == id { 10 } else { distance(id, to) }).collect());
            let start = (u64::from(id) + 1) * stride;
            plan.zones.push((id, ZoneKind::Normal, start, frames, vec![(start, frames)]));
        }
        plan
    }

    /// An allocator over this machine, with what steers it. Metadata is leaked: tests are short.
    pub fn build(&self, config: &Config) -> World {
        let controls = Arc::new(Controls::default());
        let allocator = self.try_build(config, TestPlatform(Arc::clone(&controls))).unwrap();
        World { allocator, controls }
    }

    pub fn try_build<P: Platform>(
        &self,
        config: &Config,
        platform: P,
    ) -> Result<Allocator<'static, P>, zonal::error::ConfigError> {
        let range = |start, count| FrameRange { start: Pfn::new(start), count: PageCount::new(count) };
        let cpus: Vec<Vec<CpuId>> =
            self.nodes.iter().map(|(_, cpus)| cpus.iter().map(|&cpu| CpuId::new(cpu)).collect()).collect();
        let nodes: Vec<NodeDescription<'_>> = (self.nodes.iter().zip(&cpus).zip(&self.distances))
            .map(|(((id, _), cpus), distances)| NodeDescription { id: node(*id), cpus, distances })
            .collect();
        let managed: Vec<Vec<FrameRange>> = self
            .zones
            .iter()
            .map(|zone| zone.4.iter().map(|&(start, count)| range(start, count)).collect())
            .collect();
        let zones: Vec<ZoneDescription<'_>> = (self.zones.iter().zip(&managed))
            .map(|(&(id, kind, start, spanned, _), managed)| ZoneDescription {
                node: node(id),
                kind,
                span: range(start, spanned),
                managed,
            })
            .collect();
        let machine = Machine::new(&nodes, &zones)?;
        Allocator::new(platform, &machine, config, |request| Some(leaked(request.bytes)))
    }
}

/// A buffer of garbage: all that the allocator relies on must be written by it.
fn leaked(bytes: usize) -> Buffer<'static> {
    Buffer::uninit(Box::leak(vec![MaybeUninit::new(0xa5_u8); bytes].into_boxed_slice()))
}

pub struct World {
    pub allocator: Allocator<'static, TestPlatform>,
    pub controls: Arc<Controls>,
}

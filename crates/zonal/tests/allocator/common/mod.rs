//! Machines of any shape for public interface tests, and a platform whose CPU, clock and reclaimer the test controls.
#![allow(unreachable_pub)] // not every test program uses every item

pub mod access;
pub mod scenarios;
pub mod traced;
#[path = "../../../examples/shared_lines/watched.rs"]
pub mod watched;
pub mod watching;
pub mod zeroed;

use core::marker::PhantomData;
use core::mem::MaybeUninit;
use std::cell::Cell;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};

use Ordering::{AcqRel, Acquire, Relaxed};
use zonal::config::{Past, ZonelistCache};
use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
use zonal::platform::pressure::PressureEvent;
use zonal::platform::reclaimer::{NoReclaimer, ReclaimRequest, Reclaimer};
use zonal::platform::recorder::Recorder;
use zonal::platform::tracepoint::Tracepoint;
use zonal::platform::{Atomic, FrameContents, RawLock, ZeroedCells};
use zonal::settings::NamedRule;
use zonal::units::{CpuId, Moment, NodeId, PageCount, Pfn, ZoneKind};
use zonal::{Allocator, Buffer, Config, Machine, Platform};

use access::{Access, Disturbance, Way};
use traced::Traced;

/// All modes of the zonelist cache, from `On` to `Off`.
pub const MODES: [ZonelistCache; ZonelistCache::RULES.len()] =
    *ZonelistCache::RULES.first_chunk().expect("as long as the table");

thread_local! {
    static CPU: Cell<u32> = const { Cell::new(0) };
    static RECLAIMING: Cell<bool> = const { Cell::new(false) };
    static REENTERED: Cell<bool> = const { Cell::new(false) };
}

/// Makes `cpu` the current CPU of the calling thread.
pub fn run_on(cpu: u32) {
    CPU.set(cpu);
}

/// Returns the current CPU of the calling thread.
pub fn cpu() -> u32 {
    CPU.get()
}

/// Sets whether the calling thread counts as reclaiming.
pub fn reclaim_on_this_thread(reclaiming: bool) {
    RECLAIMING.set(reclaiming);
}

/// Sets whether the calling thread counts as a signal handler that interrupted its own thread. A handler must not wait
/// for locks.
pub fn reenter_on_this_thread(reentered: bool) {
    REENTERED.set(reentered);
}

/// A lock that yields the processor while it waits. Tests run more threads than there are processors.
pub struct YieldLock(AtomicU32);

impl RawLock for YieldLock {
    fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    fn lock(&self) {
        assert!(!REENTERED.get(), "a handler waits for the thread it has interrupted");
        while !self.try_lock() {
            std::thread::yield_now();
        }
    }

    fn try_lock(&self) -> bool {
        // Acquire pairs with the release in `unlock`. Relaxed on failure, because the caller then reads nothing that
        // the lock protects.
        self.0.compare_exchange(0, 1, Acquire, Relaxed).is_ok()
    }

    fn unlock(&self) {
        // AcqRel: the release pairs with the acquire in `try_lock`.
        assert_eq!(self.0.swap(0, AcqRel), 1, "a lock was freed that was not held");
    }
}

/// Contents of frames. One word stands for the contents of each frame.
pub struct Contents {
    first: u64,
    words: Vec<AtomicU64>,
}

impl Contents {
    /// Returns the word of `frame`.
    pub fn word(&self, frame: u64) -> &AtomicU64 {
        &self.words[(frame - self.first) as usize]
    }
}

impl FrameContents for Contents {
    fn fill(&self, first: Pfn, count: PageCount, pattern: u64) {
        // Relaxed here and below: the caller already owns the frame.
        (first.get()..first.get() + count.get()).for_each(|frame| self.word(frame).store(pattern, Relaxed));
    }

    fn holds(&self, first: Pfn, count: PageCount, pattern: u64) -> bool {
        (first.get()..first.get() + count.get()).all(|frame| self.word(frame).load(Relaxed) == pattern)
    }
}

/// A test's action on a memory pressure event.
type OnPressure = Box<dyn Fn(&PressureEvent) + Send + Sync>;

/// A test's change to what the platform returns.
type Change<T> = OnceLock<Box<dyn Fn(T) -> T + Send + Sync>>;

/// The state of the platform that the test controls.
#[derive(Default)]
pub struct Controls {
    access: Access,
    clock_ns: AtomicU64,
    contents: OnceLock<Contents>,
    reclaimer: RwLock<Option<Arc<dyn Reclaimer + Send>>>,
    woken: Mutex<Vec<NodeId>>,
    pressure: Mutex<Vec<PressureEvent>>,
    on_pressure: OnceLock<OnPressure>,
    on_relax: OnceLock<Box<dyn Fn() + Send + Sync>>,
    change_cpu: Change<u32>,
    change_time: Change<Moment>,
    recorder: OnceLock<Arc<dyn Recorder + Send + Sync>>,
    /// Counts of the tracepoints received.
    pub traced: Traced,
}

impl Controls {
    pub fn advance_ms(&self, ms: u64) {
        self.clock_ns.fetch_add(ms * 1_000_000, Relaxed);
    }

    /// Sets the clock to `ms` milliseconds. The new time may be earlier than the old one.
    pub fn set_ms(&self, ms: u64) {
        self.clock_ns.store(ms * 1_000_000, Relaxed);
    }

    /// Adds contents for the `count` frames from `first` on. Each word is set to `pattern`.
    pub fn set_contents(&self, first: u64, count: u64, pattern: u64) {
        let words = (0..count).map(|_| AtomicU64::new(pattern)).collect();
        set_once(&self.contents, Contents { first, words });
    }

    pub fn contents(&self) -> &Contents {
        self.contents.get().expect("contents were set")
    }

    pub fn set_reclaimer(&self, reclaimer: Arc<dyn Reclaimer + Send>) {
        *self.reclaimer.write().unwrap() = Some(reclaimer);
    }

    /// Returns the events of memory pressure since the previous call.
    pub fn take_pressure(&self) -> Vec<PressureEvent> {
        std::mem::take(&mut self.pressure.lock().unwrap())
    }

    /// Calls `each` with every event of memory pressure from now on.
    pub fn on_pressure(&self, each: impl Fn(&PressureEvent) + Send + Sync + 'static) {
        set_once(&self.on_pressure, Box::new(each));
    }

    /// Calls `each` whenever a thread waits for another one from now on.
    pub fn on_relax(&self, each: impl Fn() + Send + Sync + 'static) {
        set_once(&self.on_relax, Box::new(each));
    }

    /// Makes `change` of a thread's CPU the current CPU from now on.
    pub fn change_cpu(&self, change: impl Fn(u32) -> u32 + Send + Sync + 'static) {
        set_once(&self.change_cpu, Box::new(change));
    }

    /// Makes `change` of the clock's time the time from now on.
    pub fn change_time(&self, change: impl Fn(Moment) -> Moment + Send + Sync + 'static) {
        set_once(&self.change_time, Box::new(change));
    }

    /// Lets `recorder` record the requests that need the slow path.
    pub fn set_recorder(&self, recorder: Arc<dyn Recorder + Send + Sync>) {
        set_once(&self.recorder, recorder);
    }

    /// Lets `disturbance` disturb the operations of CPUs on pagesets.
    pub fn disturb(&self, disturbance: &'static dyn Disturbance) {
        self.access.disturb(disturbance);
    }

    pub fn take_woken(&self) -> Vec<NodeId> {
        std::mem::take(&mut self.woken.lock().unwrap())
    }
}

fn set_once<T>(at: &OnceLock<T>, value: T) {
    assert!(at.set(value).is_ok(), "it is set once");
}

/// The cells and locks of a test platform.
pub trait Cells: Sized + 'static {
    type U8: Atomic<u8>;
    type U32: Atomic<u32>;
    type U64: Atomic<u64>;
    type Lock: RawLock;
    /// Proof that zero bytes are valid cells, as in [`Platform::ZEROED_CELLS`].
    const ZEROED: Option<ZeroedCells<TestPlatform<Self>>> = None;
}

/// The atomics of `core`, and [`YieldLock`].
pub struct Native;

impl Cells for Native {
    type U8 = AtomicU8;
    type U32 = AtomicU32;
    type U64 = AtomicU64;
    type Lock = YieldLock;
}

/// The platform of tests.
pub struct TestPlatform<C: Cells = Native>(pub Arc<Controls>, PhantomData<fn() -> C>);

impl<C: Cells> TestPlatform<C> {
    pub fn new(controls: Arc<Controls>) -> Self {
        Self(controls, PhantomData)
    }
}

impl Default for TestPlatform {
    fn default() -> Self {
        Self::new(Arc::default())
    }
}

impl<C: Cells> Platform for TestPlatform<C> {
    type U8 = C::U8;
    type U32 = C::U32;
    type U64 = C::U64;
    type Lock = C::Lock;
    type CpuLocal = Access;

    const ZEROED_CELLS: Option<ZeroedCells<Self>> = C::ZEROED;

    fn current_cpu(&self) -> CpuId {
        let cpu = CPU.get();
        CpuId::new(self.0.change_cpu.get().map_or(cpu, |change| change(cpu)))
    }

    fn cpu_local(&self) -> &Access {
        &self.0.access
    }

    fn now(&self) -> Moment {
        let now = Moment::from_ns(self.0.clock_ns.load(Relaxed));
        self.0.change_time.get().map_or(now, |change| change(now))
    }

    fn relax(&self, _round: u32) {
        self.0.on_relax.get().inspect(|each| each());
        std::thread::yield_now();
    }

    fn is_reclaiming(&self) -> bool {
        RECLAIMING.get()
    }

    fn is_reentered(&self) -> bool {
        REENTERED.get()
    }

    fn begin_reclaiming(&self) {
        assert!(!RECLAIMING.replace(true), "reclaim is never nested");
    }

    fn end_reclaiming(&self) {
        assert!(RECLAIMING.replace(false), "reclaim ends once");
    }

    fn wake_background_reclaim(&self, node: NodeId) {
        self.0.woken.lock().unwrap().push(node);
    }

    fn pressure(&self, event: &PressureEvent) {
        self.0.pressure.lock().unwrap().push(*event);
        if let Some(each) = self.0.on_pressure.get() {
            each(event);
        }
    }

    fn trace(&self, point: Tracepoint) {
        self.0.traced.count(point);
    }

    fn recorder(&self) -> Option<&dyn Recorder> {
        self.0.recorder.get().map(|recorder| &**recorder as &dyn Recorder)
    }

    fn reclaimer(&self) -> &dyn Reclaimer {
        self
    }

    fn contents(&self) -> Option<&dyn FrameContents> {
        self.0.contents.get().map(|contents| contents as &dyn FrameContents)
    }
}

impl<C: Cells> Reclaimer for TestPlatform<C> {
    fn count(&self, request: &ReclaimRequest) -> PageCount {
        assert!(self.is_reclaiming(), "who counts is reclaiming");
        let reclaimer = self.0.reclaimer.read().unwrap().clone();
        reclaimer.map_or_else(|| NoReclaimer.count(request), |reclaimer| reclaimer.count(request))
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        assert!(self.is_reclaiming(), "the caller is not marked as reclaiming");
        let reclaimer = self.0.reclaimer.read().unwrap().clone();
        reclaimer.map_or_else(|| NoReclaimer.reclaim(request), |reclaimer| reclaimer.reclaim(request))
    }
}

/// A zone of the machine to build: node, kind, start, spanned frames, and managed ranges as (start, count).
pub type ZonePlan = (u16, ZoneKind, u64, u64, Vec<(u64, u64)>);

/// The machine to build: nodes with their CPUs, distances, and zones.
#[derive(Clone, Default)]
pub struct Plan {
    pub nodes: Vec<(u16, Vec<u32>)>,
    pub distances: Vec<Vec<u8>>,
    pub zones: Vec<ZonePlan>,
    /// Start and length of memory that may come online later.
    pub hotplug: Vec<(u64, u64)>,
    /// Present frames of each zone. If empty, exactly the managed frames are present.
    pub present: Vec<u64>,
    /// The way in which CPUs access their pagesets.
    pub way: Way,
}

pub fn node(id: u16) -> NodeId {
    NodeId::new(id).unwrap()
}

impl Plan {
    /// Returns a plan of `nodes` nodes with `frames` frames and `cpus` CPUs each, all equally distant.
    pub fn even(nodes: u16, cpus: u32, frames: u64) -> Self {
        Self::with_distances(cpus, frames, |_, _| 20, nodes)
    }

    /// Returns a plan like [`Plan::even`]. `distance` returns the distance between two different nodes.
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

    /// Builds an allocator for this machine, and returns it with its controls. All past forms are linked, unless the
    /// configuration has others. The metadata is leaked, because the test process soon ends.
    pub fn build(&self, config: &Config) -> World {
        self.build_in(config, |_| ())
    }

    /// Returns the plan with CPUs that access their pagesets in a certain way.
    pub fn accessed(self, way: Way) -> Self {
        Self { way, ..self }
    }

    /// Works like [`Plan::build`], but calls `prepare` with the controls before it builds the allocator.
    pub fn build_in(&self, config: &Config, prepare: impl FnOnce(&Controls)) -> World {
        let past = if config.past == Past::default() { zonal_history::PAST } else { config.past };
        self.build_of(&Config { past, ..*config }, prepare)
    }

    /// Works like [`Plan::build_in`], but with any cells, and links only the past forms of the configuration.
    pub fn build_of<C: Cells>(&self, config: &Config, prepare: impl FnOnce(&Controls)) -> World<C> {
        let controls = self.controls();
        prepare(&controls);
        let allocator = self.try_build(config, TestPlatform::new(Arc::clone(&controls))).unwrap();
        World { allocator, controls }
    }

    /// Returns the controls of a platform for this machine.
    pub fn controls(&self) -> Arc<Controls> {
        let last = self.nodes.iter().flat_map(|(_, cpus)| cpus).max();
        let cpus = last.map_or(0, |&last| last as usize + 1);
        Arc::new(Controls { access: Access::new(self.way, cpus), ..Controls::default() })
    }

    /// Iterates over the frames that are managed at start.
    pub fn frames(&self) -> impl Iterator<Item = u64> + '_ {
        self.zones.iter().flat_map(|zone| &zone.4).flat_map(|&(start, count)| start..start + count)
    }

    pub fn try_build<P: Platform>(
        &self,
        config: &Config,
        platform: P,
    ) -> Result<Allocator<'static, P>, zonal::error::ConfigError> {
        self.try_build_from(config, platform, leaked)
    }

    /// Works like [`Plan::try_build`], but with the metadata in the buffers that `buffer` returns.
    pub fn try_build_from<P: Platform>(
        &self,
        config: &Config,
        platform: P,
        buffer: fn(usize) -> Buffer<'static>,
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
        let hotplug: Vec<FrameRange> =
            self.hotplug.iter().map(|&(start, count)| range(start, count)).collect();
        let present: Vec<PageCount> = self.present.iter().map(|&frames| PageCount::new(frames)).collect();
        let mut machine = Machine::new(&nodes, &zones)?.with_hotplug(&hotplug)?;
        if !present.is_empty() {
            machine = machine.with_present(&present)?;
        }
        Allocator::new(platform, &machine, config, |request| Some(buffer(request.bytes)))
    }
}

/// Returns a leaked buffer of garbage. An allocator that relies on a byte it did not write would therefore fail.
fn leaked(bytes: usize) -> Buffer<'static> {
    Buffer::uninit(Box::leak(vec![MaybeUninit::new(0xa5_u8); bytes].into_boxed_slice()))
}

pub struct World<C: Cells = Native> {
    pub allocator: Allocator<'static, TestPlatform<C>>,
    pub controls: Arc<Controls>,
}

/// Converts a number to an order.
pub fn order(order: u8) -> zonal::units::Order {
    zonal::units::Order::new(order).unwrap()
}

/// Returns the range of `count` frames from `start` on.
pub fn range(start: u64, count: u64) -> FrameRange {
    FrameRange { start: Pfn::new(start), count: PageCount::new(count) }
}

/// A small generator of pseudo-random numbers (splitmix64): the same seed gives the same history.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.bits() % bound
    }

    /// Returns `true` once in `n` times on average.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// Returns the rounds of a stress test: one round, or as many as start within the seconds that the environment sets.
pub fn stress_rounds() -> impl Iterator<Item = u64> {
    let seconds = std::env::var("ZONAL_STRESS_SECONDS").ok().and_then(|value| value.parse().ok());
    let until = seconds.map(|seconds| std::time::Instant::now() + std::time::Duration::from_secs(seconds));
    (0..).take_while(move |&round| round == 0 || until.is_some_and(|until| std::time::Instant::now() < until))
}

/// Returns how often to repeat a part of a test: `everyday`, or `deeper` with the variable `ZONAL_DEEPER`.
pub fn repeats(everyday: u64, deeper: u64) -> u64 {
    if std::env::var_os("ZONAL_DEEPER").is_some() { deeper } else { everyday }
}

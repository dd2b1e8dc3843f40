//! The conformance scenarios on the simulator's platform.
//!
//! The machine's memory is the buffer of the scenarios' allocators and the stack below it, where the scenarios have cells and
//! locks of their own. An access to a line that another CPU has changed therefore takes time, and lets that CPU run. On
//! [`Lab`] itself, jobs begin at random times and run freely. On [`Watched`], a job also pauses before each access at which
//! the engine could run another thread, so not in a pinned section.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::mem::{self, MaybeUninit, transmute};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, PoisonError};

use zonal::Platform;
use zonal::platform::RawLock;
use zonal::units::{CpuId, Moment, NodeId};
use zonal_conformance::{
    Event, Harness, Job, Kit, NotSupported, Outcome, Rule, SCENARIOS, Scenario, Watch, WatchedCell,
    memory_bytes,
};

use super::cells::{CellU8, CellU32, CellU64};
use super::coherence::{self, Directory};
use super::engine::{Role, Threads};
use super::geometry::Geometry;
use super::hardware::{Arbitration, Hardware, LockKind};
use super::locks::SimLock;
use super::platform::{Lab, LabCpus};
use super::time::Time;
use super::world::{self, World};

/// Number of CPUs that the scenarios' allocators have. The simulated machine has one more.
const CPUS: u32 = 3;
/// Sizes of the scenarios' buffer, and of the stack below it, in bytes.
const BUFFER: usize = 128 << 10;
const STACK: usize = 512 << 10;
/// Largest delay with which a job begins, in nanoseconds. The shortest jobs take a little longer.
const DELAY_NS: f64 = 100.0;
/// Time after which a run is stopped, because its CPUs wait for each other.
const LIMIT: Time = Time::from_ps(1_000_000_000_000);

type Hook = &'static dyn Fn(Event);

thread_local! {
    /// The hooks of simulated threads, by thread.
    static HOOKS: RefCell<Vec<Option<Hook>>> = const { RefCell::new(Vec::new()) };
}

fn running_thread() -> usize {
    world::with(|world| world.thread().index()).unwrap_or_default()
}

/// Replaces the hook of a simulated thread.
fn replace_hook(thread: usize, hook: Option<Hook>) -> Option<Hook> {
    HOOKS.with_borrow_mut(|hooks| {
        hooks.resize(hooks.len().max(thread + 1), None);
        mem::replace(&mut hooks[thread], hook)
    })
}

/// Returns the hook of the running simulated thread.
fn hook() -> Option<Hook> {
    HOOKS.with_borrow(|hooks| hooks.get(running_thread()).copied().flatten())
}

fn emit(event: Event) {
    if let Some(hook) = hook() {
        hook(event);
    }
}

/// Gives a simulated thread its former hook back when it is dropped.
struct Reset(usize, Option<Hook>);

impl Drop for Reset {
    fn drop(&mut self) {
        replace_hook(self.0, self.1);
    }
}

/// Reports accesses, unless the engine cannot run another thread at them.
struct Unpinned;

impl Watch for Unpinned {
    fn on_access() {
        if world::with(World::is_pinned) == Some(false) {
            emit(Event::Access);
        }
    }
}

/// The simulator's platform with cells that report their accesses.
struct Watched;

impl Platform for Watched {
    type U8 = WatchedCell<CellU8, Unpinned>;
    type U32 = WatchedCell<CellU32, Unpinned>;
    type U64 = WatchedCell<CellU64, Unpinned>;
    type Lock = WatchedLock;
    type CpuLocal = LabCpus;

    fn current_cpu(&self) -> CpuId {
        Lab.current_cpu()
    }

    fn cpu_local(&self) -> &LabCpus {
        Unpinned::on_access(); // a section of pinned accesses follows
        &LabCpus
    }

    fn now(&self) -> Moment {
        Lab.now()
    }

    fn relax(&self, round: u32) {
        assert!(round < 10_000, "a CPU waits for ever");
        emit(Event::Waits(None));
        Lab.relax(round);
    }

    fn wake_background_reclaim(&self, node: NodeId) {
        Lab.wake_background_reclaim(node);
    }
}

/// A lock of the simulator. A watched thread gives its turn away while another has the lock.
struct WatchedLock(SimLock);

impl RawLock for WatchedLock {
    fn new() -> Self {
        Self(SimLock::new())
    }

    fn lock(&self) {
        if hook().is_none() {
            return self.0.lock();
        }
        while !self.0.try_lock() {
            emit(Event::Waits(None));
            Lab.relax(0);
        }
    }

    fn try_lock(&self) -> bool {
        self.0.try_lock()
    }

    fn unlock(&self) {
        self.0.unlock();
    }
}

/// A platform under test.
trait Tested: Platform {
    const IS_WATCHED: bool;
    const NEW: Self;
}

impl Tested for Lab {
    const IS_WATCHED: bool = false;
    const NEW: Self = Self;
}

impl Tested for Watched {
    const IS_WATCHED: bool = true;
    const NEW: Self = Self;
}

/// The current simulated machine.
struct Machine<P> {
    cpus: Vec<CpuId>,
    rounds: u32,
    /// The rule that is tested.
    tested: Mutex<Option<Rule>>,
    /// Time at which the run is stopped, in picoseconds.
    stop_ps: AtomicU64,
    platform: PhantomData<P>,
}

/// Calls `work` with the current world.
fn in_world<R>(work: impl FnOnce(&World) -> R) -> R {
    world::with(work).expect("the test has entered a world")
}

impl<P: Tested> Harness for Machine<P> {
    type Platform = P;

    fn platform(&self) -> P {
        P::NEW
    }

    fn cpus(&self) -> &[CpuId] {
        &self.cpus
    }

    fn run(&self, jobs: &[Job<'_>]) {
        in_world(|world| {
            let (mut threads, stop) = (Threads::new(), AtomicBool::new(false));
            for &(cpu, work) in jobs {
                let delay = Time::from_ns(world.random.borrow_mut().f64() * DELAY_NS);
                let added = threads.add(cpu.index(), Role::Foreground, world.now() + delay, work);
                added.expect("memory for a stack");
            }
            // Relaxed, here and below: all threads run on one host thread.
            self.stop_ps.store((world.now() + LIMIT).ps(), Relaxed);
            let limit = || {
                while world.now().ps() < self.stop_ps.load(Relaxed) {
                    world.sleep_until(Time::from_ps(self.stop_ps.load(Relaxed)));
                }
                stop.store(true, Relaxed);
            };
            threads.add(0, Role::Background, world.now(), limit).expect("memory for a stack");
            let ended = world.run(threads, &stop).unwrap_or_else(|error| panic!("{error}"));
            // A run leaves the clock of the thread that ran last. Time does not go back from run to run.
            let ended = ended.into_iter().filter(|&end| end != Time::NEVER);
            world.set_now(ended.max().unwrap_or_default());
        });
    }

    fn call(&self, call: &mut dyn FnMut()) {
        call();
        // Otherwise a thread would go on until it misses its cache, ahead of all others.
        in_world(World::sync);
    }

    fn spin(&self) {
        Lab.relax(0);
    }

    fn rounds(&self) -> u32 {
        self.rounds
    }

    fn watch(&self, work: &mut dyn FnMut(), hook: &dyn Fn(Event)) -> Result<(), NotSupported> {
        if !P::IS_WATCHED {
            return Err(NotSupported("the cells of the simulator report their accesses only to its clocks"));
        }
        // SAFETY: `Reset` removes the hook before this function returns or unwinds, so the reference is not used later.
        #[allow(unsafe_code)]
        let hook: Hook = unsafe { transmute(hook) };
        let thread = running_thread();
        let _reset = Reset(thread, replace_hook(thread, Some(hook)));
        work();
        Ok(())
    }

    fn handlers(&self) -> Result<(), NotSupported> {
        Err(NotSupported("simulated CPUs have no interrupt handlers"))
    }

    fn preemption(&self) -> Result<(), NotSupported> {
        Ok(())
    }

    fn unknown_cpu(&self) -> Result<CpuId, NotSupported> {
        Ok(CpuId::new(CPUS))
    }

    fn pass_ms(&self, _platform: &P, ms: u64) -> Result<(), NotSupported> {
        let time = Time::from_ns(1e6).times(ms);
        self.stop_ps.fetch_add(time.ps(), Relaxed);
        in_world(|world| world.sleep_until(world.now() + time));
        Ok(())
    }

    fn take_wake_up(&self, _platform: &P, node: NodeId) -> Result<bool, NotSupported> {
        Ok(in_world(|world| world.take_wake_up(world.place_of(node))))
    }

    fn begin(&self, rule: Rule) {
        *self.tested.lock().unwrap_or_else(PoisonError::into_inner) = Some(rule);
    }
}

/// Returns two nodes with two CPUs each.
fn geometry() -> Geometry {
    let ids = [0, 1].map(|id| NodeId::new(id).expect("a small id"));
    Geometry { node_of_cpu: vec![0, 0, 1, 1], nodes: 2, ids: ids.to_vec(), distances: vec![10, 21, 21, 10] }
}

/// Runs all scenarios on a machine with this hardware.
fn conforms<P: Tested>(hardware: Hardware, rounds: u32) {
    let mut memory = [MaybeUninit::uninit(); BUFFER];
    let base = memory.as_ptr().addr().next_multiple_of(64) - STACK;
    let watched = coherence::Watched { base, parts: vec![(STACK, 0), (BUFFER, 1)], own_lines: 0 };
    let (geometry, cpus) = (geometry(), (0..CPUS).map(CpuId::new).collect());
    let directory = Directory::new(&watched, &geometry, &hardware);
    let world = World::new(geometry, hardware, directory, 1);
    let _entered = world.enter();
    let (tested, stop_ps) = (Mutex::new(None), AtomicU64::new(0));
    let machine = Machine::<P> { cpus, rounds, tested, stop_ps, platform: PhantomData };
    assert!(memory_bytes::<P>(&machine.cpus) <= BUFFER, "{} bytes", memory_bytes::<P>(&machine.cpus));
    let mut kit = Kit::new(&machine, &mut memory);
    let mut skipped = Vec::new();
    for scenario in SCENARIOS {
        let outcome = catch_unwind(AssertUnwindSafe(|| kit.run(scenario))).unwrap_or_else(|panic| {
            let rule =
                machine.tested.lock().unwrap_or_else(PoisonError::into_inner).expect("a part has begun");
            let reason = panic.downcast_ref().map_or("the allocator panicked", String::as_str);
            panic!("{scenario:?}: broken rule: {rule}: {reason}");
        });
        println!("{scenario:?}: {outcome}");
        assert!(!matches!(outcome, Outcome::Failed(_)), "{scenario:?}: {outcome}");
        if matches!(outcome, Outcome::NotSupported(_)) {
            skipped.push(scenario);
        }
    }
    assert_eq!(skipped, [Scenario::Handlers]);
    // CPUs have waited for lines of the scenarios' own cells and locks, and for lines of the allocators.
    let waited: Vec<usize> = world.line_waits().iter().filter_map(|&(address, _)| address).collect();
    assert!(waited.iter().any(|&address| address < base + STACK), "{waited:x?}");
    assert!(waited.iter().any(|&address| address >= base + STACK), "{waited:x?}");
}

#[test]
fn threads_that_run_freely() {
    conforms::<Lab>(Hardware::default(), 100);
}

#[test]
fn threads_that_spin_and_retry() {
    let (lock, arbitration) = (LockKind::Spinning, Arbitration::Retry);
    conforms::<Lab>(Hardware { lock, arbitration, refusal_limit: 64.0, ..Hardware::default() }, 100);
}

#[test]
fn threads_that_pause_at_each_access() {
    conforms::<Watched>(Hardware::default(), 20);
}

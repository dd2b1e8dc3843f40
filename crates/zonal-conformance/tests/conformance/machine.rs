//! A machine whose CPUs are threads, its platform, and its harness.

use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use zonal::Platform;
use zonal::units::{CpuId, Moment, NodeId};
use zonal_conformance::{Event, Harness, Job, Kit, NotSupported, Outcome, Rule, Scenario, memory_bytes};

use crate::access::Access;
use crate::cells::{Lock, TestCell, emit, has, holds_locks, start_thread, with_hook};
use crate::kernel::{Cpus, Kernel, safe_point};
use crate::sequences::Generations;

/// Ids of the CPUs. The last is missing in the machine.
const UNKNOWN: u32 = 77;

/// A way in which CPUs access their pagesets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// [`zonal::platform::cpu_local::TryLock`].
    Locks,
    /// Plain loads and stores, with interrupts off.
    Pinned,
    /// The same on the only CPU, [`zonal::platform::cpu_local::OneCpu`].
    Alone,
    /// Restartable sequences.
    Sequences,
}

/// A mistake that is planted in a platform.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mistake {
    None,
    TornAdd,
    LockNeverWaits,
    LostUnlock,
    WrongCpu,
    ClockBackwards,
    ClockWraps,
    OneWakeUpOnly,
    QuiesceReturnsEarly,
    LockWordLast,
    WordBeforeSlot,
    RemoteLockUnchecked,
    NoRemoteFlag,
    QuiesceSkipsOffline,
    BlindHandlers,
}

/// What the harness and its platforms share.
pub(crate) struct Shared {
    pub(crate) way: Way,
    mistake: Mistake,
    cpus: Vec<CpuId>,
    /// The CPUs that answer requests, if accesses are [`Way::Pinned`].
    mailboxes: Arc<Cpus>,
    pub(crate) kernel: Kernel,
    pub(crate) generations: Generations,
    pub(crate) online: Vec<AtomicBool>,
    /// The rule that is broken if a job panics.
    tested: Mutex<Option<Rule>>,
}

thread_local! {
    static CPU: Cell<u32> = const { Cell::new(UNKNOWN) };
}

/// Lets other threads run. On a busy machine, a thread that wakes up runs sooner than one that yields.
pub(crate) fn nap() {
    thread::sleep(Duration::from_nanos(1));
}

/// The platform.
pub(crate) struct Test {
    shared: Arc<Shared>,
    access: Access,
    ms: AtomicU64,
    passes: AtomicU64,
    /// Nodes whose worker was woken, one bit each.
    woken: AtomicU64,
}

impl Platform for Test {
    type U8 = TestCell<AtomicU8>;
    type U32 = TestCell<AtomicU32>;
    type U64 = TestCell<AtomicU64>;
    type Lock = Lock;
    type CpuLocal = Access;

    fn current_cpu(&self) -> CpuId {
        let cpu = CPU.get();
        CpuId::new(if has(Mistake::WrongCpu) && cpu == 1 { 0 } else { cpu })
    }

    fn cpu_local(&self) -> &Access {
        &self.access
    }

    fn now(&self) -> Moment {
        let ms = self.ms.load(Relaxed);
        Moment::from_ns(1_000_000 * if has(Mistake::ClockWraps) { u64::from(ms as u32) } else { ms })
    }

    fn relax(&self, round: u32) {
        assert!(round < 10_000, "a CPU waits for ever");
        emit(Event::Waits(None));
        safe_point();
        nap();
    }

    fn is_reentered(&self) -> bool {
        holds_locks() && !has(Mistake::BlindHandlers)
    }

    fn wake_background_reclaim(&self, node: NodeId) {
        let bit = 1 << node.index();
        if has(Mistake::OneWakeUpOnly) {
            self.woken.store(bit, Release);
        } else {
            self.woken.fetch_or(bit, AcqRel);
        }
    }
}

/// The outcomes of scenarios, and the rule that was broken with what showed it.
type Report = (Vec<(Scenario, Outcome)>, Option<(Rule, String)>);

/// The harness.
pub(crate) struct Machine(Arc<Shared>);

impl Machine {
    pub(crate) fn new(cpus: u32, way: Way, mistake: Mistake) -> Self {
        let mailboxes = Cpus::new(cpus as usize);
        Self(Arc::new(Shared {
            way,
            mistake,
            cpus: (0..cpus).map(CpuId::new).collect(),
            kernel: Kernel::new(&mailboxes),
            mailboxes,
            generations: Generations::new(cpus as usize),
            online: (0..cpus).map(|_| AtomicBool::new(true)).collect(),
            tested: Mutex::new(None),
        }))
    }

    fn work(&self, cpu: CpuId, work: &dyn Fn()) {
        CPU.set(cpu.get());
        start_thread(self.0.mistake);
        let answers = self.0.way == Way::Pinned && self.0.cpus.contains(&cpu);
        let _running = answers.then(|| self.0.mailboxes.start(cpu));
        work();
    }

    /// Runs scenarios until a rule is broken.
    pub(crate) fn run_all(&self, scenarios: &[Scenario]) -> Report {
        let mut memory = vec![MaybeUninit::uninit(); memory_bytes::<Test>(self.cpus())];
        let mut kit = Kit::new(self, &mut memory);
        let mut outcomes = Vec::new();
        for &scenario in scenarios {
            let Ok(outcome) = catch_unwind(AssertUnwindSafe(|| kit.run(scenario))) else {
                let rule = self.0.tested.lock().unwrap_or_else(PoisonError::into_inner).expect("it began");
                return (outcomes, Some((rule, format!("{scenario:?}: the allocator panicked: {rule}"))));
            };
            println!("{scenario:?}: {outcome}");
            if let Outcome::Failed(failure) = outcome {
                return (outcomes, Some((failure.rule, format!("{scenario:?}: {failure}"))));
            }
            outcomes.push((scenario, outcome));
        }
        (outcomes, None)
    }
}

impl Harness for Machine {
    type Platform = Test;

    fn platform(&self) -> Test {
        let shared = Arc::clone(&self.0);
        let [ms, passes, woken] = [const { AtomicU64::new(0) }; 3];
        Test { access: Access(Arc::clone(&shared)), shared, ms, passes, woken }
    }

    fn cpus(&self) -> &[CpuId] {
        &self.0.cpus
    }

    fn run(&self, jobs: &[Job<'_>]) {
        let [(cpu, own), others @ ..] = jobs else { return };
        thread::scope(|scope| {
            for &(cpu, work) in others {
                scope.spawn(move || self.work(cpu, work));
            }
            self.work(*cpu, own);
        });
    }

    fn call(&self, call: &mut dyn FnMut()) {
        call();
        safe_point();
    }

    fn spin(&self) {
        nap();
    }

    fn rounds(&self) -> u32 {
        20
    }

    fn watch(&self, work: &mut dyn FnMut(), hook: &dyn Fn(Event)) -> Result<(), NotSupported> {
        with_hook(hook, work);
        Ok(())
    }

    fn handlers(&self) -> Result<(), NotSupported> {
        match self.0.way {
            Way::Locks | Way::Sequences => Ok(()),
            Way::Pinned | Way::Alone => Err(NotSupported("interrupts are off during calls")),
        }
    }

    fn preemption(&self) -> Result<(), NotSupported> {
        match self.0.way {
            Way::Locks | Way::Sequences => Ok(()),
            Way::Pinned | Way::Alone => Err(NotSupported("preemption is off during calls")),
        }
    }

    fn unknown_cpu(&self) -> Result<CpuId, NotSupported> {
        if self.0.way == Way::Alone {
            return Err(NotSupported("there is no other CPU"));
        }
        Ok(CpuId::new(UNKNOWN))
    }

    fn pass_ms(&self, platform: &Test, ms: u64) -> Result<(), NotSupported> {
        const DAY_MS: u64 = 24 * 3600 * 1000;
        let passes = platform.passes.fetch_add(1, Relaxed);
        let back = if has(Mistake::ClockBackwards) && passes == 5 { DAY_MS } else { 0 };
        let before = if passes == 0 { DAY_MS } else { platform.ms.load(Relaxed) };
        platform.ms.store(before + ms - back, Relaxed);
        Ok(())
    }

    fn take_wake_up(&self, platform: &Test, node: NodeId) -> Result<bool, NotSupported> {
        let bit = 1 << node.index();
        Ok(platform.woken.fetch_and(!bit, AcqRel) & bit != 0)
    }

    fn begin(&self, rule: Rule) {
        *self.0.tested.lock().unwrap_or_else(PoisonError::into_inner) = Some(rule);
    }

    fn set_online(&self, platform: &Test, cpu: CpuId, online: bool) {
        platform.shared.online[cpu.index()].store(online, Release);
    }
}

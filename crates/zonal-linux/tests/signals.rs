//! Restartable sequences under many timer signals and migrations between CPUs. The amount of work is bounded, and no
//! frame may be lost or have two owners.
//!
//! Before the kernel calls a signal handler, it moves an interrupted sequence to its abort address. A handler can
//! therefore count aborts by comparing the address that the signal interrupted. `ZONAL_STRESS_SECONDS` makes the test
//! run longer.
#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]

mod common;

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;

use common::{check_all_free, ledger_of, sequences, stress_rounds, thread_id, when_dropped, work_disturbed};
use zonal::request::{Block, PageKind};
use zonal::units::Order;
use zonal_linux::{Pool, PoolRequest};
use zonal_testing::{Ledger, bind, skipped, two_cpus};

const POOL_BYTES: u64 = 32 << 20;
const THREADS: u32 = 3;
/// Allocations of each thread in a round.
const TAKES: u32 = 150_000;
/// Number of rounds after which the test fails if no signal has interrupted a sequence.
const ROUNDS_MAX: u32 = 200;

// Relaxed everywhere: these are counts, and settings that are stored before the timers start.
static SIGNALS: AtomicU64 = AtomicU64::new(0);
static ABORTS: AtomicU64 = AtomicU64::new(0);
/// Iterations of a handler's busy loop.
static BURN: AtomicU64 = AtomicU64::new(0);

/// Returns the address at which a signal interrupted its thread.
fn interrupted_at(context: *mut c_void) -> u64 {
    // SAFETY: the kernel passes a valid context to handlers installed with `SA_SIGINFO`.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    #[cfg(target_arch = "x86_64")]
    return context.uc_mcontext.gregs[libc::REG_RIP as usize] as u64;
    #[cfg(target_arch = "aarch64")]
    return context.uc_mcontext.pc;
}

extern "C" fn on_timer(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    SIGNALS.fetch_add(1, Relaxed);
    let at = interrupted_at(context);
    if sequences().iter().any(|sequence| sequence.abort == at) {
        ABORTS.fetch_add(1, Relaxed);
    }
    (0..BURN.load(Relaxed)).for_each(|step| _ = std::hint::black_box(step));
    if let Some((timer, micros)) = TIMER.get() {
        expire_in(timer, micros);
    }
}

thread_local! {
    /// Timer of this thread, and its period in microseconds.
    static TIMER: Cell<Option<(libc::timer_t, i64)>> = const { Cell::new(None) };
}

/// Arms a timer once. A handler calls this last, so that its thread makes progress between two signals even if
/// signals are slow.
fn expire_in(timer: libc::timer_t, micros: i64) {
    let once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let value = libc::timespec { tv_sec: 0, tv_nsec: micros * 1000 };
    let times = libc::itimerspec { it_interval: once, it_value: value };
    // SAFETY: the timer exists while its thread refers to it, and signal handlers may make this call.
    let failed = unsafe { libc::timer_settime(timer, 0, &times, std::ptr::null_mut()) };
    assert_eq!(failed, 0);
}

fn handle_timers() {
    // SAFETY: zeros are a valid action.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_timer;
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: the handler counts, loops and rearms the timer, which signal handlers may do.
    let failed = unsafe { libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()) };
    assert_eq!(failed, 0);
}

/// A timer that signals the calling thread until this is dropped.
struct Timer(libc::timer_t);

impl Timer {
    /// Starts a timer that fires this many microseconds after the last handler has returned.
    fn every(micros: i64) -> Self {
        // SAFETY: zeros are a valid event. The relevant fields are set below.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGALRM;
        event.sigev_notify_thread_id = thread_id();
        let mut timer = std::ptr::null_mut();
        // SAFETY: the event and the timer outlive the call.
        let failed = unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) };
        assert_eq!(failed, 0, "{}", std::io::Error::last_os_error());
        TIMER.set(Some((timer, micros)));
        expire_in(timer, micros);
        Self(timer)
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        TIMER.set(None);
        // SAFETY: this value created the timer, and deletes it once.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// A pool, the threads that use it, and a ledger of its frames' owners.
struct Storm {
    pool: Pool,
    owners: Ledger,
    /// Ids of the threads to be migrated; 0 before they start.
    threads: Vec<AtomicI32>,
    /// Number of threads that have not finished their work.
    at_work: AtomicU32,
}

impl Storm {
    fn new(pool: Pool) -> Self {
        let owners = ledger_of(&pool);
        let threads = (0..THREADS).map(|_| AtomicI32::new(0)).collect();
        Self { pool, owners, threads, at_work: AtomicU32::new(0) }
    }

    /// Makes a fixed number of allocations and as many frees, in runs of random lengths.
    fn work(&self, name: u32, micros: i64) {
        self.threads[name as usize - 1].store(thread_id(), Relaxed);
        let _timer = Timer::every(micros);
        let (mut random, mut held) = (u64::from(name) | 1, Vec::new());
        let mut left = TAKES;
        while left > 0 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let run = (1 << ((random >> 40) % 8)).min(left);
            let kind = PageKind::ALL[(random >> 50) as usize % 3];
            let order = Order::new(if random >> 59 == 0 { 3 } else { 0 }).unwrap();
            for _ in 0..run {
                left -= 1;
                let Ok(block) = self.pool.alloc_raw(&PoolRequest::new(order).kind(kind)) else { break };
                self.owners.assign(block.first.get(), order.pages().get(), name);
                held.push(block);
            }
            for _ in 0..(run as usize).min(held.len()) {
                let at = (random as usize >> 20) % held.len();
                self.give(held.swap_remove(at), name);
            }
        }
        held.into_iter().for_each(|block| self.give(block, name));
    }

    fn give(&self, block: Block, name: u32) {
        self.owners.release(block.first.get(), block.order.pages().get(), name);
        // SAFETY: `work` frees each of its raw blocks once, and no `Frames` owns them.
        unsafe { self.pool.free_raw(block.first, block.order) }.unwrap();
    }

    /// Moves all threads to the next of several CPUs, repeatedly, until all have finished. Returns the number of moves.
    fn move_about(&self, cpus: &[usize]) -> u64 {
        let mut moves = 0;
        for cpu in cpus.iter().cycle().take_while(|_| self.at_work.load(Relaxed) != 0) {
            for thread in self.threads.iter().map(|thread| thread.load(Relaxed)).filter(|&thread| thread != 0)
            {
                bind(thread, &[*cpu]); // no thread has ended yet (`work_disturbed`)
                moves += 1;
            }
        }
        moves
    }

    /// Lets the threads work. They migrate between `cpus`, unless there are none. Returns the number of migrations.
    fn run(&self, micros: i64, cpus: &[usize]) -> u64 {
        self.at_work.store(THREADS, Relaxed);
        self.threads.iter().for_each(|thread| thread.store(0, Relaxed));
        let (disturber_of_all, disturbers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::channel()).unzip();
        let moves = std::thread::scope(|scope| {
            let mover = move || {
                let _disturber_of_all = disturber_of_all;
                self.move_about(cpus)
            };
            // Before the others, which otherwise may end first.
            let mover = (!cpus.is_empty()).then(|| scope.spawn(mover));
            for (name, disturbers) in (1..=THREADS).zip(disturbers) {
                scope.spawn(move || {
                    work_disturbed(&disturbers, || {
                        let _ends = when_dropped(|| _ = self.at_work.fetch_sub(1, Relaxed));
                        self.work(name, micros);
                    });
                });
            }
            mover.map_or(0, |mover| mover.join().unwrap())
        });
        check_all_free(&self.owners, &self.pool);
        moves
    }
}

#[test]
fn signals_and_migrations_lose_no_frame() {
    handle_timers();
    let locked = Pool::builder().size(POOL_BYTES).without_sequences().build().unwrap();
    let pool = Pool::builder().size(POOL_BYTES).build().unwrap();
    let used = pool.uses_sequences();
    if !used {
        skipped!("no restartable sequences here; locks are tested instead");
    }
    let cpus = two_cpus().map_or_else(Vec::new, Vec::from); // between which threads migrate
    let (storm, locked) = (Storm::new(pool), Storm::new(locked));
    for round in stress_rounds() {
        for (micros, burn, cpus) in
            [(20, 0, &[][..]), (50, 0, &cpus), (100, 20_000, &[]), (100, 5_000, &cpus)]
        {
            BURN.store(burn, Relaxed);
            let moves = storm.run(micros, cpus);
            assert_eq!(moves > 0, !cpus.is_empty(), "round {round}");
        }
        BURN.store(0, Relaxed);
        locked.run(50, &cpus);
    }
    for _ in 0..ROUNDS_MAX {
        if ABORTS.load(Relaxed) > 0 || !used {
            break;
        }
        storm.run(20, &[]);
    }
    let (signals, aborts) = (SIGNALS.load(Relaxed), ABORTS.load(Relaxed));
    eprintln!("{signals} signals, {aborts} of them aborted a sequence");
    assert!(signals > 0);
    assert_eq!(aborts > 0, used, "{signals} signals");
}

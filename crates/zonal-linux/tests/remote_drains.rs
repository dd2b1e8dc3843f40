//! Races on a pageset. In the first test, the pageset's own CPU uses it while another CPU drains or folds it; each
//! thread is bound to its CPU. In the second test, holders of pagesets' locks migrate between two CPUs.
//!
//! `ZONAL_STRESS_SECONDS` makes the tests run longer. Related files: `sequences.rs` and `signals.rs` interrupt
//! sequences with signals and migrations; `zonal-verify` explores all interleavings of the same scenarios.

mod common;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use common::{stress_rounds, thread_id, when_dropped, work_disturbed};
use zonal::units::{CpuId, Order, Pfn};
use zonal_linux::{Pool, PoolRequest};
use zonal_testing::{bind, pin_to, two_cpus};

const POOL_BYTES: u64 = 64 << 20;
/// Largest number of frames that an owner holds in a round: within the pageset's limits, and beyond them.
const HELD: [usize; 3] = [1, 3, 200];
/// Number of frames that an owner allocates in a race.
const FRAMES: usize = 500_000;

/// Operation of another CPU on the owner's pagesets.
#[derive(Clone, Copy, Debug)]
enum RemoteCall {
    Drain,
    Tick,
}

/// Lock that runs the races one after another, because they use the same CPUs.
static CPUS: Mutex<()> = Mutex::new(());

fn pool() -> Pool {
    let pool = Pool::builder().size(POOL_BYTES).build().unwrap();
    if !pool.uses_sequences() {
        zonal_testing::skipped!("no restartable sequences here; locks are tested instead");
    }
    pool
}

/// Interrupts the calling thread without restarting its sequence, because the thread continues at once. Other CPUs
/// can then act between two of its instructions.
struct Interrupts {
    timer: OwnedFd,
    random: u64,
}

impl Interrupts {
    fn new() -> Self {
        // SAFETY: the function has no preconditions.
        let timer = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC) };
        assert!(timer >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the descriptor was just opened, and has no other owner.
        Self { timer: unsafe { OwnedFd::from_raw_fd(timer) }, random: 1 }
    }

    /// Arms the timer to expire in 1 to 5 microseconds. No thread reads the timer, so its expiry interrupts this
    /// thread but wakes none.
    fn expire_soon(&mut self) {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let soon = libc::timespec { tv_sec: 0, tv_nsec: 1000 + (self.random >> 52) as libc::c_long };
        let times = libc::itimerspec { it_interval: never, it_value: soon };
        // SAFETY: the times outlive the call.
        let failed =
            unsafe { libc::timerfd_settime(self.timer.as_raw_fd(), 0, &times, std::ptr::null_mut()) };
        assert_eq!(failed, 0);
    }
}

/// Approximate number of frames that a thread allocates between two interrupts.
const FRAMES_UNDISTURBED: usize = 64;

/// Allocates and frees `frames` frames, holding `held` frames at once.
fn use_frames(pool: &Pool, held: usize, frames: usize, interrupts: &mut Interrupts) {
    let mut burst: Vec<Pfn> = Vec::with_capacity(held);
    for round in 0..frames / held {
        if round * held % FRAMES_UNDISTURBED < held {
            interrupts.expire_soon();
        }
        burst.extend((0..held).map(|_| pool.alloc_raw(&PoolRequest::page()).unwrap().first));
        for frame in burst.drain(..).rev() {
            // SAFETY: this function owns the raw block, and frees it once.
            unsafe { pool.free_raw(frame, Order::PAGE) }.unwrap();
        }
    }
}

fn check(pool: &Pool, what: &str) {
    let accounting = pool.verify().unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(accounting.balance() && accounting.allocated.get() == 0, "{what}: {accounting:?}");
    assert_eq!(pool.events().retired, 0, "{what}: frames were on two stacks");
}

fn call_remotely(pool: &Pool, call: RemoteCall, owner: CpuId) {
    match call {
        RemoteCall::Drain => pool.drain_pagesets(),
        // SAFETY: ticks free no allocated frames.
        RemoteCall::Tick => unsafe { pool.allocator() }.tick_cpu(owner),
    }
}

/// Runs an owner on one CPU, and a thread that drains or ticks the owner's pagesets on another CPU.
fn race(what: RemoteCall, held: usize, [own, other]: [usize; 2]) {
    let pool = &pool();
    // Relaxed: a flag that ends the race, and a count.
    let (over, calls) = (&AtomicBool::new(false), &AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _ends = when_dropped(|| over.store(true, Relaxed));
            pin_to(own);
            let mut interrupts = Interrupts::new();
            use_frames(pool, held, FRAMES, &mut interrupts);
            // The other thread may start late.
            while calls.load(Relaxed) == 0 && !over.load(Relaxed) {
                use_frames(pool, held, FRAMES, &mut interrupts);
            }
        });
        scope.spawn(move || {
            let _ends = when_dropped(|| over.store(true, Relaxed));
            pin_to(other);
            while !over.load(Relaxed) {
                call_remotely(pool, what, CpuId::new(own as u32));
                calls.fetch_add(1, Relaxed);
            }
        });
    });
    let calls = calls.load(Relaxed);
    eprintln!("{what:?}, {held} held: {calls} calls");
    assert!(calls > 0, "{what:?}, {held} held: no calls");
    check(pool, &format!("{what:?}, {held} held"));
}

#[test]
fn remote_drains_and_ticks_keep_the_accounting_exact() {
    let Some(cpus) = two_cpus() else { return };
    let _alone = CPUS.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in stress_rounds() {
        for what in [RemoteCall::Drain, RemoteCall::Tick] {
            HELD.into_iter().for_each(|held| race(what, held, cpus));
        }
    }
}

/// Migrations of a holder in a race. Each occurs at a slightly different time.
const MIGRATIONS: u32 = 2_000;
/// Time for which a holder runs on the owner's CPU. It may be interrupted at any point.
const RUN: Duration = Duration::from_micros(25);
/// Number of frames that the owner allocates after a migration, one by one.
const FRAMES_AFTER: usize = 400;

/// A *holder* thread refills and drains the owner's pageset under the pageset's lock. When the owner wakes up, it
/// preempts the holder at some point in between. The holder continues on another CPU while the owner pops and pushes.
fn race_with_a_migrating_holder([own, other]: [usize; 2]) {
    let pool = &pool();
    let over = &AtomicBool::new(false);
    let (sender, holder) = std::sync::mpsc::channel();
    let (disturber, disturbers) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            work_disturbed(&disturbers, || {
                sender.send(thread_id()).unwrap();
                let mut frames = [Pfn::new(0); 500];
                while !over.load(Relaxed) {
                    let came = pool.alloc_bulk_raw(&PoolRequest::page(), &mut frames).unwrap();
                    // SAFETY: this function owns the raw blocks, and frees them once.
                    unsafe { pool.free_bulk_raw(&frames[..came]) }.unwrap();
                }
            });
        });
        scope.spawn(move || {
            let _disturber = disturber;
            let _ends = when_dropped(|| over.store(true, Relaxed));
            pin_to(own);
            let (holder, mut interrupts) = (holder.recv().unwrap(), Interrupts::new());
            for _ in 0..MIGRATIONS {
                bind(holder, &[own]);
                std::thread::sleep(RUN); // the holder runs meanwhile; no check depends on the time
                bind(holder, &[other]);
                use_frames(pool, 1, FRAMES_AFTER, &mut interrupts);
            }
        });
    });
    check(pool, "a holder that migrates");
}

#[test]
fn lock_holders_may_migrate() {
    let Some(cpus) = two_cpus() else { return };
    let _alone = CPUS.lock().unwrap_or_else(PoisonError::into_inner);
    stress_rounds().for_each(|_| race_with_a_migrating_holder(cpus));
}

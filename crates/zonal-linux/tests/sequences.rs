//! Allocations and frees under every kind of interruption: more threads than CPUs, threads that migrate between CPUs,
//! signals at any instruction, remote drains, and CPUs that go offline and come online. No frame may have two owners,
//! and no frame may be lost.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{when_dropped, work_disturbed};
use zonal::request::PageKind;
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::units::{CpuId, Order, Pfn};
use zonal_linux::{Pool, PoolRequest};
use zonal_testing::{Ledger, pin_to, skipped, two_cpus};

const POOL_BYTES: u64 = 32 << 20;
const THREADS: u32 = 5;

struct Stress {
    pool: Pool,
    owners: Ledger,
    over: AtomicBool,
    taken: AtomicU64,
    /// The CPUs between which threads migrate; none if they stay.
    cpus: Vec<usize>,
    moves: AtomicU64,
}

impl Stress {
    /// Allocates and frees in runs of random lengths, until the test is over.
    fn work(&self, name: u32) {
        let (mut random, mut held) = (u64::from(name) | 1, Vec::new());
        let (mut taken, mut moves) = (0, 0);
        while !self.over.load(Ordering::Relaxed) {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if random >> 60 == 0 && !self.cpus.is_empty() {
                pin_to(self.cpus[(random >> 33) as usize % self.cpus.len()]);
                moves += 1;
            }
            let run = 1 << ((random >> 40) % 9);
            let kind = PageKind::ALL[(random >> 50) as usize % 3];
            for _ in 0..run {
                let Ok(block) = self.pool.alloc_raw(&PoolRequest::page().kind(kind)) else { break };
                self.owners.assign(block.first.get(), 1, name);
                held.push(block.first);
                taken += 1;
            }
            for _ in 0..run.min(held.len()) {
                let at = (random as usize >> 20) % held.len();
                self.give(held.swap_remove(at), name);
            }
        }
        held.into_iter().for_each(|frame| self.give(frame, name));
        // Relaxed: both are read after the join.
        self.taken.fetch_add(taken, Ordering::Relaxed);
        self.moves.fetch_add(moves, Ordering::Relaxed);
    }

    fn give(&self, frame: Pfn, name: u32) {
        self.owners.release(frame.get(), 1, name);
        // SAFETY: `work` frees each of its raw blocks once, and no `Frames` owns them.
        unsafe { self.pool.free_raw(frame, Order::PAGE) }.unwrap();
    }

    /// Interferes with the workers from another thread.
    fn disturb(&self, workers: &[libc::pthread_t]) {
        let tunings = [PagesetTuning::Depth, PagesetTuning::Fixed, PagesetTuning::Stepwise];
        for round in 0_usize.. {
            if self.over.load(Ordering::Relaxed) {
                return;
            }
            for &worker in workers {
                // SAFETY: workers do not end before this thread does (`work_disturbed`).
                unsafe { libc::pthread_kill(worker, libc::SIGUSR1) };
            }
            match round % 64 {
                0 => self.pool.drain_pagesets(),
                16 => self.pool.set_tuning(tunings[round / 64 % 3]).expect("it needs no more slots"),
                32 => {
                    let cpu = CpuId::new((round / 64 % 2) as u32);
                    if self.pool.offline_cpu(cpu).is_ok() {
                        self.pool.online_cpu(cpu).unwrap();
                    }
                }
                _ => std::thread::sleep(Duration::from_micros(20)),
            }
        }
    }
}

extern "C" fn on_signal(_: libc::c_int) {}

#[test]
fn disturbed_sequences_never_give_a_frame_two_owners() {
    let seconds = std::env::var("ZONAL_STRESS_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let pool = Pool::builder().size(POOL_BYTES).build().unwrap();
    if !pool.uses_sequences() {
        skipped!("no restartable sequences here; locks are tested instead");
    }
    let cpus = two_cpus().map_or_else(Vec::new, Vec::from); // between which threads migrate
    let handler: extern "C" fn(libc::c_int) = on_signal;
    // SAFETY: the handler does nothing.
    unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
    let first = pool.zones().map(|zone| zone.span.start.get()).min().unwrap();
    let end = pool.zones().map(|zone| zone.span.end().get()).max().unwrap();
    let owners = Ledger::new(first..end);
    let [taken, moves] = [0; 2].map(AtomicU64::new);
    let stress = Stress { pool, owners, over: AtomicBool::new(false), taken, cpus, moves };
    std::thread::scope(|scope| {
        let (sender, names) = std::sync::mpsc::channel();
        let mut disturber_of_all = Vec::new();
        for name in 1..=THREADS {
            let (stress, sender) = (&stress, sender.clone());
            let (disturber, disturbers) = std::sync::mpsc::channel();
            disturber_of_all.push(disturber);
            scope.spawn(move || {
                work_disturbed(&disturbers, || {
                    // A thread that panics makes all other threads end.
                    let _ends = when_dropped(|| stress.over.store(true, Ordering::Relaxed));
                    // SAFETY: the function has no preconditions.
                    sender.send(unsafe { libc::pthread_self() }).unwrap();
                    stress.work(name);
                });
            });
        }
        let workers: Vec<_> = names.iter().take(THREADS as usize).collect();
        let stress = &stress;
        scope.spawn(move || {
            let _disturber_of_all = disturber_of_all;
            stress.disturb(&workers);
        });
        let end = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < end && !stress.over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(10));
        }
        stress.over.store(true, Ordering::Relaxed);
    });
    let accounting = stress.pool.verify().unwrap();
    assert!(accounting.balance() && accounting.allocated.get() == 0, "{accounting:?}");
    assert_eq!(stress.pool.events().retired, 0, "a frame was on a stack twice");
    assert_eq!(stress.owners.owned().next(), None);
    assert!(stress.taken.load(Ordering::Relaxed) > 10_000, "the threads must have worked");
    assert_eq!(
        stress.moves.load(Ordering::Relaxed) > 0,
        !stress.cpus.is_empty(),
        "the threads must have migrated"
    );
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod without_an_area {
    use super::*;
    use crate::common::area_offset;

    /// Unregisters the restartable-sequence area of the calling thread, as if the C library had not started the
    /// thread. Returns whether the thread had an area.
    fn unregister_area() -> bool {
        const SIGNATURE: u32 = if cfg!(target_arch = "aarch64") { 0xd428_bc00 } else { 0x5305_3053 };
        const UNREGISTER: libc::c_int = 1;
        let area = thread_pointer().wrapping_add_signed(area_offset().expect("sequences are used"));
        // The registered size is not known: it is 32 bytes, or more in later versions of the C library.
        (32..=256).step_by(4).any(|bytes| {
            // SAFETY: the area belongs to the calling thread, and is not used after this.
            unsafe { libc::syscall(libc::SYS_rseq, area, bytes, UNREGISTER, SIGNATURE) == 0 }
        })
    }

    #[cfg(target_arch = "x86_64")]
    fn thread_pointer() -> usize {
        let pointer;
        // SAFETY: the ABI stores the thread pointer's own value at the address to which it points.
        unsafe { std::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly)) };
        pointer
    }

    #[cfg(target_arch = "aarch64")]
    fn thread_pointer() -> usize {
        let pointer;
        // SAFETY: the instruction only reads a register.
        unsafe { std::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack)) };
        pointer
    }

    #[test]
    fn threads_without_rseq_area_bypass_pagesets() {
        let pool = &Pool::builder().size(POOL_BYTES).build().unwrap();
        if !pool.uses_sequences() {
            return zonal_testing::skipped!("no restartable sequences here");
        }
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    assert!(unregister_area(), "{}", std::io::Error::last_os_error());
                    for _ in 0..1000 {
                        let frames: Vec<Pfn> =
                            (0..9).map(|_| pool.alloc_raw(&PoolRequest::page()).unwrap().first).collect();
                        for frame in frames {
                            // SAFETY: this thread owns the raw block, and frees it once.
                            unsafe { pool.free_raw(frame, Order::PAGE) }.unwrap();
                        }
                    }
                    pool.drain_pagesets(); // `verify` must wait until all threads have ended
                });
            }
        });
        let accounting = pool.verify().unwrap();
        assert!(accounting.balance() && accounting.allocated.get() == 0, "{accounting:?}");
        assert!(pool.pagesets().all(|pageset| pageset.refills == 0), "a thread without an area has no CPU");
    }
}

//! Takes and gives that are disturbed in every way that a kernel knows: more threads than CPUs,
//! threads that hop between CPUs, signals at any instruction, other CPUs that drain, CPUs that go and
//! come. No frame may have two owners, none may be lost.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use zonal::pageset_tuning::PagesetTuning;
use zonal::request::PageKind;
use zonal::units::{CpuId, Order, Pfn};
use zonal_linux::{Pool, PoolRequest};

const POOL_BYTES: u64 = 32 << 20;
const THREADS: u32 = 5;

/// Who has each frame: 0, or a thread's name.
struct Owners {
    first: u64,
    of: Vec<AtomicU32>,
}

impl Owners {
    /// Relaxed: the allocator hands the frame, and the cell with it, from one to the next.
    fn change(&self, frame: Pfn, from: u32, to: u32) {
        let before = self.of[(frame.get() - self.first) as usize].swap(to, Ordering::Relaxed);
        assert_eq!(before, from, "frame {frame} was of {before}");
    }
}

struct Stress {
    pool: Pool,
    owners: Owners,
    over: AtomicBool,
    taken: AtomicU64,
}

impl Stress {
    /// Takes and gives back in runs of random lengths, until it is over.
    fn work(&self, name: u32) {
        let (mut random, mut held) = (u64::from(name) | 1, Vec::new());
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let mut taken = 0;
        while !self.over.load(Ordering::Relaxed) {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if random >> 60 == 0 {
                pin_to((random >> 33) as usize % cpus);
            }
            let run = 1 << ((random >> 40) % 9);
            let kind = PageKind::ALL[(random >> 50) as usize % 3];
            for _ in 0..run {
                let Ok(block) = self.pool.alloc_raw(&PoolRequest::page().kind(kind)) else { break };
                self.owners.change(block.first, 0, name);
                held.push(block.first);
                taken += 1;
            }
            for _ in 0..run.min(held.len()) {
                let at = (random as usize >> 20) % held.len();
                self.give(held.swap_remove(at), name);
            }
        }
        held.into_iter().for_each(|frame| self.give(frame, name));
        self.taken.fetch_add(taken, Ordering::Relaxed); // relaxed: read after the join
    }

    fn give(&self, frame: Pfn, name: u32) {
        self.owners.change(frame, name, 0);
        // SAFETY: raw blocks of `work` are given back once and belong to no `Frames`.
        unsafe { self.pool.free_raw(frame, Order::PAGE) }.unwrap();
    }

    /// Disturbs the workers from outside.
    fn disturb(&self, workers: &[libc::pthread_t]) {
        let tunings = [PagesetTuning::Depth, PagesetTuning::Fixed, PagesetTuning::Stepwise];
        for round in 0_usize.. {
            if self.over.load(Ordering::Relaxed) {
                return;
            }
            for &worker in workers {
                // SAFETY: workers are joined only after this thread.
                unsafe { libc::pthread_kill(worker, libc::SIGUSR1) };
            }
            match round % 64 {
                0 => self.pool.drain_pagesets(),
                16 => self.pool.set_tuning(tunings[round / 64 % 3]),
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

/// Keeps the calling thread on a CPU; where that is not allowed, it stays where it is.
fn pin_to(cpu: usize) {
    // SAFETY: an all-zero set is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: CPUs of this machine are within the set.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set is valid for its size.
    unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) };
}

extern "C" fn on_signal(_: libc::c_int) {}

#[test]
fn no_frame_has_two_owners_however_sequences_are_disturbed() {
    let seconds = std::env::var("ZONAL_STRESS_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let pool = Pool::builder().size(POOL_BYTES).build().unwrap();
    if !pool.uses_sequences() {
        eprintln!("SKIPPED: no restartable sequences here; locks are tested instead");
    }
    let handler: extern "C" fn(libc::c_int) = on_signal;
    // SAFETY: the handler does nothing.
    unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
    let first = pool.zones().map(|zone| zone.span.start.get()).min().unwrap();
    let end = pool.zones().map(|zone| zone.span.end().get()).max().unwrap();
    let owners = Owners { first, of: (first..end).map(|_| AtomicU32::new(0)).collect() };
    let stress = Stress { pool, owners, over: AtomicBool::new(false), taken: AtomicU64::new(0) };
    std::thread::scope(|scope| {
        let (sender, names) = std::sync::mpsc::channel();
        for name in 1..=THREADS {
            let (stress, sender) = (&stress, sender.clone());
            scope.spawn(move || {
                // SAFETY: no preconditions.
                sender.send(unsafe { libc::pthread_self() }).unwrap();
                // One thread that panics ends all.
                let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| stress.work(name)));
                stress.over.store(true, Ordering::Relaxed);
                // The others still send signals to this thread.
                std::thread::sleep(Duration::from_millis(50));
                worked.unwrap();
            });
        }
        let workers: Vec<_> = names.iter().take(THREADS as usize).collect();
        let stress = &stress;
        scope.spawn(move || stress.disturb(&workers));
        let end = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < end && !stress.over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(10));
        }
        stress.over.store(true, Ordering::Relaxed);
    });
    let books = stress.pool.verify().unwrap();
    assert!(books.balance() && books.allocated.get() == 0, "{books:?}");
    assert_eq!(stress.pool.events().withheld, 0, "a frame was on a stack twice");
    assert!(stress.owners.of.iter().all(|owner| owner.load(Ordering::Relaxed) == 0));
    assert!(stress.taken.load(Ordering::Relaxed) > 10_000, "the threads must have worked");
}

//! Tests of CPUs that use their pagesets with plain loads and stores, and that interrupt each other to access another
//! CPU's pagesets. The races run on the platform of `examples/embed`.
//!
//! Each thread acts as a CPU. A ledger of owners detects frames that two CPUs own at the same time, and the consistency
//! walk detects wrong counts. No CPU waits for a CPU that has stopped, even if it stopped by a panic. If the CPUs of a
//! race wait for each other forever, the process is ended after five minutes.

#[path = "../../../examples/embed/kernel.rs"]
mod kernel;

use core::mem::MaybeUninit;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicUsize};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use kernel::{Cpus, Kernel, RunningCpu, safe_point};
use zonal::error::{ConfigError, OnlineError};
use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
use zonal::platform::SpinLock;
use zonal::platform::cpu_local::{OneCpu, Pinned, Quiesce};
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::units::{CpuId, Moment, NodeId, Order, PageCount, Pfn, SECOND_NS, ZoneKind};
use zonal::{Allocator, Block, Buffer, Config, Machine, Platform, Request};
use zonal_testing::Ledger;

const FRAMES: u64 = 1 << 14;
/// CPUs of the machine. All of them run, except one that only starts and stops.
const CPUS: u32 = 3;

fn node(id: u16) -> NodeId {
    NodeId::new(id).unwrap()
}

fn cpu(id: u32) -> CpuId {
    CpuId::new(id)
}

/// Builds an allocator for two nodes of [`FRAMES`] frames each. The first node has CPU 0, and the second has all other
/// CPUs.
fn build<P: Platform>(platform: P, cpus: u32) -> Result<Allocator<'static, P>, ConfigError> {
    let others: Vec<CpuId> = (1..cpus).map(cpu).collect();
    let nodes = [
        NodeDescription { id: node(0), cpus: &[cpu(0)], distances: &[10, 20] },
        NodeDescription { id: node(1), cpus: &others, distances: &[20, 10] },
    ];
    let spans = [0, 1].map(|at| [FrameRange { start: Pfn::new(at * FRAMES), count: PageCount::new(FRAMES) }]);
    let zones = [0, 1].map(|at| ZoneDescription {
        node: node(at as u16),
        kind: ZoneKind::Normal,
        span: spans[at][0],
        managed: &spans[at],
    });
    let machine = Machine::new(&nodes, &zones)?;
    Allocator::new(platform, &machine, &Config::default(), |request| {
        Some(Buffer::uninit(Box::leak(vec![MaybeUninit::uninit(); request.bytes].into_boxed_slice())))
    })
}

/// A platform that cannot reach other CPUs.
struct Alone;

impl Platform for Alone {
    type U8 = core::sync::atomic::AtomicU8;
    type U32 = AtomicU32;
    type U64 = core::sync::atomic::AtomicU64;
    type Lock = SpinLock;
    type CpuLocal = Pinned;

    fn current_cpu(&self) -> CpuId {
        cpu(0)
    }

    fn cpu_local(&self) -> &Pinned {
        &Pinned(OneCpu)
    }

    fn now(&self) -> Moment {
        Moment::default()
    }
}

#[test]
fn a_platform_without_remote_drains_is_refused_on_several_cpus() {
    for cpus in [2, 3, 64] {
        let error = build(Alone, cpus).err().unwrap();
        assert_eq!(error, ConfigError::UnreachableCpus(cpus as usize));
        let text = error.to_string();
        assert!(text.contains(&format!("{cpus} CPUs")) && text.contains("Quiesce"), "{text}");
    }
    let alone = build(Alone, 1).unwrap();
    let block = alone.alloc(&Request::page()).unwrap();
    alone.free(block.first, block.order).unwrap();
    alone.drain_pagesets();
    alone.verify().unwrap();
    assert!(!OneCpu.reaches_other_cpus());
}

/// Pseudo-random numbers (xorshift): the same seed gives the same choices.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

struct World {
    allocator: Allocator<'static, Kernel>,
    cpus: Arc<Cpus>,
    /// Owner of each frame: the number of the CPU plus 1.
    owners: Ledger,
    /// Barrier at which a race's two CPUs wait until both of them run.
    both_run: Barrier,
    /// Number of CPUs that still race.
    racing: AtomicUsize,
}

/// Counts a CPU as racing until it is dropped.
struct Racing<'w>(&'w AtomicUsize);

impl<'w> Racing<'w> {
    /// Takes over one of the CPUs that `racing` already counts.
    fn of(world: &'w World) -> Self {
        Self(&world.racing)
    }
}

impl Drop for Racing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed); // relaxed: the counter only ends the loops of other CPUs
    }
}

/// Ends the process if `race` has not ended after five minutes, because its CPUs wait for each other.
fn with_end(race: impl FnOnce()) {
    let (ended, end) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            if end.recv_timeout(Duration::from_secs(300)) == Err(RecvTimeoutError::Timeout) {
                eprintln!("the CPUs of a race wait for each other");
                std::process::abort();
            }
        });
        let _ended = ended; // a panic drops it too
        race();
    });
}

impl World {
    fn new() -> Self {
        let cpus = Cpus::new(CPUS as usize);
        let allocator = build(Kernel::new(&cpus), CPUS).unwrap();
        Self {
            allocator,
            cpus,
            owners: Ledger::new(0..2 * FRAMES),
            both_run: Barrier::new(2),
            racing: AtomicUsize::new(0),
        }
    }

    /// Allocates or frees a block.
    fn step(&self, held: &mut Vec<Block>, me: u32, random: &mut Random) {
        let a = &self.allocator;
        let frames: u64 = held.iter().map(|block| block.order.pages().get()).sum();
        if frames < FRAMES / 4 && random.below(2) == 0 {
            let order = Order::new([0, 0, 0, 0, 0, 1, 3, 9][random.below(8) as usize]).unwrap();
            match a.alloc(&Request::new(order)) {
                Ok(block) => {
                    self.owners.assign(block.first.get(), block.order.pages().get(), 1 + me);
                    held.push(block);
                }
                // Enough frames are free, but perhaps no contiguous ones.
                Err(error) => assert!(order.get() == 9, "{error}"),
            }
        } else if !held.is_empty() {
            let block = held.swap_remove(random.below(held.len() as u64) as usize);
            self.owners.release(block.first.get(), block.order.pages().get(), 1 + me);
            a.free(block.first, block.order).unwrap();
        }
    }

    /// Performs a random operation on the pagesets of other CPUs.
    fn meddle(&self, random: &mut Random) {
        let a = &self.allocator;
        let other = cpu(random.below(u64::from(CPUS)) as u32);
        match random.below(64) {
            0..30 => a.drain_pagesets(),
            30..40 => {
                a.platform().advance(SECOND_NS);
                a.tick();
            }
            40..50 => a.tick_cpu(other),
            // CPUs are online most of the time, because only online CPUs use their pagesets without a lock.
            50..52 => match a.offline_cpu(other) {
                Ok(()) | Err(OnlineError::CpuUnchanged(_) | OnlineError::LastCpu(_)) => {}
                Err(error) => panic!("{error}"),
            },
            52..62 => match a.online_cpu(other) {
                Ok(()) | Err(OnlineError::CpuUnchanged(_)) => {}
                Err(error) => panic!("{error}"),
            },
            62 => a.set_tuning(PagesetTuning::Fixed).expect("its stacks are always there"),
            _ => a.set_tuning(PagesetTuning::Depth).expect("its stacks are always there"),
        }
    }

    /// Runs a CPU's part of the race: `rounds` rounds of several steps and one operation on other CPUs.
    fn race(&self, me: u32, rounds: u64, idle: impl Fn(&RunningCpu, u64)) {
        let running = self.cpus.start(cpu(me));
        if me < 2 {
            self.both_run.wait();
        }
        let (mut held, mut random) = (Vec::new(), Random(0x9E37_79B9_7F4A_7C15 ^ u64::from(me)));
        for round in 0..rounds {
            for _ in 0..random.below(64) {
                self.step(&mut held, me, &mut random);
                safe_point();
            }
            self.meddle(&mut random);
            idle(&running, round);
        }
        while let Some(block) = held.pop() {
            self.owners.release(block.first.get(), block.order.pages().get(), 1 + me);
            self.allocator.free(block.first, block.order).unwrap();
            safe_point();
        }
    }

    /// Checks that everything was freed and that all counts are right.
    fn check(&self) {
        let running = self.cpus.start(cpu(0));
        self.allocator.drain_pagesets();
        let accounting = self.allocator.verify().unwrap();
        assert_eq!((accounting.managed.get(), accounting.allocated), (2 * FRAMES, PageCount::ZERO));
        assert_eq!((accounting.in_pagesets, self.allocator.events().retired), (PageCount::ZERO, 0));
        assert_eq!(self.owners.owned().next(), None);
        drop(running);
    }
}

/// One CPU only allocates and frees single frames, so it is almost always within an operation. The other CPU drains and
/// maintains the pagesets of the first.
#[test]
fn a_cpu_that_never_quiesces_loses_no_frames_to_drains() {
    let world = World::new();
    world.racing.store(1, Relaxed);
    with_end(|| {
        thread::scope(|scope| {
            let world = &world;
            scope.spawn(move || {
                let _racing = Racing::of(world);
                let _running = world.cpus.start(cpu(1));
                world.both_run.wait();
                let mut held = Vec::new();
                for burst in [1, 3, 200].into_iter().cycle().take(10 * ROUNDS as usize) {
                    held.extend((0..burst).map(|_| world.allocator.alloc(&Request::page()).unwrap()));
                    held.drain(..).for_each(|block| world.allocator.free(block.first, block.order).unwrap());
                    safe_point();
                }
            });
            let _running = world.cpus.start(cpu(0));
            world.both_run.wait();
            while world.racing.load(Relaxed) != 0 {
                world.allocator.drain_pagesets();
                world.allocator.tick_cpu(cpu(1));
                safe_point();
            }
        });
    });
    world.check();
}

/// All CPUs allocate, free, drain each other, and take each other offline and online.
#[test]
fn cpus_that_drain_each_other_allocate_no_frame_twice() {
    let world = World::new();
    with_end(|| {
        thread::scope(|scope| {
            for me in 0..2 {
                let world = &world;
                scope.spawn(move || world.race(me, ROUNDS, |_, _| {}));
            }
        });
    });
    world.check();
}

/// One CPU starts and stops all the time. It answers interrupts while it runs, and no CPU waits for it while it does
/// not.
#[test]
fn a_cpu_that_starts_and_sleeps_is_never_missed() {
    let world = World::new();
    world.racing.store(2, Relaxed);
    with_end(|| {
        thread::scope(|scope| {
            let world = &world;
            for me in 0..2 {
                scope.spawn(move || {
                    let _racing = Racing::of(world);
                    world.race(me, ROUNDS / 2, |running, round| {
                        if round % 8 == 0 {
                            running.idle(thread::yield_now);
                        }
                    });
                });
            }
            scope.spawn(move || {
                while world.racing.load(Relaxed) != 0 {
                    world.race(2, 2, |_, _| {});
                    thread::yield_now();
                }
            });
        });
    });
    world.check();
}

/// Two CPUs only access each other's pagesets at the same time. Each CPU must answer interrupts while it waits for an
/// answer.
#[test]
fn two_cpus_that_interrupt_each_other_both_go_on() {
    let world = World::new();
    with_end(|| {
        thread::scope(|scope| {
            for me in 0..2 {
                let world = &world;
                scope.spawn(move || {
                    let _running = world.cpus.start(cpu(me));
                    world.both_run.wait();
                    for _ in 0..ROUNDS {
                        let block = world.allocator.alloc(&Request::page()).unwrap();
                        world.allocator.free(block.first, block.order).unwrap();
                        world.allocator.drain_pagesets();
                        // This call holds the lock for run-time changes while it interrupts the other CPU.
                        world.allocator.set_high_fraction(8);
                    }
                });
            }
        });
    });
    world.check();
}

/// A thread that is not a CPU bypasses the pagesets while CPUs use theirs.
#[test]
fn a_thread_without_a_cpu_drains_all_cpus() {
    let world = World::new();
    with_end(|| {
        thread::scope(|scope| {
            let world = &world;
            world.racing.store(1, Relaxed);
            scope.spawn(move || {
                let _racing = Racing::of(world);
                world.race(1, ROUNDS / 2, |_, _| {});
            });
            let (mut held, mut random) = (Vec::new(), Random(7));
            world.both_run.wait();
            while world.racing.load(Relaxed) != 0 {
                for _ in 0..16 {
                    world.step(&mut held, CPUS, &mut random);
                }
                world.allocator.drain_pagesets();
            }
            for block in held {
                world.owners.release(block.first.get(), block.order.pages().get(), 1 + CPUS);
                world.allocator.free(block.first, block.order).unwrap();
            }
        });
    });
    world.check();
}

/// Rounds per race. All races together take a few seconds.
const ROUNDS: u64 = 10_000;

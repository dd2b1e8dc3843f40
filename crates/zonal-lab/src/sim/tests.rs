//! Checks the cost model against closed-form expressions.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

use zonal::Config;
use zonal_machine::preset;

use super::*;

/// Runs one program on each of `cpus` and returns each program's end time.
fn run_each(
    machine: &SimulatedMachine,
    cpus: &[usize],
    program: impl Fn(&World, usize),
    prepare: impl Fn(&World),
) -> Vec<Time> {
    let ended = machine.simulate(&Config::default(), 1, |sim| {
        prepare(sim.world);
        let mut threads = Threads::new();
        for &cpu in cpus {
            let (world, program) = (sim.world, &program);
            threads.add(cpu, Role::Foreground, Time::ZERO, move || program(world, cpu)).unwrap();
        }
        sim.world.run(threads, &AtomicBool::new(false)).unwrap()
    });
    ended.unwrap()
}

fn machine(hardware: Hardware) -> SimulatedMachine {
    SimulatedMachine { model: preset("quad-10-12-32").unwrap(), hardware }
}

fn near(found: f64, expected: f64, percent: f64) {
    assert!(
        (found / expected - 1.0).abs() <= percent / 100.0,
        "{found} is not {expected} within {percent} %"
    );
}

fn last(ended: &[Time]) -> f64 {
    ended.iter().max().unwrap().seconds() * 1e9
}

#[test]
fn a_lock_saturates_at_one_over_the_hold_time() {
    const ROUNDS: usize = 500;
    let free = Hardware { hit_ns: 0.0, transfer_ns: 0.0, memory_ns: 0.0, ..Hardware::default() };
    for (hardware, expected_ns) in [(free.clone(), 200.0), (Hardware { transfer_ns: 50.0, ..free }, 250.0)] {
        for cpus in [1, 2, 7, 16] {
            let lock = std::cell::OnceCell::new();
            let program = |world: &World, _| {
                for _ in 0..ROUNDS {
                    let lock = lock.get_or_init(|| ProgramLock::new(world, 0));
                    lock.hold(world, || world.spend(Time::from_ns(200.0)));
                }
            };
            let ended = run_each(&machine(hardware.clone()), &(0..cpus).collect::<Vec<_>>(), program, |_| ());
            let each = last(&ended) / (ROUNDS * cpus) as f64;
            // A single CPU keeps the lock's line in its cache, so no hand-over takes place.
            near(each, if cpus == 1 { 200.0 } else { expected_ns }, 1.0);
        }
    }
}

#[test]
fn below_saturation_a_lock_costs_no_wait() {
    let hardware = Hardware { hit_ns: 0.0, transfer_ns: 0.0, memory_ns: 0.0, ..Hardware::default() };
    let lock = std::cell::OnceCell::new();
    let program = |world: &World, cpu: usize| {
        world.spend(Time::from_ns(cpu as f64 * 100.0)); // each thread starts in a different tenth of a microsecond
        for _ in 0..100 {
            let lock = lock.get_or_init(|| ProgramLock::new(world, 0));
            lock.hold(world, || world.spend(Time::from_ns(90.0)));
            world.spend(Time::from_ns(910.0));
        }
        assert_eq!(world.account_of(world.thread()).lock_wait, Time::ZERO);
    };
    let ended = run_each(&machine(hardware), &(0..10).collect::<Vec<_>>(), program, |_| ());
    near(last(&ended), 100.0 * 1000.0 + 900.0, 0.1);
}

#[test]
fn locks_outside_the_machines_memory_exclude_each_for_itself() {
    use zonal::platform::RawLock;

    #[repr(align(64))]
    struct Line([locks::SimLock; 2]);
    let (Line([first, second]), is_held) = (Line([(); 2].map(|()| RawLock::new())), Cell::new(false));
    let program = |world: &World, cpu: usize| {
        let ns = |ns: f64| world.sleep_until(world.now() + Time::from_ns(ns));
        ns(10.0 * cpu as f64);
        if cpu == 1 {
            second.lock();
            ns(100.0); // the others wait for the first lock
            return second.unlock();
        }
        first.lock();
        assert!(!is_held.replace(true));
        ns(1000.0);
        is_held.set(false);
        first.unlock();
    };
    let ended = run_each(&machine(Hardware::default()), &[0, 1, 2, 3], program, |_| ());
    // Lines outside the memory cost nothing, so a lock is held for all the time.
    assert_eq!(ended, [1000.0, 110.0, 2000.0, 3000.0].map(Time::from_ns));
}

#[test]
fn two_far_writers_alternate_at_one_transfer_each() {
    const ROUNDS: usize = 1000;
    // CPU 16 is on a node at distance 12 from the node of CPU 0, and CPU 32 on a node at distance 32.
    for (other, distance) in [(1, 10), (16, 12), (32, 32)] {
        let hardware =
            Hardware { hit_ns: 0.0, transfer_ns: 100.0, distance_weight: 1.0, ..Hardware::default() };
        let latency = 100.0 * hardware.stretch(distance);
        let line = std::cell::OnceCell::new();
        let program = |world: &World, _| {
            for _ in 0..ROUNDS {
                line.get_or_init(|| ProgramLine::new(world, 0)).modify(world);
                world.checkpoint();
            }
        };
        let ended = run_each(&machine(hardware), &[0, other], program, |_| ());
        near(last(&ended) / (2 * ROUNDS) as f64, latency, 2.0);
    }
}

#[test]
fn readers_share_a_line_and_do_not_wait() {
    let hardware = Hardware { hit_ns: 1.0, memory_ns: 80.0, ..Hardware::default() };
    let line = std::cell::OnceCell::new();
    let program = |world: &World, _| {
        for _ in 0..1000 {
            line.get_or_init(|| ProgramLine::new(world, 0)).read(world);
        }
    };
    let ended = run_each(&machine(hardware), &(0..16).collect::<Vec<_>>(), program, |_| ());
    // The first CPU reads the line from memory, the second from the first CPU's cache, and all others from memory.
    // Later reads are hits.
    assert!(last(&ended) < 1000.0 + 2.0 * 80.0 + 60.0, "{ended:?}");
}

#[test]
fn waiters_slow_a_line_down_by_the_law_given() {
    const ROUNDS: usize = 400;
    let hardware = Hardware {
        hit_ns: 0.0,
        transfer_ns: 100.0,
        distance_weight: 0.0,
        refusal_limit: 64.0,
        ..Hardware::default()
    };
    for cpus in [2, 16, 33] {
        let line = std::cell::OnceCell::new();
        let program = |world: &World, _| {
            for _ in 0..ROUNDS {
                line.get_or_init(|| ProgramLine::new(world, 0)).modify(world);
            }
        };
        let all: Vec<usize> = (0..cpus).collect();
        let ended = run_each(&machine(hardware.clone()), &all, program, |_| ());
        // One CPU is being served and one CPU has just queued again, so `cpus - 2` CPUs wait.
        let expected = 100.0 * hardware.slowdown(cpus - 2);
        near(last(&ended) / (ROUNDS * cpus) as f64, expected, 5.0);
    }
}

/// Streams `pages` pages on each of `cpus` CPUs with `work` between two pages, and returns their rate and the
/// ratio between the last and the first end.
fn rate_of_streams(hardware: &Hardware, cpus: usize, pages: usize, work: Time) -> (f64, f64) {
    let program = |world: &World, _| {
        for _ in 0..pages {
            world.stream(0, 4096);
            world.spend(work);
            world.checkpoint();
        }
    };
    let all: Vec<usize> = (0..cpus).collect();
    let ended = run_each(&machine(hardware.clone()), &all, program, |_| ());
    let first = ended.iter().min().unwrap().seconds() * 1e9;
    ((cpus * pages * 4096) as f64 / last(&ended), last(&ended) / first) // bytes per nanosecond = GB/s
}

#[test]
fn a_nodes_bandwidth_is_shared_fairly() {
    for cpu_gb_s in [0.05, 0.3125, 0.5, 0.7, 1.0, 2.5, 4.0, 10.0, 20.0] {
        for cpus in [1, 2, 3, 5, 8, 13, 16] {
            let hardware =
                Hardware { cpu_gb_s, node_gb_s: 10.0, distance_weight: 0.0, ..Hardware::default() };
            let expected = (cpus as f64 * cpu_gb_s).min(10.0);
            // Threads are unequal in the first epochs, so a run takes hundreds of them.
            let pages = (expected * 40e6 / (4096 * cpus) as f64) as usize;
            let (rate, unequal) = rate_of_streams(&hardware, cpus, pages, Time::ZERO);
            near(rate, expected, 2.0);
            assert!(unequal < 1.05, "{cpus} CPUs at {cpu_gb_s} GB/s: {unequal}"); // they are while a thread runs ahead first
        }
    }
}

#[test]
fn all_cpus_of_a_machine_share_one_nodes_bandwidth() {
    for cpu_gb_s in [0.3125, 0.5, 1.0, 4.0] {
        for cpus in [32, 64] {
            let hardware =
                Hardware { cpu_gb_s, node_gb_s: 10.0, distance_weight: 0.0, ..Hardware::default() };
            let expected = (cpus as f64 * cpu_gb_s).min(10.0);
            let (rate, unequal) = rate_of_streams(&hardware, cpus, 3000, Time::ZERO);
            near(rate, expected, 2.0);
            assert!(unequal < 1.05, "{cpus} CPUs at {cpu_gb_s} GB/s: {unequal}"); // they are while a thread runs ahead first
        }
    }
}

#[test]
fn streams_with_work_in_between_use_the_bandwidth_that_is_there() {
    // A CPU alone needs 4 us for a page and works for 4 us, so it streams 0.512 GB/s.
    let hardware =
        Hardware { cpu_gb_s: 1.024, node_gb_s: 10.24, distance_weight: 0.0, ..Hardware::default() };
    for cpus in [1, 8, 16, 32, 64] {
        let (rate, unequal) = rate_of_streams(&hardware, cpus, 3000, Time::from_ns(4000.0));
        near(rate, (cpus as f64 * 0.512).min(10.24), 2.0);
        assert!(unequal < 1.02, "{cpus} CPUs: {unequal}");
    }
}

#[test]
fn streaming_over_a_distance_takes_longer() {
    let hardware = Hardware { cpu_gb_s: 10.0, node_gb_s: 0.0, distance_weight: 1.0, ..Hardware::default() };
    let program = |world: &World, _| world.stream(2, 1 << 20);
    let ended = run_each(&machine(hardware), &[0], program, |_| ());
    near(last(&ended), f64::from(1 << 20) / 10.0 * 3.2, 0.1);
}

#[test]
fn threads_that_wait_for_each_other_are_found() {
    let found = machine(Hardware::default()).simulate(&Config::default(), 1, |sim| {
        let mut threads = Threads::new();
        let world = sim.world;
        threads.add(0, Role::Foreground, Time::ZERO, || world.spend(Time::from_ns(5.0))).unwrap();
        threads.add(1, Role::Foreground, Time::ZERO, || _ = world.block()).unwrap();
        sim.world.run(threads, &AtomicBool::new(false))
    });
    assert_eq!(found.unwrap(), Err(RunError::Deadlock { waiting: 1, first: 1, at: Time::ZERO }));
}

#[test]
fn a_run_can_be_stopped() {
    let found = machine(Hardware::default()).simulate(&Config::default(), 1, |sim| {
        let mut threads = Threads::new();
        let world = sim.world;
        let forever = || {
            loop {
                world.sleep_until(world.now() + Time::from_ns(1.0));
            }
        };
        threads.add(0, Role::Foreground, Time::ZERO, forever).unwrap();
        sim.world.run(threads, &AtomicBool::new(true))
    });
    assert_eq!(found.unwrap(), Err(RunError::Interrupted));
}

#[test]
fn a_lone_thread_that_never_waits_can_be_stopped() {
    let stop = AtomicBool::new(false);
    let found = machine(Hardware::default()).simulate(&Config::default(), 1, |sim| {
        let mut threads = Threads::new();
        let world = sim.world;
        let forever = || {
            // The engine checks the flag before it runs the thread for the first time. It must check the flag again
            // later.
            stop.store(true, Ordering::Relaxed);
            for _ in 0..100_000_000 {
                world.spend(Time::from_ns(1.0));
                world.checkpoint();
            }
        };
        threads.add(0, Role::Foreground, Time::ZERO, forever).unwrap();
        sim.world.run(threads, &stop)
    });
    assert_eq!(found.unwrap(), Err(RunError::Interrupted));
}

#[test]
fn a_lock_is_held_as_long_as_lists_would_take_for_the_frames_that_move() {
    use zonal::Request;
    use zonal::rules::pageset_tuning::PagesetTuning;
    use zonal::units::PageCount;

    let measure = |list_work_ns: f64, lock_work_ns: f64, frames: usize| {
        let config = Config {
            tuning: PagesetTuning::Fixed,
            free_area_min: PageCount::new(1 << 24),
            ..Config::default()
        };
        let machine = machine(Hardware { list_work_ns, lock_work_ns, ..Hardware::default() });
        let ended = machine.simulate(&config, 1, |sim| {
            let mut threads = Threads::new();
            let work = || (0..frames).for_each(|_| _ = sim.allocator.alloc(&Request::page()));
            threads.add(0, Role::Foreground, Time::ZERO, work).unwrap();
            let ended = sim.world.run(threads, &AtomicBool::new(false)).unwrap();
            let moved = frames as u64 + sim.allocator.accounting().in_pagesets.get();
            (last(&ended), moved as f64, sim.allocator.events().refills as f64)
        });
        ended.unwrap()
    };
    let time_of = |list_work_ns, frames| measure(list_work_ns, 0.0, frames);
    for frames in [1, 1000, 100_000] {
        let ((short, moved, _), (long, ..)) = (time_of(60.0, frames), time_of(120.0, frames));
        near(long - short, 60.0 * moved, 0.1);
        // The lists take the place of the accesses, which take longer than none.
        assert!(time_of(0.001, frames).0 < time_of(0.0, frames).0);
        // Each refill takes the lock once.
        let ((short, _, refills), (long, ..)) = (measure(60.0, 0.0, frames), measure(60.0, 500.0, frames));
        near(long - short, 500.0 * refills, 0.1);
    }
}

#[test]
fn a_kernels_drains_grow_and_take_the_lock_once() {
    use zonal::Request;
    use zonal::rules::pageset_tuning::PagesetTuning;
    use zonal::units::PageCount;

    const PAGES: usize = 4096;
    // Returns how often the lock of one zone was handed over.
    let hand_overs = |lock_hold: LockHold, drains: Drains| {
        let machine = machine(Hardware { list_work_ns: 50.0, lock_hold, drains, ..Hardware::default() });
        let config = Config {
            tuning: PagesetTuning::DepthPublished,
            high_fraction: 2000,
            free_area_min: PageCount::new(1 << 24),
            ..machine.model.config()
        };
        let waits = machine.simulate(&config, 1, |sim| {
            let system = crate::system::System::new(sim);
            let mut threads = Threads::new();
            for cpu in 0..8 {
                let system = &system;
                threads
                    .add(cpu, Role::Foreground, Time::ZERO, move || {
                        let page = || system.alloc(&Request::page()).expect("memory");
                        let blocks: Vec<_> = (0..PAGES).map(|_| page()).collect();
                        blocks.iter().for_each(|block| system.free(block));
                    })
                    .unwrap();
            }
            sim.world.run(threads, &AtomicBool::new(false)).unwrap();
            system.check_accounting();
            sim.world.lock_waits().iter().map(|(_, waits)| waits.handed_over).sum::<u64>()
        });
        waits.unwrap()
    };
    let batches = hand_overs(LockHold::Batch, Drains::Batches);
    let operations = hand_overs(LockHold::Operation, Drains::Doubling);
    assert!(0 < operations && operations * 4 < batches * 3, "{operations} of {batches}");
}

#[test]
fn a_disk_serves_one_request_after_the_other() {
    const EACH: usize = 50;
    for readers in [1, 3, 8] {
        let disk = Disk::new(100.0, Time::from_seconds(0.004));
        let program = |world: &World, _| {
            for _ in 0..EACH {
                disk.transfer(world, Transfer::Read, 1 << 20);
            }
        };
        let all: Vec<usize> = (0..readers).collect();
        let ended = run_each(&machine(Hardware::default()), &all, program, |_| ());
        let requests = (EACH * readers) as f64;
        near(last(&ended), requests * (4e6 + f64::from(1 << 20) / 0.1), 0.1);
        assert_eq!((disk.read(), disk.written()), ((EACH * readers) as u64 * (1 << 20), 0));
    }
}

#[test]
fn threads_that_do_not_wait_for_the_disk_go_on() {
    let disk = Disk::new(1.0, Time::ZERO);
    let program = |world: &World, _| {
        let done = disk.submit(world, Transfer::Write, 1_000_000);
        let after = disk.submit(world, Transfer::Write, 500_000);
        assert!(world.now() < Time::from_seconds(0.001));
        near(done.seconds(), 1.0, 0.001);
        near(after.seconds(), 1.5, 0.001);
        // An idle disk does not accumulate capacity.
        world.sleep_until(Time::from_seconds(10.0));
        near(disk.submit(world, Transfer::Write, 1_000_000).seconds(), 11.0, 0.001);
    };
    run_each(&machine(Hardware::default()), &[0], program, |_| ());
}

/// Runs one program in the foreground that must end with an error.
fn run_alone(program: impl Fn(&World)) -> RunError {
    let result = machine(Hardware::default()).simulate(&Config::default(), 1, |sim| {
        let mut threads = Threads::new();
        threads.add(0, Role::Foreground, Time::ZERO, || program(sim.world)).unwrap();
        sim.world.run(threads, &AtomicBool::new(false)).unwrap_err()
    });
    result.unwrap()
}

#[test]
fn a_run_ends_long_before_time_does() {
    let days = |days: f64| Time::from_seconds(days * 86_400.0);
    let spends = |world: &World| (0..300).for_each(|_| world.spend(days(1.0)));
    assert_eq!(run_alone(spends), RunError::TooLong);
    let sleeps = |world: &World| loop {
        world.sleep_until(world.now() + days(60.0));
    };
    assert_eq!(run_alone(sleeps), RunError::TooLong);
    assert_eq!(run_alone(|world| world.sleep_until(Time::NEVER)), RunError::TooLong);
    // The clock saturates at `Time::NEVER`. A thread that only sleeps at this time must still allow the run to end.
    let stands_still = |world: &World| {
        world.spend(Time::NEVER);
        loop {
            world.sleep_until(world.now() + days(1.0));
        }
    };
    assert_eq!(run_alone(stands_still), RunError::TooLong);
    let text = RunError::TooLong.to_string();
    assert!(text.starts_with("not finished after 100 days of simulated time"), "{text}");
}

#[test]
fn times_beyond_the_end_are_the_end() {
    let mut time = Time::NEVER + Time::from_ns(1.0);
    assert_eq!(time, Time::NEVER);
    time += Time::NEVER;
    assert_eq!(time, Time::NEVER);
    assert_eq!(Time::from_seconds(1.0).times(u64::MAX), Time::NEVER);
    assert_eq!(Time::from_ns(1e300), Time::NEVER);
}

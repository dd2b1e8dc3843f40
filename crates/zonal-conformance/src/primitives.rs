//! Scenarios of a platform's parts, without an allocator: cells, locks, the current CPU, the clock, and wake-ups.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use zonal::platform::{Atomic, RawLock};
use zonal::request::Urgency;
use zonal::units::CpuId;
use zonal::{Platform, Request};

use crate::duel::Kit;
use crate::harness::{Harness, Job};
use crate::report::{Stop, hold};
use crate::rule::Rule;
use crate::turns::{Side, Turns, take_turns};
use crate::world::{Note, Text, node};

/// Repetitions of a job in a free round.
const REPETITIONS: u32 = 100;
/// Milliseconds of a short time, and of a time after which 32 bits of milliseconds wrap if it passes twice.
const SHORT_MS: u64 = 20;
const LONG_MS: u64 = 30 * 24 * 3600 * 1000;

/// Work of both jobs on state that they share. The number is 0 or 1.
type Step<'s> = &'s (dyn Fn(usize) + Sync);

impl<H: Harness> Kit<'_, H> {
    /// Runs `step` on two CPUs, the first of which pauses before its access number `pause`. Returns the number of its
    /// accesses.
    fn step_on_two(&mut self, pause: u32, step: Step<'_>) -> Result<u32, Stop> {
        let cpus = [self.cpu(0)?, self.cpu(1)?];
        self.counts.forced += 1;
        let (harness, platform) = (self.harness, self.harness.platform());
        let (turns, accesses) = (Turns::new(Side::A), AtomicU32::new(0));
        let make = |at: usize| harness.call(&mut || step(at));
        let first = || {
            let made =
                take_turns((&turns, Side::A), (harness, &platform), (pause, cpus[1]), (1, &|_| make(0)));
            accesses.store(made, Relaxed); // relaxed: read after the jobs have ended
        };
        let never = u32::MAX;
        let second = || {
            take_turns((&turns, Side::B), (harness, &platform), (never, cpus[0]), (1, &|_| make(1)));
        };
        harness.run(&[(cpus[0], &first), (cpus[1], &second)]);
        Ok(accesses.load(Relaxed))
    }

    /// Runs `step` on the first two CPUs at once, or on one if there is no other.
    fn step_freely(&mut self, step: Step<'_>) {
        self.counts.free += 1;
        let harness = self.harness;
        let make = |at: usize| (0..REPETITIONS).for_each(|_| harness.call(&mut || step(at)));
        let (first, second) = (|| make(0), || make(1));
        match *harness.cpus() {
            [only] => harness.run(&[(only, &first)]),
            [one, other, ..] => harness.run(&[(one, &first), (other, &second)]),
            [] => {}
        }
    }

    pub(crate) fn cells(&mut self) -> Result<(), Stop> {
        self.harness.begin(Rule::AtomicCells);
        self.cells_of::<u8, <H::Platform as Platform>::U8>("byte")?;
        self.cells_of::<u32, <H::Platform as Platform>::U32>("word of 32 bits")?;
        self.cells_of::<u64, <H::Platform as Platform>::U64>("word of 64 bits")
    }

    fn cells_of<T: Copy + Eq + From<u8>, C: Atomic<T>>(&mut self, what: &str) -> Result<(), Stop> {
        let value = T::from;
        let check = |name: &str, is_right: bool| {
            let note = Note::new();
            if !is_right {
                note.write(format_args!(
                    "two CPUs changed a {what} at once by {name}, and one change was lost"
                ));
            }
            hold(Rule::AtomicCells, note.read())
        };
        if self.can_watch() && self.cpu(1).is_ok() {
            for pause in 1.. {
                let [add, or, and, swap, exchange] = [0, 0, 7, 0, 0].map(|start| C::new(value(start)));
                let [returned, exchanged] = [const { AtomicU32::new(0) }; 2];
                let accesses = self.step_on_two(pause, &|me| {
                    let bit = 1 << me as u8;
                    add.fetch_add(value(1), Relaxed);
                    or.fetch_or(value(bit), Relaxed);
                    and.fetch_and(value(7 - bit), Relaxed);
                    let before = swap.swap(value(bit), Relaxed);
                    let bits = [1, 2].into_iter().find(|&bit| before == value(bit)).unwrap_or(0);
                    returned.fetch_add(u32::from(bits), Relaxed);
                    let is_first = exchange.compare_exchange(value(0), value(bit), Relaxed, Relaxed).is_ok();
                    exchanged.fetch_add(u32::from(is_first), Relaxed);
                })?;
                let [add, or, and, swap] = [&add, &or, &and, &swap].map(|cell| cell.load(Relaxed));
                check("fetch_add", add == value(2))?;
                check("fetch_or", or == value(3))?;
                check("fetch_and", and == value(4))?;
                // One job has returned the other's value, whose own value is still there.
                let returned = returned.load(Relaxed) as u8;
                check("swap", (1..3).contains(&returned) && swap == value(3 - returned))?;
                check("compare_exchange", exchanged.load(Relaxed) == 1)?;
                if accesses < pause {
                    break;
                }
            }
        }
        for _ in 0..self.harness.rounds() {
            let (add, jobs) = (C::new(value(0)), self.harness.cpus().len().min(2) as u8);
            self.step_freely(&|_| _ = add.fetch_add(value(1), Relaxed));
            check("fetch_add", add.load(Relaxed) == value(jobs * REPETITIONS as u8))?;
        }
        Ok(())
    }

    pub(crate) fn locks(&mut self) -> Result<(), Stop> {
        self.harness.begin(Rule::LockExcludes);
        let lock = <H::Platform as Platform>::Lock::new();
        let (excludes, frees) = (Note::new(), Note::new());
        let alone = || {
            self.harness.call(&mut || {
                for _ in 0..16 {
                    if !lock.try_lock() {
                        return frees.write(format_args!("a lock that was unlocked could not be acquired"));
                    }
                    if lock.try_lock() {
                        return excludes.write(format_args!("a lock that is held was acquired again"));
                    }
                    lock.unlock();
                }
            });
        };
        self.harness.run(&[(self.cpu(0)?, &alone)]);
        hold(Rule::LockExcludes, excludes.read())?;
        hold(Rule::UnlockReleases, frees.read())?;

        type Cell<H> = <<H as Harness>::Platform as Platform>::U64;
        let count = |cells: &[Cell<H>; 2]| {
            // Relaxed: the lock orders the accesses.
            let [first, second] = [&cells[0], &cells[1]].map(|cell| cell.load(Relaxed));
            cells[0].store(first + 1, Relaxed);
            cells[1].store(second + 1, Relaxed);
            if first != second {
                frees.write(format_args!("a lock's next holder did not see all writes of the previous one"));
            }
        };
        let new = || [Cell::<H>::new(0), Cell::<H>::new(0)];
        let check = |cells: &[Cell<H>; 2], expected: u64| {
            if cells[0].load(Relaxed) != expected {
                excludes.write(format_args!("two CPUs held a lock at once"));
            }
            hold(Rule::LockExcludes, excludes.read())?;
            hold(Rule::UnlockReleases, frees.read())
        };
        let step = |cells: &[Cell<H>; 2]| {
            lock.lock();
            count(cells);
            lock.unlock();
        };
        if self.can_watch() && self.cpu(1).is_ok() {
            for pause in 1.. {
                let cells = new();
                let accesses = self.step_on_two(pause, &|_| step(&cells))?;
                check(&cells, 2)?;
                if accesses < pause {
                    break;
                }
            }
        }
        for _ in 0..self.harness.rounds() {
            let (cells, jobs) = (new(), self.harness.cpus().len().min(2) as u32);
            self.step_freely(&|_| step(&cells));
            check(&cells, u64::from(jobs * REPETITIONS))?;
        }
        Ok(())
    }

    pub(crate) fn current_cpus(&mut self) -> Result<(), Stop> {
        self.harness.begin(Rule::CurrentCpu);
        let (harness, platform, note) = (self.harness, self.harness.platform(), Note::new());
        for &cpu in harness.cpus() {
            let work = || {
                harness.call(&mut || {
                    let found = platform.current_cpu();
                    if found != cpu {
                        note.write(format_args!("a job on CPU {cpu} read CPU {found}"));
                    }
                });
            };
            (0..harness.rounds()).for_each(|_| harness.run(&[(cpu, &work)]));
            self.counts.free += harness.rounds();
        }
        hold(Rule::CurrentCpu, note.read())
    }

    pub(crate) fn clock(&mut self) -> Result<(), Stop> {
        self.harness.begin(Rule::ClockAdvances);
        let (harness, platform, note) = (self.harness, self.harness.platform(), Note::new());
        let is_limited = AtomicBool::new(false);
        let work = || {
            for ms in [SHORT_MS; 8].into_iter().chain([LONG_MS, LONG_MS, SHORT_MS]) {
                let before = platform.now();
                if harness.pass_ms(&platform, ms).is_err() {
                    is_limited.store(ms == SHORT_MS, Relaxed); // relaxed: read after the job has ended
                    return;
                }
                let after = platform.now();
                if after <= before {
                    let (before, after) = (before.ns(), after.ns());
                    note.write(format_args!("the clock went from {before} to {after} ns in {ms} ms"));
                }
            }
        };
        harness.run(&[(self.cpu(0)?, &work)]);
        self.counts.free += 1;
        hold(Rule::ClockAdvances, note.read())?;
        if is_limited.load(Relaxed) {
            harness.pass_ms(&platform, SHORT_MS)?;
        }
        Ok(())
    }

    pub(crate) fn wake_ups(&mut self) -> Result<(), Stop> {
        self.harness.begin(Rule::WakeUpsArrive);
        let (harness, platform) = (self.harness, self.harness.platform());
        harness.take_wake_up(&platform, node(0))?;
        let arrives = |is_awake: bool, what: &str| {
            let text = Text::new(format_args!("{what}, and the worker would sleep"));
            hold(Rule::WakeUpsArrive, (!is_awake).then_some(text))
        };
        for &cpu in harness.cpus() {
            let wake = || {
                harness.call(&mut || {
                    [0, 1].into_iter().for_each(|id| platform.wake_background_reclaim(node(id)));
                });
            };
            harness.run(&[(cpu, &wake)]);
            for id in [0, 1] {
                let is_awake = harness.take_wake_up(&platform, node(id))?;
                arrives(is_awake, "a CPU woke the workers of both nodes")?;
            }
        }
        let rounds = if self.cpu(1).is_ok() { harness.rounds() } else { 0 };
        for _ in 0..rounds {
            self.counts.free += 1;
            let is_awake = self.race_of_wake_ups(&platform, [self.cpu(0)?, self.cpu(1)?]);
            arrives(is_awake, "a CPU woke a worker that was about to sleep")?;
        }
        let world = self.world()?;
        let all = Request::page().urgency(Urgency::Reserve).no_wait();
        world.on(world.harness.cpus()[0], || {
            while world.call(|allocator| allocator.alloc(&all)).is_ok() {}
            _ = world.call(|allocator| allocator.alloc(&Request::page().no_wait()));
        });
        let is_awake = harness.take_wake_up(world.allocator.platform(), node(0))?;
        arrives(is_awake, "a node has no free frames")
    }

    /// Takes wake-ups on the calling CPU while the other CPU wakes. Returns whether the last wake-up arrived.
    fn race_of_wake_ups(&self, platform: &H::Platform, cpus: [CpuId; 2]) -> bool {
        let harness = self.harness;
        let (sent, seen, has_ended) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let take = || harness.take_wake_up(platform, node(0)) == Ok(true);
        let wakes = || {
            for at in 1..=u64::from(REPETITIONS) {
                sent.store(at, Relaxed); // relaxed: the wake-up orders it
                harness.call(&mut || platform.wake_background_reclaim(node(0)));
            }
            // Release: publishes the last wake-up; pairs with `race_of_wake_ups`.
            has_ended.store(true, Release);
        };
        let takes = || {
            loop {
                // Acquire: takes the last wake-up; pairs with `race_of_wake_ups`.
                let is_last = has_ended.load(Acquire);
                if take() {
                    seen.store(sent.load(Relaxed), Relaxed);
                }
                if is_last {
                    return;
                }
                harness.spin();
            }
        };
        let jobs: [Job<'_>; 2] = [(cpus[0], &takes), (cpus[1], &wakes)];
        harness.run(&jobs);
        seen.load(Relaxed) == u64::from(REPETITIONS)
    }
}

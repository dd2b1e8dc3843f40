//! Two jobs at once, in every interleaving that the harness can force.
//!
//! Each interleaving has a new allocator. If the harness cannot [watch](Harness::watch), only the rounds run in which the
//! CPUs run freely.
//!
//! Related files: `turns.rs` forces interleavings, and `pagesets.rs` has the jobs.

use core::mem::MaybeUninit;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use zonal::units::CpuId;

use crate::harness::{Harness, Job, NotSupported};
use crate::report::{Counts, Stop, hold};
use crate::rule::Rule;
use crate::turns::{Side, Turns, take_turns};
use crate::world::{Text, World};

/// The first job pauses at each of its first accesses, up to this number, and at fewer and fewer of the others.
const DENSE: u32 = 16;
/// A job with this pause never pauses.
const NEVER: u32 = u32::MAX;
/// Repetitions of a job in a free round.
const REPETITIONS: u32 = 20;

/// One call or a few of a job.
pub(crate) type Op<H> = for<'w> fn(&World<'w, H>, Actor);

/// The lane of the blocks that a job holds, and the CPU of the other job.
#[derive(Clone, Copy)]
pub(crate) struct Actor {
    pub(crate) lane: usize,
    pub(crate) other: CpuId,
}

/// Two jobs.
pub(crate) struct Duel<'d, H: Harness> {
    pub(crate) what: &'static str,
    /// Numbers of the jobs' CPUs in [`Harness::cpus`], and of the CPU that prepares.
    pub(crate) cpus: [usize; 3],
    /// Prepares the world. What it holds is in the lane of the first job.
    pub(crate) prepare: Op<H>,
    pub(crate) jobs: [&'d [Op<H>]; 2],
    /// Undoes what a job may have left half done.
    pub(crate) finish: Op<H>,
    /// The rules that are broken if something is found: after the second job ran inside the first, after the first began
    /// inside the second, and after both paused.
    pub(crate) rules: [Rule; 3],
    pub(crate) pauses: Pauses,
}

/// The accesses at which the second job of a duel pauses.
#[derive(Clone, Copy)]
pub(crate) enum Pauses {
    /// So many, spread over all of them.
    Spread(u32),
    /// The access at which the first job pauses, and others up to this distance.
    Near(u32),
}

/// Runs scenarios with one harness.
pub struct Kit<'k, H: Harness> {
    pub(crate) harness: &'k H,
    pub(crate) memory: &'k mut [MaybeUninit<u8>],
    pub(crate) counts: Counts,
}

impl<'k, H: Harness> Kit<'k, H> {
    /// Whether the harness can watch.
    pub(crate) fn can_watch(&self) -> bool {
        self.harness.watch(&mut || {}, &|_| {}).is_ok()
    }

    /// Returns a CPU by its number.
    pub(crate) fn cpu(&self, at: usize) -> Result<CpuId, NotSupported> {
        self.harness.cpus().get(at).copied().ok_or(NotSupported("the machine has too few CPUs"))
    }

    pub(crate) fn world(&mut self) -> Result<World<'_, H>, NotSupported> {
        World::build(self.harness, self.memory)
            .map_err(|_| NotSupported("the buffer is smaller than `memory_bytes`"))
    }

    /// Runs both jobs in all interleavings, or freely if the harness cannot watch.
    pub(crate) fn duel(&mut self, duel: &Duel<'_, H>) -> Result<(), Stop> {
        let [a, b, _] = duel.cpus;
        let (a, b) = (self.cpu(a)?, self.cpu(b)?);
        if a == b {
            self.harness.preemption()?;
        }
        self.duel_on(duel, [a, b])
    }

    /// Runs the jobs of a duel on these CPUs.
    pub(crate) fn duel_on(&mut self, duel: &Duel<'_, H>, cpus: [CpuId; 2]) -> Result<(), Stop> {
        if self.can_watch() {
            return self.explore(duel, cpus);
        }
        for _ in 0..self.harness.rounds() {
            self.free_round(duel, cpus)?;
        }
        Ok(())
    }

    fn explore(&mut self, duel: &Duel<'_, H>, cpus: [CpuId; 2]) -> Result<(), Stop> {
        let [inside, begun, both] = duel.rules;
        let [_, of_b] = self.forced(duel, cpus, Side::B, [NEVER; 2], begun)?;
        let spread = match duel.pauses {
            Pauses::Spread(count) => count,
            Pauses::Near(distance) => {
                let near = |pause| pause..=of_b.min(pause + distance);
                return self.each_pause(duel, cpus, Side::A, near, both);
            }
        };
        self.each_pause(duel, cpus, Side::A, |_| NEVER..=NEVER, inside)?;
        let step = of_b.div_ceil(spread).max(1) as usize;
        for (first, rule) in [(Side::B, begun), (Side::A, both)] {
            self.each_pause(duel, cpus, first, |_| (1..=of_b).step_by(step), rule)?;
        }
        Ok(())
    }

    /// Runs both jobs with each pause of the first job, and the pauses of the second that `pauses` returns for it.
    fn each_pause<I: Iterator<Item = u32>>(
        &mut self,
        duel: &Duel<'_, H>,
        cpus: [CpuId; 2],
        first: Side,
        pauses: impl Fn(u32) -> I,
        rule: Rule,
    ) -> Result<(), Stop> {
        let (mut pause, mut most) = (1, 1);
        while pause <= most {
            most = 0;
            for pause_of_b in pauses(pause) {
                let [accesses, _] = self.forced(duel, cpus, first, [pause, pause_of_b], rule)?;
                most = most.max(accesses);
            }
            pause += 1 + if matches!(duel.pauses, Pauses::Spread(_)) { 3 * (pause / DENSE) } else { 0 };
        }
        Ok(())
    }

    /// Runs both jobs once in turns. Returns the numbers of their accesses.
    fn forced(
        &mut self,
        duel: &Duel<'_, H>,
        cpus: [CpuId; 2],
        first: Side,
        pauses: [u32; 2],
        rule: Rule,
    ) -> Result<[u32; 2], Stop> {
        let preparing = self.cpu(duel.cpus[2])?;
        self.harness.begin(rule);
        self.counts.forced += 1;
        let world = self.world()?;
        world.on(preparing, || (duel.prepare)(&world, Actor { lane: 0, other: cpus[0] }));
        let turns = Turns::new(first);
        let accesses = [const { AtomicU32::new(0) }; 2];
        let job = |side: Side| {
            let (me, other) = (side as usize, side.other() as usize);
            let actor = Actor { lane: me, other: cpus[other] };
            let ops = duel.jobs[me];
            let harness_and_platform = (world.harness, world.allocator.platform());
            let call = |at: usize| ops[at](&world, actor);
            let pause = (pauses[me], cpus[other]);
            let made = take_turns((&turns, side), harness_and_platform, pause, (ops.len(), &call));
            accesses[me].store(made, Relaxed); // relaxed: read after the jobs have ended
        };
        let jobs: [Job<'_>; 2] = [(cpus[0], &|| job(Side::A)), (cpus[1], &|| job(Side::B))];
        world.harness.run(&jobs);
        let found = world.finish(duel, cpus);
        hold(rule, found.map(|found| at_pauses(duel.what, first, pauses, &found)))?;
        Ok([0, 1].map(|side| accesses[side].load(Relaxed)))
    }

    /// Runs both jobs repeatedly at once.
    fn free_round(&mut self, duel: &Duel<'_, H>, cpus: [CpuId; 2]) -> Result<(), Stop> {
        let preparing = self.cpu(duel.cpus[2])?;
        self.harness.begin(duel.rules[0]);
        self.counts.free += 1;
        let world = self.world()?;
        world.on(preparing, || (duel.prepare)(&world, Actor { lane: 0, other: cpus[0] }));
        let begun = AtomicU32::new(0);
        let job = |me: usize| {
            begun.fetch_add(1, Relaxed); // relaxed, as the load: only the number itself is read
            while begun.load(Relaxed) < 2 {
                world.harness.spin();
            }
            let actor = Actor { lane: me, other: cpus[1 - me] };
            for _ in 0..REPETITIONS {
                duel.jobs[me].iter().for_each(|op| op(&world, actor));
            }
        };
        world.harness.run(&[(cpus[0], &|| job(0)), (cpus[1], &|| job(1))]);
        let found = world.finish(duel, cpus);
        hold(
            duel.rules[0],
            found.map(|found| Text::new(format_args!("{}, freely: {}", duel.what, found.as_str()))),
        )
    }
}

impl<H: Harness> World<'_, H> {
    fn finish(&self, duel: &Duel<'_, H>, [_, other]: [CpuId; 2]) -> Option<Text> {
        let finishing = self.harness.cpus()[0];
        self.on(finishing, || (duel.finish)(self, Actor { lane: 0, other }));
        self.check()
    }
}

fn at_pauses(what: &str, first: Side, [a, b]: [u32; 2], found: &Text) -> Text {
    let found = found.as_str();
    match (first, b) {
        (_, NEVER) => Text::new(format_args!("{what}, whose other CPU went on at access {a}: {found}")),
        (Side::A, _) => Text::new(format_args!("{what}, paused at access {a} and then {b}: {found}")),
        (Side::B, _) => {
            Text::new(format_args!("{what}, begun at the other CPU's access {b}, paused at {a}: {found}"))
        }
    }
}

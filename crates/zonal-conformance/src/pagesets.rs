//! Scenarios of pagesets: a CPU uses its own while others lock them.
//!
//! Related files: `operations.rs` has the operations, and `duel.rs` runs two jobs at once.

use crate::duel::{Duel, Kit, Op, Pauses};
use crate::harness::Harness;
use crate::operations::{
    all_return, bulk, change, drain, fold, hold_other_node, memory_leaves, other_leaves, other_returns, pop,
    pop_other_node, push, refill, warm,
};
use crate::report::Stop;
use crate::rule::Rule;

/// The pauses of a second job.
const SPREAD: Pauses = Pauses::Spread(4);
/// The rules of operations without the lock.
const STEPS: [Rule; 3] = [Rule::OperationsEnd, Rule::LockWordFirst, Rule::OperationsEnd];
const REFUSALS: [Rule; 3] = [Rule::LockedHeadsRefuse; 3];

/// Two jobs and their name.
type Pair<'d, H> = (&'static str, &'d [Op<H>], &'d [Op<H>]);

impl<H: Harness> Kit<'_, H> {
    /// Runs duels of jobs on the first two of `cpus`, after the third has prepared.
    fn duels(
        &mut self,
        duels: &[Pair<'_, H>],
        cpus: [usize; 3],
        prepare: Op<H>,
        rules: [Rule; 3],
    ) -> Result<(), Stop> {
        for &(what, first, second) in duels {
            let (jobs, finish, pauses) = ([first, second], all_return, SPREAD);
            self.duel(&Duel { what, cpus, prepare, jobs, finish, rules, pauses })?;
        }
        Ok(())
    }

    pub(crate) fn pops_and_pushes(&mut self) -> Result<(), Stop> {
        let pops: &[Pair<'_, H>] = &[
            ("a pop against a drain", &[pop], &[drain]),
            ("a pop against a fold", &[pop], &[fold]),
            ("a bulk request against a drain", &[bulk], &[drain]),
        ];
        self.duels(pops, [0, 1, 0], warm, STEPS)?;
        let pushes: &[Pair<'_, H>] =
            &[("a push against a drain", &[push], &[drain]), ("a push against a fold", &[push], &[fold])];
        // A remote lock waits for pops.
        let rules = [Rule::SlotBeforeWord, Rule::LockWordFirst, Rule::SlotBeforeWord];
        self.duels(pushes, [0, 1, 0], warm, rules)
    }

    pub(crate) fn first_use(&mut self) -> Result<(), Stop> {
        let duels: &[Pair<'_, H>] = &[
            ("the first block and frame of a pageset against a drain", &[push, push, pop], &[drain]),
            ("the first pop of a pageset against a drain", &[pop_other_node, pop_other_node], &[drain]),
        ];
        self.duels(duels, [0, 1, 1], hold_other_node, STEPS)
    }

    pub(crate) fn own_locks(&mut self) -> Result<(), Stop> {
        let rules = [Rule::RemoteLockIsChecked, Rule::LockedHeadsRefuse, Rule::RemoteLockIsChecked];
        let duels: &[Pair<'_, H>] = &[
            ("a fold by the owner against a drain", &[fold, pop, pop], &[drain]),
            ("a refill against a drain", &[refill], &[drain]),
        ];
        self.duels(duels, [0, 1, 0], warm, rules)
    }

    pub(crate) fn remote_locks(&mut self) -> Result<(), Stop> {
        let (what, rules) = ("two folds of a third CPU's counters", [Rule::OneRemoteLock; 3]);
        let jobs: [&[Op<H>]; 2] = [&[fold], &[fold]];
        let (cpus, pauses) = ([1, 2, 0], Pauses::Near(32));
        self.duel(&Duel { what, cpus, prepare: warm, jobs, finish: all_return, rules, pauses })
    }

    pub(crate) fn mutual_drains(&mut self) -> Result<(), Stop> {
        let drains: &[Op<H>] = &[pop, drain, change];
        let duels = [("drains of each other's pagesets", drains, drains)];
        self.duels(&duels, [0, 1, 0], warm, [Rule::WaitsAnswer; 3])?;
        self.load("drains by all CPUs", 54, Rule::WaitsAnswer)
    }

    pub(crate) fn cpus_that_leave(&mut self) -> Result<(), Stop> {
        let rules = [Rule::OfflineCpusAnswer, Rule::LockWordFirst, Rule::OfflineCpusAnswer];
        let leaves: &[Op<H>] = &[other_leaves, other_returns];
        let duels: &[Pair<'_, H>] = &[
            ("a pop while its CPU goes offline", &[pop, push], leaves),
            ("a push while its CPU goes offline", &[push, pop], leaves),
        ];
        self.duels(duels, [0, 1, 0], warm, rules)?;
        self.load("CPUs that leave under load", 62, Rule::OfflineCpusAnswer)
    }

    pub(crate) fn memory_that_leaves(&mut self) -> Result<(), Stop> {
        let duels: &[Pair<'_, H>] =
            &[("pops and pushes while memory goes offline", &[pop, push], &[memory_leaves])];
        self.duels(duels, [0, 1, 0], warm, REFUSALS)?;
        self.load("memory that leaves under load", 64, Rule::LockedHeadsRefuse)
    }

    pub(crate) fn shared_cpus(&mut self) -> Result<(), Stop> {
        self.harness.preemption()?;
        let duels: &[Pair<'_, H>] = &[
            ("pops by two threads of a CPU", &[pop, pop], &[pop]),
            ("a push and a pop by two threads of a CPU", &[push], &[pop, push]),
            ("a fold and a pop by two threads of a CPU", &[fold, pop], &[pop, push]),
            ("a drain and a pop by two threads of a CPU", &[drain], &[pop, push]),
        ];
        self.duels(duels, [0, 0, 0], warm, REFUSALS)?;
        if self.cpu(1).is_ok() {
            let duels: &[Pair<'_, H>] =
                &[("the first use of a pageset by two threads of a CPU", &[push], &[pop_other_node])];
            self.duels(duels, [0, 0, 1], hold_other_node, REFUSALS)?;
        }
        Ok(())
    }

    pub(crate) fn unknown_cpu(&mut self) -> Result<(), Stop> {
        let unknown = self.harness.unknown_cpu()?;
        let known = self.cpu(0)?;
        let jobs: [&[Op<H>]; 2] = [&[pop, push], &[pop, drain, push]];
        let (what, cpus) = ("a CPU that the machine does not have", [0; 3]);
        let (finish, rules, pauses) = (all_return, REFUSALS, SPREAD);
        let duel = Duel { what, cpus, prepare: warm, jobs, finish, rules, pauses };
        self.duel_on(&duel, [known, unknown])
    }
}

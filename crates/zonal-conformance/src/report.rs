//! What the scenarios find.

use core::fmt;

use crate::harness::NotSupported;
use crate::rule::Rule;
use crate::world::Text;

/// A scenario, in the order in which they run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Scenario {
    /// CPUs change one cell at once.
    Cells,
    /// CPUs acquire and release one lock.
    Locks,
    /// Each CPU reads which CPU it is.
    CurrentCpus,
    /// Time passes.
    Clock,
    /// CPUs wake background workers.
    WakeUps,
    /// A CPU pops and pushes frames while another drains its pagesets.
    PopsAndPushes,
    /// A CPU uses a pageset for the first time while another drains it.
    FirstUse,
    /// A CPU locks its pagesets while another drains them.
    OwnLocks,
    /// Two CPUs lock the pagesets of a third.
    RemoteLocks,
    /// CPUs drain each other's pagesets while others wait for the lock for run-time changes.
    MutualDrains,
    /// CPUs go offline and come back while they allocate and free.
    CpusThatLeave,
    /// Memory goes offline and comes back while CPUs allocate and free.
    MemoryThatLeaves,
    /// Two jobs run on one CPU.
    SharedCpus,
    /// A job runs on a CPU that the machine does not have.
    UnknownCpu,
    /// Handlers interrupt calls of the allocator.
    Handlers,
}

/// All scenarios.
pub const SCENARIOS: [Scenario; 15] = [
    Scenario::Cells,
    Scenario::Locks,
    Scenario::CurrentCpus,
    Scenario::Clock,
    Scenario::WakeUps,
    Scenario::PopsAndPushes,
    Scenario::FirstUse,
    Scenario::OwnLocks,
    Scenario::RemoteLocks,
    Scenario::MutualDrains,
    Scenario::CpusThatLeave,
    Scenario::MemoryThatLeaves,
    Scenario::SharedCpus,
    Scenario::UnknownCpu,
    Scenario::Handlers,
];

/// A rule that was broken, and what showed it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// The rule.
    pub rule: Rule,
    pub(crate) found: Text,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "broken rule: {}: {}", self.rule, self.found.as_str())
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The result of a scenario.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// No rule was broken. The numbers are those of the interleavings that the harness forced, and of those that were
    /// left to chance.
    Passed {
        /// Interleavings at a chosen access.
        forced: u32,
        /// Rounds in which CPUs ran freely.
        free: u32,
    },
    /// A rule was broken.
    Failed(Failure),
    /// The scenario did not run.
    NotSupported(NotSupported),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed { forced, free } => write!(f, "passed ({forced} interleavings, {free} rounds)"),
            Self::Failed(failure) => failure.fmt(f),
            Self::NotSupported(reason) => write!(f, "not supported: {}", reason.0),
        }
    }
}

/// The end of a scenario before its last step.
#[derive(Debug)]
pub(crate) enum Stop {
    Failed(Failure),
    NotSupported(NotSupported),
}

impl From<NotSupported> for Stop {
    fn from(reason: NotSupported) -> Self {
        Self::NotSupported(reason)
    }
}

/// The number of interleavings and rounds, or why there are no more.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Counts {
    pub(crate) forced: u32,
    pub(crate) free: u32,
}

impl From<Result<Counts, Stop>> for Outcome {
    fn from(result: Result<Counts, Stop>) -> Self {
        match result {
            Ok(Counts { forced, free }) => Self::Passed { forced, free },
            Err(Stop::Failed(failure)) => Self::Failed(failure),
            Err(Stop::NotSupported(reason)) => Self::NotSupported(reason),
        }
    }
}

/// Stops a scenario if something was found.
pub(crate) fn hold(rule: Rule, found: Option<Text>) -> Result<(), Stop> {
    found.map_or(Ok(()), |found| Err(Stop::Failed(Failure { rule, found })))
}

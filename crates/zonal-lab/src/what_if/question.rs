//! What can be asked, and what is in the way of an answer.

use std::num::NonZeroUsize;

use zonal_machine::MachineModel;
use zonal_machine::state::Sample;

use crate::replay::{OwnTrace, ReplayError};
use crate::workload::Unfit;

/// What to ask about.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The machine.
    pub machine: &'a MachineModel,
    /// What is in use there; nothing if `None`.
    pub before: Option<&'a Sample>,
    /// What runs.
    pub load: Asked<'a>,
    /// About how many operations each run has.
    pub operations: u64,
    /// The number of host threads.
    pub jobs: NonZeroUsize,
}

/// What runs.
#[derive(Clone, Copy, Debug)]
pub enum Asked<'a> {
    /// What a trace recorded.
    Trace(&'a OwnTrace<'a>),
    /// A program that suits the machine.
    Kind(LoadKind),
}

/// A kind of program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoadKind {
    /// A process on each CPU maps, touches and unmaps memory.
    PageFaults,
    /// Processes on all CPUs touch memory once, at most half of it.
    FirstTouch,
    /// Pairs of processes exchange pages in bursts.
    Exchange,
    /// A process needs more than its node has, and the nodes nearest to it are full.
    Overflow,
}

impl LoadKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::PageFaults, Self::FirstTouch, Self::Exchange, Self::Overflow];

    /// Returns the name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::PageFaults => "page-faults",
            Self::FirstTouch => "first-touch",
            Self::Exchange => "exchange",
            Self::Overflow => "overflow",
        }
    }

    pub(super) const fn about(self) -> &'static str {
        match self {
            Self::PageFaults => {
                "a process on each of up to 16 CPUs, which maps twice what a pageset of fixed size holds, touches it and unmaps it"
            }
            Self::FirstTouch => {
                "a process on each of up to 16 CPUs; together they touch a page for each operation, at most half of the memory"
            }
            Self::Exchange => "pairs of processes, which exchange bursts of 64 pages",
            Self::Overflow => "a process that needs more than its node has, while the nodes near it are full",
        }
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum WhatIfError {
    /// The program cannot run on this machine.
    #[error("{0}: {1} {2}")]
    Unfit(&'static str, &'static str, String),
    /// The trace cannot be run.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// A run failed.
    #[error("a run failed: {0}")]
    Run(String),
    /// The user stopped the runs.
    #[error("interrupted before the end of the runs")]
    Interrupted,
}

impl WhatIfError {
    pub(super) fn unfit(kind: LoadKind, Unfit { field, problem }: Unfit) -> Self {
        Self::Unfit(kind.name(), field, problem)
    }
}

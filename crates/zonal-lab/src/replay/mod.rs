//! Replays traces that the Linux page allocator left.
//!
//! [`replay_kernel`] runs the pageset rule of the recorded kernel over a trace and predicts what it should have done. [`replay_ours`]
//! repeats a trace on the allocator of this project, on a simulated machine.
//!
//! Related files: the crate `zonal-trace` reads traces, and `zonal_machine::pagesets` has the rules of kernels.

mod environment;
mod held;
mod huge;
mod kernel;
mod ours;
mod results;
mod script;
mod start;
mod ticks;

use zonal_machine::{Excerpt, MachineError, VersionError};
use zonal_trace::TraceError;

use crate::sim::{RunError, SimulateError};

pub use huge::{HugePages, HugeZone};
pub use kernel::replay_kernel;
pub use ours::{OwnOptions, OwnReplay, OwnRow, OwnTrace, replay_ours};
pub use results::{CpuPages, KernelReplay, Pair};

/// The reason why a trace was not replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The trace could not be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The trace describes its machine in a wrong way.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The trace's kernel has no version.
    #[error("{}: the kernel's release: {source}", Excerpt::name(origin))]
    Version {
        /// The trace.
        origin: String,
        /// What is wrong.
        source: VersionError,
    },
    /// The trace has an event long after its start.
    #[error(
        "{}: an event is {seconds:.0} seconds after the start; at most {:.0} are replayed; record less, or record \
         again if the file is damaged",
        Excerpt::name(origin),
        script::SECONDS_MAX
    )]
    TooLong {
        /// The trace.
        origin: String,
        /// Seconds from the start to the event.
        seconds: f64,
    },
    /// The trace lacks something that a replay needs.
    #[error(
        "{}: the trace does not have {what}, as traces of `zonal trace record` do",
        Excerpt::name(origin)
    )]
    Missing {
        /// The trace.
        origin: String,
        /// What is missing.
        what: &'static str,
    },
    /// The trace has more pagesets than a machine can have.
    #[error(
        "{}: it has more than {most} pagesets, the maximum; the file is damaged, record it again",
        Excerpt::name(origin)
    )]
    TooMany {
        /// The trace.
        origin: String,
        /// The maximum.
        most: usize,
    },
    /// The trace has no machine.
    #[error("{}: the trace does not describe its machine; name one with --machine", Excerpt::name(origin))]
    NoMachine {
        /// The trace.
        origin: String,
    },
    /// The machine cannot be simulated.
    #[error(transparent)]
    Simulate(#[from] SimulateError),
    /// The run ended early.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The trace's `/proc/zoneinfo` has not what a replay needs.
    #[error("{}: /proc/zoneinfo at the start: {}", Excerpt::name(origin), Excerpt::sentence(problem))]
    Zoneinfo {
        /// The trace.
        origin: String,
        /// What is wrong.
        problem: String,
    },
}

#[cfg(test)]
pub(crate) mod tests;

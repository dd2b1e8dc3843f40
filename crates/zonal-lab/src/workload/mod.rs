//! Programs that run on simulated machines, and their description in experiment files.
//!
//! A workload is a table of an experiment file whose `kind` selects the program. Each program has its own file. It
//! checks its settings against the machine, runs its threads and returns an [`Outcome`](crate::outcome::Outcome).
//! Related files: `system.rs` is the interface that programs use.

mod build;
mod copies;
mod exchange;
mod fallback_list;
mod file_machine;
mod file_writers;
mod first_touch;
mod held;
mod hog;
mod kinds;
mod lru_lists;
mod mapped_writer;
mod measured;
mod metrics;
mod observer;
mod overflow;
mod page_faults;
mod placement;
mod program;
mod stream;
mod together;

use serde::{Deserialize, Serialize};

pub use self::build::Build;
pub use self::copies::Copies;
pub use self::exchange::Exchange;
pub use self::fallback_list::FallbackList;
pub use self::file_writers::FileWriters;
pub use self::first_touch::FirstTouch;
pub use self::hog::Hog;
pub use self::kinds::{KeyInfo, Keys, hardware_keys, kinds};
pub use self::mapped_writer::MappedWriter;
pub use self::metrics::{Better, better};
pub use self::overflow::Overflow;
pub use self::page_faults::PageFaults;
pub use self::placement::Placement;
pub use self::program::{Program, Unfit};
pub(crate) use self::program::{cpus, zeroing_ns};
pub use self::stream::Stream;
pub use self::together::{NamedProgram, Together};

/// A workload as read from a file: its kind and its fields.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Processes that concurrently touch their own memory.
    FirstTouch(FirstTouch),
    /// Threads in one process that each touch a share of its memory.
    Hog(Hog),
    /// Processes that repeatedly map, touch and unmap memory.
    PageFaults(PageFaults),
    /// Short jobs that compute and touch pages. Each CPU runs one job after the other.
    Build(Build),
    /// Pairs of processes that exchange page bursts.
    Exchange(Exchange),
    /// STREAM on selected nodes.
    Stream(Stream),
    /// An entry of a node's fallback list.
    FallbackList(FallbackList),
    /// Threads that each write many files, in several loops.
    FileWriters(FileWriters),
    /// Files that arrive over a network, are copied several times and deleted.
    Copies(Copies),
    /// A process that stores into a mapping of a large file, from start to end.
    MappedWriter(MappedWriter),
    /// A process that needs more memory than its node has while the nearest nodes are full.
    Overflow(Overflow),
    /// Several programs at the same time: a part's list of programs.
    Together(Together),
}

impl Workload {
    /// Names of all kinds. [`Workload::Together`] has none.
    pub const KINDS: &[&str] = &[
        "first-touch",
        "hog",
        "page-faults",
        "build",
        "exchange",
        "stream",
        "fallback-list",
        "file-writers",
        "copies",
        "mapped-writer",
        "overflow",
    ];

    /// Returns the unit of a metric that the program reports, or `None` if the program does not report the metric.
    #[must_use]
    pub fn unit_of(&self, metric: &str) -> Option<&'static str> {
        if let Self::Together(together) = self {
            return together.unit_of(metric);
        }
        let (unit, _) = metrics::known(metric)?;
        let is_large = metric == "throughput" && matches!(self, Self::PageFaults(_));
        Some(if is_large { "GB/s" } else { unit })
    }

    /// Whether the program, or one of several programs, reports a metric called `name`: METRIC or PROGRAM.METRIC.
    #[must_use]
    pub fn reports(&self, name: &str) -> bool {
        let has_own = |together: &Together| {
            together.programs.iter().any(|program| program.workload.unit_of(name).is_some())
        };
        self.unit_of(name).is_some() || matches!(self, Self::Together(together) if has_own(together))
    }

    /// Whether the program reads or writes files.
    #[must_use]
    pub fn uses_disk(&self) -> bool {
        match self {
            Self::FileWriters(_) | Self::Copies(_) | Self::MappedWriter(_) => true,
            Self::Together(together) => together.programs.iter().any(|program| program.workload.uses_disk()),
            _ => false,
        }
    }

    /// Returns the program.
    #[must_use]
    pub fn program(&self) -> &dyn Program {
        match self {
            Self::FirstTouch(program) => program,
            Self::Hog(program) => program,
            Self::PageFaults(program) => program,
            Self::Build(program) => program,
            Self::Exchange(program) => program,
            Self::Stream(program) => program,
            Self::FallbackList(program) => program,
            Self::FileWriters(program) => program,
            Self::Copies(program) => program,
            Self::MappedWriter(program) => program,
            Self::Overflow(program) => program,
            Self::Together(programs) => programs,
        }
    }
}

//! Contenders: how an allocator is created and measured.
//!
//! A *contender* is an allocator with its pool. An *entry* is a contender's name, its version, and a function that
//! creates it. Only the choice of the contender is dynamic; all code within a run is compiled for the contender's
//! type. Related files: `bench.rs` measures entries, and `counting.rs` counts the instructions of a run.

use std::io;
use std::sync::atomic::AtomicBool;

use zonal::units::{PageCount, Pfn};
use zonal_workload::{PageSource, Plan, Workload, run};

use crate::counting::{Counting, Instructions, Metered};

/// An allocator with a pool of frames.
///
/// All contenders use frame numbers, so that storing the allocated frames costs the same for each of them.
pub trait Contender: Send + Sync + 'static {
    /// The allocator's interface for one thread. It is used only on the thread that created it.
    type Source<'a>: PageSource<Page = Pfn>
    where
        Self: 'a;

    /// Returns the interface for the calling thread.
    fn source(&self) -> Self::Source<'_>;
}

/// A text that says why a contender could not be created.
pub type Reason = String;

/// Creates a contender whose pool has the given number of frames.
type Make = dyn Fn(PageCount) -> Result<Box<dyn Ready>, Reason> + Send + Sync;

/// Says why a contender cannot run a workload with such a pool on so many threads, if it cannot.
type Admit = dyn Fn(Workload, PageCount, usize) -> Result<(), Reason> + Send + Sync;

/// A contender's name, its version, and a function that creates it.
pub struct Entry {
    name: String,
    version: String,
    make: Box<Make>,
    admit: Option<Box<Admit>>,
    lacks_orders: bool,
    lacks_pool: bool,
}

impl Entry {
    /// Creates an entry with this name and version. `make` is called with the pool's frame count. If it fails, the
    /// contender is left out, and its error is reported as the reason.
    pub fn new<C: Contender>(
        name: impl Into<String>,
        version: impl Into<String>,
        make: impl Fn(PageCount) -> Result<C, Reason> + Send + Sync + 'static,
    ) -> Self {
        Self::of_any(name, version, move |frames| Ok(Box::new(make(frames)?)))
    }

    /// Creates an entry for a contender whose type depends on the size of the pool.
    pub(crate) fn of_any(
        name: impl Into<String>,
        version: impl Into<String>,
        make: impl Fn(PageCount) -> Result<Box<dyn Ready>, Reason> + Send + Sync + 'static,
    ) -> Self {
        let (name, version, make) = (name.into(), version.into(), Box::new(make));
        Self { name, version, make, admit: None, lacks_orders: false, lacks_pool: false }
    }

    /// Marks the entry as a contender that allocates single frames only.
    #[must_use]
    pub fn of_single_frames(self) -> Self {
        Self { lacks_orders: true, ..self }
    }

    /// Marks the entry as a heap, which has no contiguous pool and may return any frame number.
    #[must_use]
    pub fn without_pool(self) -> Self {
        Self { lacks_pool: true, ..self }
    }

    /// Leaves the contender out of the workloads for which `admit` fails, with its error as the reason.
    #[must_use]
    pub fn admitting(
        self,
        admit: impl Fn(Workload, PageCount, usize) -> Result<(), Reason> + Send + Sync + 'static,
    ) -> Self {
        Self { admit: Some(Box::new(admit)), ..self }
    }

    /// Returns the entry's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the version of the allocator.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Whether the contender can allocate blocks of more than one frame.
    #[must_use]
    pub const fn has_orders(&self) -> bool {
        !self.lacks_orders
    }

    /// Whether the contender allocates frames of a contiguous pool.
    #[must_use]
    pub const fn has_pool(&self) -> bool {
        !self.lacks_pool
    }

    /// Creates the contender and runs `plan` once, for tools that observe the process from outside. Such tools should
    /// observe the function `measured_part`.
    ///
    /// # Errors
    /// Returns an error if the contender cannot be created, or if it completes no pair.
    pub fn run_once(&self, plan: &Plan) -> Result<Once, Reason> {
        let ready = self.make_for(plan.workload, plan.pages, plan.threads.get())?;
        let sample = ready.measure(plan, &Counting::detect(), &AtomicBool::new(false));
        let sample = sample.map_err(|error| format!("cannot start a thread: {error}"))?;
        let sample = sample.ok_or("it did not complete a single pair")?;
        Ok(Once { pairs: sample.pairs, instructions: sample.instructions })
    }

    /// Creates the contender for `workload` on at most `threads` threads.
    pub(crate) fn make_for(
        &self,
        workload: Workload,
        frames: PageCount,
        threads: usize,
    ) -> Result<Box<dyn Ready>, Reason> {
        self.admits(workload, frames, threads)?;
        self.make(frames)
    }

    /// Checks that the contender can run a workload with a pool of this size on `threads` threads.
    pub(crate) fn admits(&self, workload: Workload, frames: PageCount, threads: usize) -> Result<(), Reason> {
        if self.lacks_orders && workload == Workload::Orders {
            return Err("it allocates single frames only".into());
        }
        self.admit.as_ref().map_or(Ok(()), |admit| admit(workload, frames, threads))
    }

    /// Creates the contender.
    pub(crate) fn make(&self, frames: PageCount) -> Result<Box<dyn Ready>, Reason> {
        (self.make)(frames)
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry")
            .field("name", &self.name)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// The result of a run that was observed from outside.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Once {
    /// Number of pairs in the measured part.
    pub pairs: u64,
    /// Instructions per pair, if the processor counts them.
    pub instructions: Option<f64>,
}

/// The result of one contender's run. Times and counts are per pair.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Sample {
    /// CPU time.
    pub(crate) cpu_ns: f64,
    /// Wall time.
    pub(crate) wall_ns: f64,
    /// Instructions in user space, if they can be counted.
    pub(crate) instructions: Option<f64>,
    /// Number of pairs done.
    pub(crate) pairs: u64,
    /// Failed requests per pair.
    pub(crate) failed: f64,
}

/// A contender of any type.
pub(crate) trait Ready: Send + Sync {
    /// Runs `plan` once. Returns `None` if the run completed no pair.
    fn measure(&self, plan: &Plan, counting: &Counting, stop: &AtomicBool) -> io::Result<Option<Sample>>;

    /// Returns the interface for the calling thread, for uses that are not timed.
    fn open(&self) -> Box<dyn PageSource<Page = Pfn> + '_>;
}

impl<C: Contender> Ready for C {
    fn measure(&self, plan: &Plan, counting: &Counting, stop: &AtomicBool) -> io::Result<Option<Sample>> {
        let instructions = Instructions::default();
        let source = |_| Metered::new(self.source(), counting, &instructions);
        let measured = run(plan, source, stop, |_| ())?;
        let pairs = measured.pairs;
        let times = measured.cpu_ns_per_pair().zip(measured.ns_per_pair());
        Ok(times.map(|(cpu_ns, wall_ns)| Sample {
            cpu_ns,
            wall_ns,
            instructions: instructions.total(plan.threads).map(|count| count as f64 / pairs as f64),
            pairs,
            failed: measured.failed as f64 / pairs as f64,
        }))
    }

    fn open(&self) -> Box<dyn PageSource<Page = Pfn> + '_> {
        Box::new(self.source())
    }
}

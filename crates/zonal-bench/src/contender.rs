//! What can be measured: an allocator, how it is made, and how one run of it goes.
//!
//! A *contender* is an allocator with its pool; an *entry* is its name, its version and how to make
//! it. Everything that a run touches is compiled for the contender; only the choice of the contender
//! is dynamic. Neighbours: `bench.rs` measures entries, `counting.rs` wraps their sources.

use std::io;
use std::sync::atomic::AtomicBool;

use zonal::units::{PageCount, Pfn};
use zonal_workload::{PageSource, Plan, Workload, run};

use crate::counting::{Counting, Instructions, Metered};

/// An allocator with a pool of frames. All contenders speak in frame numbers, so that holding what
/// they gave out costs the same for each.
pub trait Contender: Send + Sync + 'static {
    /// One thread's way to the allocator, used only on the thread that asked for it.
    type Source<'a>: PageSource<Page = Pfn>
    where
        Self: 'a;

    /// A way for the calling thread.
    fn source(&self) -> Self::Source<'_>;
}

/// Why a contender could not be made, for people.
pub type Reason = String;

/// Makes a contender with a pool of that many frames.
type Make = dyn Fn(PageCount) -> Result<Box<dyn Ready>, Reason> + Send + Sync;

/// A contender's name, its version, and how to make it.
pub struct Entry {
    name: String,
    version: String,
    make: Box<Make>,
    lacks_orders: bool,
    lacks_pool: bool,
}

impl Entry {
    /// An entry called `name`. `make` is given the frames of the pool; its error is the reason why the
    /// contender is left out.
    pub fn new<C: Contender>(
        name: impl Into<String>,
        version: impl Into<String>,
        make: impl Fn(PageCount) -> Result<C, Reason> + Send + Sync + 'static,
    ) -> Self {
        Self::of_any(name, version, move |frames| Ok(Box::new(make(frames)?)))
    }

    /// The same where the contender's type depends on the pool.
    pub(crate) fn of_any(
        name: impl Into<String>,
        version: impl Into<String>,
        make: impl Fn(PageCount) -> Result<Box<dyn Ready>, Reason> + Send + Sync + 'static,
    ) -> Self {
        let (name, version, make) = (name.into(), version.into(), Box::new(make));
        Self { name, version, make, lacks_orders: false, lacks_pool: false }
    }

    /// The same for a contender that has single frames only.
    #[must_use]
    pub fn of_single_frames(self) -> Self {
        Self { lacks_orders: true, ..self }
    }

    /// The same for a contender without a pool of frames side by side, whose frame numbers may be any:
    /// a heap.
    #[must_use]
    pub fn without_pool(self) -> Self {
        Self { lacks_pool: true, ..self }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The version of the allocator.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Whether it has blocks of more than one frame.
    #[must_use]
    pub const fn has_orders(&self) -> bool {
        !self.lacks_orders
    }

    /// Whether its frames are those of a pool.
    #[must_use]
    pub const fn has_pool(&self) -> bool {
        !self.lacks_pool
    }

    /// Makes the contender and runs `plan` once, for those who watch the process from outside. What
    /// they want to watch is the function `measured_part`.
    ///
    /// # Errors
    /// When the contender cannot be made, or cannot do a single pair.
    pub fn run_once(&self, plan: &Plan) -> Result<Once, Reason> {
        let ready = self.make_for(plan.workload, plan.pages)?;
        let sample = ready.measure(plan, &Counting::detect(), &AtomicBool::new(false));
        let sample = sample.map_err(|error| format!("no thread: {error}"))?;
        let sample = sample.ok_or("it did not do a single pair")?;
        Ok(Once { pairs: sample.pairs, instructions: sample.instructions })
    }

    /// Makes the contender for `workload`.
    pub(crate) fn make_for(&self, workload: Workload, frames: PageCount) -> Result<Box<dyn Ready>, Reason> {
        if self.lacks_orders && workload == Workload::Orders {
            return Err("single frames only".into());
        }
        self.make(frames)
    }

    /// Makes the contender.
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

/// What a run told that was watched from outside.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Once {
    /// Pairs in the measured part.
    pub pairs: u64,
    /// Instructions of a pair, where the processor counts them.
    pub instructions: Option<f64>,
}

/// What one run of one contender gave; times and counts are of a pair.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Sample {
    /// CPU time.
    pub(crate) cpu_ns: f64,
    /// Time on the clock.
    pub(crate) wall_ns: f64,
    /// Instructions of user space, where they can be counted.
    pub(crate) instructions: Option<f64>,
    /// Pairs done.
    pub(crate) pairs: u64,
    /// Requests that found no block, for each pair.
    pub(crate) failed: f64,
}

/// A contender of any type.
pub(crate) trait Ready: Send + Sync {
    /// Runs `plan` once; `None` when it did not do a single pair.
    fn measure(&self, plan: &Plan, counting: &Counting, stop: &AtomicBool) -> io::Result<Option<Sample>>;

    /// A way for the calling thread, where nothing is timed.
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

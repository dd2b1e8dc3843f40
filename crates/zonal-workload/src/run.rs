//! Runs a plan on all threads, with one routine for each kind of work.
//!
//! Related files: `driver.rs` starts and stops the lanes.

use std::io;
use std::sync::atomic::AtomicBool;

use crate::driver::{Measurement, Progress, Run};
use crate::{PageSource, Plan, Workload, batches, fill, handoff, orders, random};

/// Runs `plan` until its time is over or `stop` becomes true. Each thread uses one source, which it creates by calling
/// `make_source`. `on_progress` is called about twenty times a second. All blocks have been freed when this function
/// returns.
///
/// # Errors
/// Returns an error if the system cannot start a thread.
///
/// # Panics
/// Panics if a source panics, or if the number of threads does not suit the workload.
pub fn run<S, M>(
    plan: &Plan,
    make_source: M,
    stop: &AtomicBool,
    on_progress: impl FnMut(Progress),
) -> io::Result<Measurement>
where
    S: PageSource,
    M: Fn(usize) -> S + Sync,
{
    let run = Run { plan, make_source: &make_source, stop };
    match plan.workload {
        Workload::Pair => run.drive(plan.lanes(|_| batches::Pair), on_progress),
        Workload::Batch => run.drive(plan.lanes(|_| batches::Batch::last_first(plan)), on_progress),
        Workload::BatchRandom => {
            run.drive(plan.lanes(|lane| batches::Batch::shuffled(plan, lane)), on_progress)
        }
        Workload::Repeat => run.drive(plan.lanes(|_| batches::Repeat::<_, false>::new(plan)), on_progress),
        Workload::Touch => run.drive(plan.lanes(|_| batches::Repeat::<_, true>::new(plan)), on_progress),
        Workload::Random => run.drive(plan.lanes(|lane| random::Random::new(plan, lane)), on_progress),
        Workload::Orders => run.drive(plan.lanes(|lane| orders::Orders::new(plan, lane)), on_progress),
        Workload::Fill => run.drive(plan.lanes(|_| fill::Fill::new(plan)), on_progress),
        Workload::Handoff => run.drive(handoff::couples(plan), on_progress),
    }
}

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
    mut on_progress: impl FnMut(Progress),
) -> io::Result<Measurement>
where
    S: PageSource,
    M: Fn(usize) -> S + Sync,
{
    let (run, source, progress) = (Run { plan, stop }, &make_source, &mut on_progress);
    match plan.workload {
        Workload::Pair => run.drive(source, plan.lanes(|_| batches::Pair), progress),
        Workload::Batch => run.drive(source, plan.lanes(|_| batches::Batch::last_first(plan)), progress),
        Workload::BatchRandom => {
            run.drive(source, plan.lanes(|lane| batches::Batch::shuffled(plan, lane)), progress)
        }
        Workload::Repeat => {
            run.drive(source, plan.lanes(|_| batches::Repeat::<_, false>::new(plan)), progress)
        }
        Workload::Touch => run.drive(source, plan.lanes(|_| batches::Repeat::<_, true>::new(plan)), progress),
        Workload::Random => run.drive(source, plan.lanes(|lane| random::Random::new(plan, lane)), progress),
        Workload::Orders => run.drive(source, plan.lanes(|lane| orders::Orders::new(plan, lane)), progress),
        Workload::Fill => run.drive(source, plan.lanes(|_| fill::Fill::new(plan)), progress),
        Workload::Handoff => run.drive(source, handoff::couples(plan), progress),
    }
}

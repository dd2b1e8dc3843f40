//! Shows the progress of a run. Related files: `crate::progress` draws the progress bars.

use std::time::Duration;

use indicatif::ProgressBar;
use zonal_workload::{self as workload, Plan};

use super::text::si;
use crate::progress::bar;

/// A progress line for building a pool.
pub(super) struct Building(ProgressBar);

/// A progress line for running a workload.
pub(super) struct Running {
    bar: ProgressBar,
    name: &'static str,
}

/// Shows the progress while the pool's memory is allocated from the kernel.
pub(super) fn of_building() -> Building {
    Building(bar(0, "mapping memory {wide_bar} {bytes}/{total_bytes}"))
}

/// Shows the progress while the workload runs.
pub(super) fn of_run(plan: &Plan) -> Running {
    Running { bar: bar(ms(plan.duration), "{msg} {wide_bar} {elapsed}"), name: plan.workload.name() }
}

impl Building {
    pub(super) fn show(&self, now: zonal_linux::Progress) {
        self.0.set_length(now.total);
        self.0.set_position(now.done);
    }

    pub(super) fn clear(&self) {
        self.0.finish_and_clear();
    }
}

impl Running {
    pub(super) fn show(&self, now: workload::Progress) {
        let seconds = now.elapsed.as_secs_f64().max(1e-9);
        self.bar.set_message(format!("{}: {} pairs/s", self.name, si(now.pairs as f64 / seconds)));
        self.bar.set_position(ms(now.elapsed));
    }

    pub(super) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

//! Runs scenarios under shuttle, with random schedules that are all sequentially consistent.
//!
//! Related files: `checker.rs` is the interface.

use shuttle::rand::{RngCore, thread_rng};

use crate::interleavings::checker::checker;

/// The checker of random schedules.
pub(crate) struct Shuttle;

impl Contents for () {
    fn new() -> Self {}
    fn write(&self) {}
}

checker!(Shuttle, shuttle, (), shuttle::thread::spawn);

/// Runs `schedules` random schedules of `scenario` with shuttle. Half of them are uniformly random, and half have few
/// preemptions (PCT; Burckhardt et al. 2010). Returns the number of schedules that were run.
pub(crate) fn draw(schedules: usize, scenario: fn()) -> usize {
    const WARM_UP: usize = 50;
    const DEPTH: usize = 3;
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 17;
    Shuttle::table(Table::forget);
    let scenario = move || {
        // The first schedule has no death, and shows how many writes there are.
        let writes = |most| if most == 0 { u64::MAX } else { thread_rng().next_u64() % (most + 1) };
        Shuttle::table(|table| table.writes.set(writes(table.most_writes.get())));
        scenario();
    };
    let random = |seed, schedules| {
        let scheduler = shuttle::scheduler::RandomScheduler::new_from_seed(seed, schedules);
        shuttle::Runner::new(scheduler, config.clone()).run(scenario)
    };
    random(1, WARM_UP); // learns which cells are written
    let scheduler = shuttle::scheduler::PctScheduler::new_from_seed(2, DEPTH, schedules / 2);
    random(3, schedules / 2) + shuttle::Runner::new(scheduler, config).run(scenario)
}

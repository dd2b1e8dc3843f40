//! Runs random schedules of the real allocator under shuttle, half of them with few preemptions.
//!
//! All schedules are sequentially consistent. `loom_interleavings.rs` checks weak orderings, but explores a smaller
//! part of large scenarios. `ZONAL_INTERLEAVINGS=20` runs twenty times as many schedules.
//!
//! Related files: `interleavings` has the scenarios.

mod interleavings;
#[path = "interleavings/under_shuttle.rs"]
mod under_shuttle;

use interleavings::checker::Checker;
use under_shuttle::{Shuttle, draw};

/// Number of schedules for each scenario.
const SCHEDULES: usize = 800;

fn check(name: &str, module: &str, scenario: fn()) {
    let drawn = draw(SCHEDULES * interleavings::factor(), scenario);
    let (deaths, most) = Shuttle::table(|table| (table.deaths.get(), table.most_writes.get()));
    println!("{name}: {drawn} schedules, {deaths} deaths before one of {most} writes");
    assert!(module != "deaths" || deaths > 0, "{name}: no process dies");
}

macro_rules! run {
    ($($name:ident: $module:ident, $preemptions:literal;)*) => {$(
        #[test]
        fn $name() {
            check(stringify!($name), stringify!($module), interleavings::$module::$name::<Shuttle>);
        }
    )*};
}
interleavings::for_all_scenarios!(run);

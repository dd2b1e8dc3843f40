//! Random schedules of the real allocator under shuttle, half of them with few preemptions.
//!
//! All are sequentially consistent. Weak orderings are checked by `loom_interleavings.rs`, which explores less of
//! large scenarios. `ZONAL_INTERLEAVINGS=20` runs twenty times as many schedules. Neighbours: `interleavings` has
//! the scenarios.

mod interleavings;
#[path = "interleavings/under_shuttle.rs"]
mod under_shuttle;

use under_shuttle::{Shuttle, draw};

/// Number of schedules of a scenario.
const SCHEDULES: usize = 1500;

fn check(name: &str, scenario: fn()) {
    let drawn = draw(SCHEDULES * interleavings::factor(), scenario);
    println!("{name}: {drawn} schedules");
}

macro_rules! run {
    ($($name:ident: $module:ident, $preemptions:literal;)*) => {$(
        #[test]
        fn $name() {
            check(stringify!($name), interleavings::$module::$name::<Shuttle>);
        }
    )*};
}
interleavings::for_all_scenarios!(run);

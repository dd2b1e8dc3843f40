//! Schedules of the real allocator that shuttle draws at random, half of them with few preemptions.
//!
//! All are sequentially consistent: what weak orderings do is for `loom_interleavings.rs`, which does not
//! get as far in large scenarios. `ZONAL_INTERLEAVINGS=20` draws twenty times as many. Neighbours:
//! `interleavings` has the scenarios.

mod interleavings;
#[path = "interleavings/under_shuttle.rs"]
mod under_shuttle;

use under_shuttle::{Shuttle, draw};

/// Schedules of a scenario that are drawn.
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

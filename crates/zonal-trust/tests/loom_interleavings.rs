//! Interleavings of the real allocator under loom, weak memory orderings included.
//!
//! What is explored is bounded in preemptions, and where that is still too much in interleavings. Run
//! with `-- --nocapture` to see how many there were; `ZONAL_INTERLEAVINGS=20` goes twenty times as far.
//! Neighbours: `interleavings` has the scenarios, `shuttle_interleavings.rs` draws longer schedules.

mod interleavings;
#[path = "interleavings/under_loom.rs"]
mod under_loom;

use under_loom::{Bounds, Explored, Loom, explore};

/// Interleavings of a scenario that are explored at most.
const MOST: usize = 2500;

fn check(name: &str, preemptions: usize, scenario: fn()) {
    let bounds = Bounds { preemptions, interleavings: MOST * interleavings::factor() };
    let Explored { interleavings, is_complete } = explore(bounds, scenario);
    let extent = if is_complete { "all" } else { "the first" };
    println!("{name}: {extent} {interleavings} interleavings of {preemptions} preemptions at most");
}

macro_rules! run {
    ($($name:ident: $module:ident, $preemptions:literal;)*) => {$(
        #[test]
        fn $name() {
            check(stringify!($name), $preemptions, interleavings::$module::$name::<Loom>);
        }
    )*};
}
interleavings::for_all_scenarios!(run);

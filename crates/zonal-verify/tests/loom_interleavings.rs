//! Explores interleavings of the real allocator under loom, including weak memory orderings.
//!
//! The number of preemptions is bounded and, in large scenarios, also the number of interleavings. To see their number,
//! run with `-- --nocapture`. `ZONAL_INTERLEAVINGS=20` explores at least twenty times as many, with one or two preemptions
//! more.
//!
//! Related files: `interleavings` has the scenarios, and `shuttle_interleavings.rs` runs longer random schedules.

#[path = "interleavings/broken_sequences.rs"]
mod broken_sequences;
mod interleavings;
#[path = "interleavings/under_loom.rs"]
mod under_loom;

use interleavings::cells::Table;
use interleavings::checker::Checker;
use under_loom::{Bounds, Explored, Loom, explore};

/// Maximum number of interleavings for a scenario, or a multiple of the second if more are asked for.
const MOST: usize = 1000;
const MOST_OF_MORE: usize = 1250;
/// Maximum number of interleavings for a scenario with sequences. It exceeds the number within the bound of
/// preemptions, so the exploration is complete.
const MOST_OF_SEQUENCES: usize = 40_000;
const SEQUENCES: &str = "sequences";
/// Maximum number of interleavings for each write before which a process dies. Unless more are asked for, it dies before each of
/// the first writes, and then before every few.
const MOST_OF_A_DEATH: usize = 25;
const EACH_WRITE: u64 = 24;
const WRITES_APART: u64 = 9;
const DEATHS: &str = "deaths";

fn check(name: &str, module: &str, preemptions: usize, scenario: fn()) {
    let (factor, is_sequence) = (interleavings::factor(), module == SEQUENCES);
    Loom::table(Table::forget);
    if module == DEATHS {
        return check_deaths(name, preemptions, factor, scenario);
    }
    let (preemptions, most) = match (factor, is_sequence) {
        (1, true) => (preemptions - 1, MOST_OF_SEQUENCES),
        (1, false) => (preemptions, MOST),
        (_, true) => (preemptions + 1, MOST_OF_SEQUENCES),
        (_, false) => (preemptions + 1, MOST_OF_MORE),
    };
    let bounds = Bounds { preemptions, interleavings: most * factor };
    let Explored { interleavings, is_complete } = explore(bounds, scenario);
    let extent = if is_complete { "all" } else { "the first" };
    println!("{name}: {extent} {interleavings} interleavings of {preemptions} preemptions at most");
    assert!(is_complete || !is_sequence, "{name} has become too large to explore all of it");
    assert!(
        is_complete || interleavings == bounds.interleavings as u64,
        "{name}: not as many as the limit says"
    );
}

/// Explores a scenario for the writes before which its process dies, until there are no more.
fn check_deaths(name: &str, preemptions: usize, factor: usize, scenario: fn()) {
    let preemptions = preemptions + usize::from(factor > 1);
    let bounds = Bounds { preemptions, interleavings: MOST_OF_A_DEATH * factor };
    let (mut all, mut deaths, mut whole, mut writes) = (0, 0, 0, 0);
    loop {
        Loom::table(|table| table.writes.set(writes));
        let Explored { interleavings, is_complete } = explore(bounds, scenario);
        all += interleavings;
        if Loom::table(|table| table.deaths.get()) == 0 {
            // No process dies, so this is a scenario like all others.
            all += explore(Bounds { interleavings: MOST * factor, ..bounds }, scenario).interleavings;
            break;
        }
        deaths += 1;
        whole += u64::from(is_complete);
        writes += if factor > 1 || writes < EACH_WRITE { 1 } else { WRITES_APART };
    }
    println!(
        "{name}: {all} interleavings of {preemptions} preemptions at most, deaths before {deaths} writes, {whole} of them whole"
    );
    assert!(deaths > 0, "{name}: nothing is written");
}

macro_rules! run {
    ($($name:ident: $module:ident, $preemptions:literal;)*) => {$(
        #[test]
        fn $name() {
            check(stringify!($name), stringify!($module), $preemptions, interleavings::$module::$name::<Loom>);
        }
    )*};
}
interleavings::for_all_scenarios!(run);

#[test]
fn sequences_that_load_the_lock_word_last_are_found() {
    broken_sequences::lock_word_last().into_iter().for_each(must_fail);
}

#[test]
fn sequences_whose_lock_word_does_not_acquire_are_found() {
    broken_sequences::lock_word_relaxed().into_iter().for_each(must_fail);
}

fn must_fail((what, orders, scenario): broken_sequences::Broken) {
    let bounds = Bounds { preemptions: 2, interleavings: MOST_OF_SEQUENCES };
    Loom::table(Table::forget);
    let explored = std::panic::catch_unwind(|| explore(bounds, move || scenario(orders)));
    assert!(
        explored.is_err(),
        "{what}: not found in {} interleavings",
        explored.map_or(0, |all| all.interleavings)
    );
}

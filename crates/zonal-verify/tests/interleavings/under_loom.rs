//! loom: goes through interleavings one by one, as far as they differ in what threads see, and lets
//! relaxed loads see what the memory model allows.
//!
//! Its limits: five threads, of which one only starts the scenario; the last seven stores of a cell; no load
//! sees a store of later. Neighbours: `checker.rs`.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::interleavings::checker::checker;

/// Checks exhaustively, weak orderings included.
pub(crate) struct Loom;

impl Contents for loom::cell::UnsafeCell<()> {
    fn new() -> Self {
        Self::new(())
    }

    fn write(&self) {
        self.with_mut(|_| ()); // fails unless all that others did came before
    }
}

/// In words. The fallback order of nodes takes two tables of 8 KiB.
const STACK: usize = 1 << 14;

fn spawn(job: impl FnOnce() + Send + 'static) -> loom::thread::JoinHandle<()> {
    loom::thread::Builder::new().stack_size(STACK).spawn(job).expect("loom spawns")
}

checker!(Loom, loom, loom::cell::UnsafeCell<()>, spawn);

/// How far loom goes.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    /// Preemptions in an interleaving at most.
    pub(crate) preemptions: usize,
    /// Interleavings at most.
    pub(crate) interleavings: usize,
}

/// What was explored.
pub(crate) struct Explored {
    pub(crate) interleavings: u64,
    pub(crate) is_complete: bool,
}

/// Thrown out of a model in which a cell was written that was taken for one that is only read.
struct Learned;

/// Goes through the interleavings of `scenario` with loom.
pub(crate) fn explore(bounds: Bounds, scenario: impl Fn() + Copy + Send + Sync + 'static) -> Explored {
    const EVERY: usize = 500;
    Loom::table(Table::forget);
    loop {
        Loom::table(Table::begin);
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(bounds.preemptions);
        builder.max_branches = 20_000;
        builder.checkpoint_interval = EVERY;
        builder.max_permutations = Some(bounds.interleavings);
        let model = move || {
            if Loom::table(Table::has_learned) {
                resume_unwind(Box::new(Learned));
            }
            Loom::join(Loom::spawn(0, scenario));
            Loom::table(|table| table.explored.set(table.explored.get() + 1));
        };
        let checked = catch_unwind(AssertUnwindSafe(|| builder.check(model)));
        // What was learned makes all before it void, failures too: a plain cell orders nothing.
        if Loom::table(Table::has_learned) {
            continue;
        }
        if let Err(failure) = checked {
            resume_unwind(failure);
        }
        let interleavings = Loom::table(|table| table.explored.get());
        let most = bounds.interleavings.next_multiple_of(EVERY) as u64;
        return Explored { interleavings, is_complete: interleavings + 1 < most };
    }
}

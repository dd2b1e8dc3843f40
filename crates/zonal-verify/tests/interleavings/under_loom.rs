//! Runs scenarios under loom. loom explores all interleavings that differ in the values that threads read, and relaxed
//! loads return any value that the memory model allows.
//!
//! Limits: a model has at most five threads, one of which only starts the scenario. loom stores the last seven stores
//! of a cell. No load returns the value of a later store.
//!
//! Related files: `checker.rs` is the interface.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::interleavings::checker::checker;

/// The exhaustive checker, which includes weak orderings.
pub(crate) struct Loom;

impl Contents for loom::cell::UnsafeCell<()> {
    fn new() -> Self {
        Self::new(())
    }

    fn write(&self) {
        self.with_mut(|_| ()); // fails unless all accesses by other threads happened before
    }
}

/// Stack size in words. The fallback order computation has two tables of 8 KiB on its stack.
const STACK: usize = 1 << 14;

fn spawn(job: impl FnOnce() + Send + 'static) -> loom::thread::JoinHandle<()> {
    loom::thread::Builder::new().stack_size(STACK).spawn(job).expect("loom spawns")
}

checker!(Loom, loom, loom::cell::UnsafeCell<()>, spawn);

/// Bounds of an exploration.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    /// Maximum number of preemptions in an interleaving.
    pub(crate) preemptions: usize,
    /// Maximum number of interleavings.
    pub(crate) interleavings: usize,
}

/// Result of an exploration.
pub(crate) struct Explored {
    pub(crate) interleavings: u64,
    pub(crate) is_complete: bool,
}

/// Panic payload that ends a model in which a thread wrote a cell that was assumed to be only read.
struct Learned;

/// Explores the interleavings of `scenario` with loom, knowing the cells that explorations since [`Table::forget`] have learned.
pub(crate) fn explore(bounds: Bounds, scenario: impl Fn() + Copy + Send + Sync + 'static) -> Explored {
    loop {
        Loom::table(Table::begin);
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(bounds.preemptions);
        builder.max_branches = 20_000;
        // loom ends before the interleaving with this number, and looks at the limit only at multiples of the interval.
        let limit = bounds.interleavings + 1;
        (builder.max_permutations, builder.checkpoint_interval) = (Some(limit), limit);
        let model = move || {
            if Loom::table(Table::has_learned) {
                resume_unwind(Box::new(Learned));
            }
            Loom::join(Loom::spawn(0, scenario));
            Loom::table(|table| table.explored.set(table.explored.get() + 1));
        };
        let checked = catch_unwind(AssertUnwindSafe(|| builder.check(model)));
        // A newly learned cell invalidates earlier results, including failures, because a plain cell does not order
        // accesses.
        if Loom::table(Table::has_learned) {
            continue;
        }
        if let Err(failure) = checked {
            resume_unwind(failure);
        }
        let interleavings = Loom::table(|table| table.explored.get());
        return Explored { interleavings, is_complete: interleavings < bounds.interleavings as u64 };
    }
}

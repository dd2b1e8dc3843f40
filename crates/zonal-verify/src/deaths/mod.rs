//! Deaths: kills a process that shares a pool at every instruction of what it does, and checks what the others find.
//!
//! A child joins a pool that its parent has made, and prepares an operation. One child is followed through it, instruction by
//! instruction. Each further one runs to one of these instructions, at its first arrival, and is killed there, inside
//! restartable sequences too. After each death the parent gives back what the child held,
//! and verifies the pool: no frame is lost, none is held twice, all counters are exact, and blocks that the parent holds are
//! untouched. Every second child has a name, so that its blocks outlive it: the parent then joins as its successor, finds what
//! a root names, and frees all. Related files: `operations.rs` has the operations, `tracer.rs` steps and kills. `soak.rs`
//! kills at any moment instead.

mod held;
mod operations;
mod sequences;
mod soak;
mod tracer;
mod worker;

use std::fmt;
use std::os::fd::BorrowedFd;

use zonal_linux::{Order, PageCount, Pfn, Pool, PoolRequest};

pub use operations::{OPERATIONS, child};
pub use soak::{Tally, soak};
use tracer::{Child, End};
pub use worker::work;

/// Size of the pool in which children die.
const POOL_BYTES: u64 = 32 << 20;
/// What the parent holds besides the blocks that it gives the child: single frames and larger blocks.
const HELD: [(u8, usize); 3] = [(0, 40), (3, 4), (9, 1)];

/// How many deaths were seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Deaths {
    /// Deaths outside sequences.
    pub others: u64,
    /// Deaths inside a restartable sequence.
    pub in_sequences: u64,
    /// Instructions that a child did not come to again, because it took another way.
    pub unreached: u64,
    /// Frames that were given back in all.
    pub given_back: u64,
}

/// What a survivor found that must not be.
#[derive(Debug)]
pub struct Found {
    operation: &'static str,
    place: String,
    what: String,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, killed {}: {}", self.operation, self.place, self.what)
    }
}

/// The survivor: the pool, and the blocks that it holds.
struct Survivor {
    pool: Pool,
    held: Vec<(Pfn, Order)>,
}

/// Which deaths are tried.
#[derive(Clone, Debug)]
pub struct Sample<'s> {
    /// Operations whose name contains this.
    pub only: &'s str,
    /// Number of the first instruction.
    pub from: usize,
    /// From one instruction to the next; more where there would be more than `most`.
    pub stride: usize,
    /// The most deaths in an operation.
    pub most: usize,
    /// Longer operations are left out.
    pub longest: usize,
}

/// Kills children at a sample of each operation's instructions.
///
/// # Errors
/// The first fault that a survivor found.
pub fn run(sample: &Sample<'_>, mut report: impl FnMut(&str, usize, Deaths)) -> Result<Deaths, Found> {
    operations::stay_on_one_cpu();
    let (mut all, sequences) = (Deaths::default(), sequences::all());
    for operation in OPERATIONS.iter().filter(|operation| operation.name.contains(sample.only)) {
        let mut deaths = Deaths::default();
        let mut survivor = Survivor::new();
        let given = survivor.give(operation.foreign);
        let places =
            Child::start(operation.name, survivor.file(), false, &given).follow(&sequences, sample.longest);
        let place = || String::from("at the end");
        deaths.given_back += survivor.check(operation.name, place, &given, operation.frees)?;
        if places.len() > sample.longest {
            continue;
        }
        let stride = sample.stride.max(places.len().div_ceil(sample.most));
        for (at, place) in places.iter().enumerate().skip(sample.from).step_by(stride) {
            let given = survivor.give(operation.foreign);
            let child = Child::start(operation.name, survivor.file(), at % 2 == 1, &given);
            let end = child.run_to_and_kill(place.address);
            let name = || format!("at instruction {at} of {}, {:#x}", places.len(), place.address);
            deaths.given_back += survivor.check(operation.name, name, &given, operation.frees)?;
            match end {
                End::Killed if place.is_in_sequence => deaths.in_sequences += 1,
                End::Killed => deaths.others += 1,
                End::Over => deaths.unreached += 1,
            }
        }
        report(operation.name, places.len(), deaths);
        all.others += deaths.others;
        all.in_sequences += deaths.in_sequences;
        all.unreached += deaths.unreached;
        all.given_back += deaths.given_back;
    }
    Ok(all)
}

/// Whether a condition becomes true before long.
fn soon(mut is_true: impl FnMut() -> bool) -> bool {
    (0..2000).any(|_| {
        let is_true = is_true();
        if !is_true {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        is_true
    })
}

impl Survivor {
    fn new() -> Self {
        let pool =
            Pool::builder().size(POOL_BYTES).shared_by_descriptor().processes(4).build().expect("a pool");
        let mut held = Vec::new();
        for (order, count) in HELD {
            let order = Order::new(order).expect("a small order");
            for _ in 0..count {
                let block = pool.alloc_raw(&PoolRequest::new(order)).expect("the pool is large enough");
                held.push((block.first, order));
            }
        }
        Self { pool, held }
    }

    fn file(&self) -> BorrowedFd<'_> {
        self.pool.shared_file().expect("the pool is shared")
    }

    /// Allocates the blocks that the child gets to free.
    fn give(&self, orders: &[u8]) -> Vec<(Pfn, Order)> {
        let block = |&order: &u8| {
            let order = Order::new(order).expect("a small order");
            let block = self.pool.alloc_raw(&PoolRequest::new(order)).expect("the pool is large enough");
            (block.first, order)
        };
        orders.iter().map(block).collect()
    }

    /// Frees what the dead child held, and checks the pool; returns how many frames were given back. `frees` says whether
    /// the child frees the blocks that it was given.
    fn check(
        &mut self,
        operation: &'static str,
        place: impl Fn() -> String,
        given: &[(Pfn, Order)],
        frees: bool,
    ) -> Result<u64, Found> {
        let found = |what: String| Found { operation, place: place(), what };
        let freed = self.recover().get();
        self.inherit().map_err(&found)?;
        let owners = self.pool.owners();
        let [owner] = owners.as_slice() else { return Err(found(format!("these take part: {owners:?}"))) };
        let accounting = self.pool.verify().map_err(|fault| found(fault.to_string()))?;
        let expected: u64 = self.held.iter().map(|(_, order)| order.pages().get()).sum();
        for &(first, order) in given {
            // SAFETY: no other process uses the block: the child is dead.
            match unsafe { self.pool.free_raw(first, order) } {
                Err(error) if !frees => {
                    return Err(found(format!("a block of the survivor is gone: {error}")));
                }
                _ => {}
            }
        }
        let after = self.pool.verify().map_err(|fault| found(format!("after frees: {fault}")))?;
        if after.allocated.get() != expected {
            let (allocated, before) = (after.allocated, accounting.allocated);
            return Err(found(format!(
                "{allocated} frames are allocated ({before} before frees), not {expected}"
            )));
        }
        if owner.held != accounting.allocated {
            return Err(found(format!("{owner:?} should hold all {} frames", accounting.allocated)));
        }
        for (first, order) in &mut self.held {
            // The blocks of the survivor are allocated still; one of them is exchanged each time.
            let block =
                self.pool.alloc_raw(&PoolRequest::new(*order)).map_err(|error| found(error.to_string()))?;
            // SAFETY: the survivor holds the block.
            unsafe { self.pool.free_raw(*first, *order) }.map_err(|error| found(error.to_string()))?;
            *first = block.first;
        }
        Ok(freed)
    }

    /// Recovers from the deaths so far; returns how many frames were freed.
    fn recover(&self) -> PageCount {
        self.pool.recover_dead().expect("the table is not locked for long")
    }

    /// Frees all that is kept for the child's names, as their successor.
    ///
    /// # Errors
    /// What must not be.
    fn inherit(&self) -> Result<(), String> {
        let names: Vec<_> = self.pool.owners().iter().filter_map(|owner| owner.name).collect();
        if names.is_empty() {
            return match self.pool.root(operations::STAYING) {
                Ok(None) => Ok(()),
                other => Err(format!("a root of a dead process is left: {other:?}")),
            };
        }
        let text = |error: &dyn fmt::Display| error.to_string();
        let allocated = self.pool.verify().map_err(|fault| text(&fault))?.allocated;
        let held: PageCount = self.pool.owners().iter().map(|owner| owner.held).sum();
        if held != allocated {
            return Err(format!(
                "{allocated} frames are allocated, but {held} held: {:?}",
                self.pool.owners()
            ));
        }
        let mut all_held = Vec::new();
        // SAFETY: no block is freed.
        unsafe { self.pool.allocator() }.for_each_held(|_, block| all_held.push(block));
        for name in [operations::STAYING, operations::ROOT] {
            let root = self.pool.root(name).map_err(|error| text(&error))?;
            if root.is_some_and(|root| !all_held.contains(&root)) {
                return Err(format!("the root {name} is {root:?}, which is not allocated"));
            }
        }
        for name in names {
            let successor = Pool::join_file_as(self.file(), name.as_str()).map_err(|error| text(&error))?;
            let mut held = Vec::new();
            successor.for_each_held(|block| held.push(block));
            let root = successor.root(operations::STAYING).map_err(|error| text(&error))?;
            if name.as_str() == operations::CHILD && !root.is_some_and(|root| held.contains(&root)) {
                return Err(format!("the root is {root:?}, and these blocks are held: {held:?}"));
            }
            for block in held {
                // SAFETY: the process that had the block is dead.
                drop(unsafe { successor.own_frames_raw(block.start, block.count) });
            }
            drop(successor);
            self.pool.discard(name.as_str()).map_err(|error| text(&error))?;
        }
        Ok(())
    }
}

//! The contenders `floor-rseq`, `floor-exact`, `floor-spin` and `model`, which show the cost of the access alone on this
//! machine.
//!
//! A *floor* is only an array of frame numbers for each CPU, without zones, merging or checks. Each array can hold
//! the whole pool, so after some time no bulk moves occur. `floor-rseq` accesses the array in a restartable sequence
//! with one committing store, and `floor-spin` accesses it under the CPU's lock. `floor-exact` is `floor-rseq` that
//! refuses invalid frees (`floor/exact.rs`). The *model* is `floor-rseq` with arrays of 1024 frames, so bulk moves
//! continue. Related files: `floor/area.rs` finds the area shared with the kernel, `floor/lines.rs` has the arrays, and
//! `floor/stock.rs` has the frames that are in no array.

pub(crate) mod area;
mod exact;
mod lines;
mod locked;
mod sequences;
mod stock;
#[cfg(test)]
mod tests;

use zonal::units::PageCount;

use self::exact::Exact;
use self::locked::Locked;
use self::sequences::Sequences;
use self::stock::{Source, Stock};
use crate::contender::{Contender, Entry};

/// Names of the floors. Ratios refer to the first floor if it is available.
pub(crate) const NAMES: [&str; 2] = ["floor-rseq", "floor-spin"];

/// Name of the floor that refuses invalid frees.
pub(crate) const EXACT: &str = "floor-exact";

/// Name of the variant in which bulk moves continue.
pub(crate) const MODEL: &str = "model";

/// Frames that one of the model's arrays can hold.
const MODEL_DEPTH: usize = 1024;

/// A contender whose arrays are accessed in restartable sequences.
struct InSequences(Stock);

impl Contender for InSequences {
    type Source<'a> = Source<'a, Sequences<'a>>;

    fn source(&self) -> Self::Source<'_> {
        let access = Sequences::for_this_thread(&self.0.lines).expect("all threads of a process have areas");
        Source { access, stock: &self.0 }
    }
}

/// A contender whose arrays are accessed under locks.
pub(crate) struct UnderLocks(Stock);

impl UnderLocks {
    /// Creates a pool whose arrays can each hold all `frames`.
    ///
    /// # Errors
    /// Returns the reason why this machine cannot have the arrays.
    pub(crate) fn new(frames: PageCount) -> Result<Self, String> {
        Stock::new(frames, whole_pool(frames)).map(Self)
    }
}

impl Contender for UnderLocks {
    type Source<'a> = UnderLock<'a>;

    fn source(&self) -> Self::Source<'_> {
        Source { access: Locked::for_this_thread(&self.0.lines), stock: &self.0 }
    }
}

/// One thread's interface to arrays under locks.
pub(crate) type UnderLock<'a> = Source<'a, Locked<'a>>;

fn whole_pool(frames: PageCount) -> usize {
    frames.get() as usize
}

/// Returns the entries of the floors and the model.
#[must_use]
pub fn floors() -> Vec<Entry> {
    let version = env!("CARGO_PKG_VERSION");
    vec![
        Entry::new(NAMES[0], version, |frames| in_sequences(frames, whole_pool(frames))),
        Entry::new(EXACT, version, |frames| {
            in_sequences(frames, whole_pool(frames)).map(|stacks| Exact::new(stacks, frames))
        }),
        Entry::new(NAMES[1], version, UnderLocks::new),
        Entry::new(MODEL, version, |frames| in_sequences(frames, MODEL_DEPTH)),
    ]
    .into_iter()
    .map(Entry::of_single_frames)
    .collect()
}

fn in_sequences(frames: PageCount, depth: usize) -> Result<InSequences, String> {
    let stock = Stock::new(frames, depth)?;
    Sequences::for_this_thread(&stock.lines)?;
    Ok(InSequences(stock))
}

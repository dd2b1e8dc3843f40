//! The contenders `floor-rseq`, `floor-spin` and `model`, which show the cost of the access alone on this machine.
//!
//! A *floor* is only an array of frame numbers for each CPU, without zones, merging or checks. Each array can hold
//! the whole pool, so after some time no bulk moves occur. `floor-rseq` accesses the array in a restartable sequence
//! with one committing store, and `floor-spin` accesses it under the CPU's lock. The *model* is `floor-rseq` with
//! arrays of 1024 frames, so bulk moves continue. Related files: `floor/area.rs` finds the area shared with the
//! kernel, `floor/lines.rs` has the arrays, and `floor/stock.rs` has the frames that are in no array.

pub(crate) mod area;
mod lines;
mod locked;
mod sequences;
mod stock;
#[cfg(test)]
mod tests;

use zonal::units::PageCount;

use self::locked::Locked;
use self::sequences::Sequences;
use self::stock::{Source, Stock};
use crate::contender::{Contender, Entry};

/// Names of the floors. Ratios refer to the first floor if it is available.
pub(crate) const NAMES: [&str; 2] = ["floor-rseq", "floor-spin"];

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
struct UnderLocks(Stock);

impl Contender for UnderLocks {
    type Source<'a> = Source<'a, Locked<'a>>;

    fn source(&self) -> Self::Source<'_> {
        Source { access: Locked::for_this_thread(&self.0.lines), stock: &self.0 }
    }
}

/// Returns the entries of the floors and the model.
#[must_use]
pub fn floors() -> Vec<Entry> {
    let version = env!("CARGO_PKG_VERSION");
    let whole_pool = |frames: PageCount| frames.get() as usize;
    vec![
        Entry::new(NAMES[0], version, move |frames| in_sequences(frames, whole_pool(frames))),
        Entry::new(NAMES[1], version, move |frames| Stock::new(frames, whole_pool(frames)).map(UnderLocks)),
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

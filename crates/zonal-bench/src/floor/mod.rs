//! `floor-rseq`, `floor-spin` and `model`: the cost of the access alone on this machine.
//!
//! A *floor* is an array of frame numbers per CPU and nothing else: no zones, no merging, no checks. Its
//! arrays can hold the whole pool, so that bulk moves cease. `floor-rseq` accesses the array in a restartable
//! sequence with one committing store, `floor-spin` under the CPU's lock. The *model* is `floor-rseq` with
//! arrays of 1024 frames, so that bulk moves continue. Neighbours: `floor/area.rs` finds the area shared with
//! the kernel, `floor/lines.rs` has the arrays, `floor/stock.rs` the frames behind them.

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

/// Names of the floors; ratios refer to the first one.
pub(crate) const NAMES: [&str; 2] = ["floor-rseq", "floor-spin"];

/// Name of the variant whose bulk moves continue.
pub(crate) const MODEL: &str = "model";

/// Frames per array of the model.
const MODEL_DEPTH: usize = 1024;

/// Arrays accessed in restartable sequences.
struct InSequences(Stock);

impl Contender for InSequences {
    type Source<'a> = Source<'a, Sequences<'a>>;

    fn source(&self) -> Self::Source<'_> {
        let access = Sequences::for_this_thread(&self.0.lines).expect("all threads of a process have areas");
        Source { access, stock: &self.0 }
    }
}

/// Arrays accessed under locks.
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

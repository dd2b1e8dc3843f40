//! Backs a pool with memory before it is used: in pieces, by several threads, with progress.
//!
//! Pieces of different nodes alternate, so that all nodes' memory is zeroed at the same time.
//! Neighbours: `builder.rs` calls this once; `memory/mapping.rs` does the populating.

use std::any::Any;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::callback::contained;
use crate::error::PoolError;
use crate::memory::zones::{PoolMemory, ZoneMemory};
use crate::threads::attributes::{SignalsBlocked, reset_scheduling, take_own_signals};

/// Bytes populated by one call to the kernel: progress is told, and stopping heeded, in between.
const PIECE_BYTES: usize = 32 << 20;
/// Most threads; beyond these the kernel's own locks are in the way.
const THREADS_MAX: usize = 16;

/// How far building a pool has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Bytes backed so far.
    pub done: u64,
    /// Bytes to back in all.
    pub total: u64,
}

/// Told now and then from any thread; [`ControlFlow::Break`] ends the building, and so does a panic, which goes
/// on in whoever builds.
pub type OnProgress<'a> = &'a (dyn Fn(Progress) -> ControlFlow<()> + Sync);

struct Piece<'a> {
    zone: &'a ZoneMemory,
    offset: usize,
    bytes: usize,
}

/// Why not all was backed.
enum Stop {
    Failed(PoolError),
    /// The callback did.
    Panicked(Box<dyn Any + Send>),
}

impl From<PoolError> for Stop {
    fn from(error: PoolError) -> Self {
        Self::Failed(error)
    }
}

/// Backs all of `memory`. Contents may be lost: only for memory that nobody uses yet.
pub(super) fn prefault(memory: &PoolMemory, on_progress: OnProgress<'_>) -> Result<(), PoolError> {
    let pieces = pieces(memory);
    let total = pieces.iter().map(|piece| piece.bytes as u64).sum();
    let (next, done) = (AtomicUsize::new(0), AtomicU64::new(0));
    let (stop, failure) = (AtomicBool::new(false), Mutex::new(None));
    let work = || {
        // Relaxed throughout: numbers are only handed out and summed; the scope's end orders.
        while !stop.load(Ordering::Relaxed) {
            let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
            let outcome = populate(piece).map_err(Stop::from).and_then(|()| {
                let done = done.fetch_add(piece.bytes as u64, Ordering::Relaxed) + piece.bytes as u64;
                match catch_unwind(AssertUnwindSafe(|| on_progress(Progress { done, total }))) {
                    Ok(ControlFlow::Continue(())) => Ok(()),
                    Ok(ControlFlow::Break(())) => Err(PoolError::Interrupted.into()),
                    Err(payload) => Err(Stop::Panicked(payload)),
                }
            });
            if let Err(why) = outcome {
                stop.store(true, Ordering::Relaxed);
                let mut failure = failure.lock();
                let late = if failure.is_none() { failure.replace(why) } else { Some(why) };
                drop(failure);
                // Of what several panics carried one goes on; the end of another may panic itself.
                contained(|| drop(late)).ok();
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        let blocked = SignalsBlocked::begin();
        // Helpers that would take the program's signals are not started.
        let helpers = if blocked.is_ok() { threads.min(THREADS_MAX).min(pieces.len()) } else { 1 };
        for _ in 1..helpers {
            let help = || {
                take_own_signals();
                reset_scheduling();
                work();
            };
            std::thread::Builder::new().name("zonal-prefault".into()).spawn_scoped(scope, help).ok();
        }
        drop(blocked);
        // This thread works too, so that a helper that cannot be started is no failure.
        work();
    });
    match failure.into_inner() {
        None => Ok(()),
        Some(Stop::Failed(error)) => Err(error),
        Some(Stop::Panicked(payload)) => resume_unwind(payload),
    }
}

/// All pieces of zones not backed yet: first those at the start of each zone, then the next.
fn pieces(memory: &PoolMemory) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    for zone in memory.zones().iter().filter(|zone| !zone.populated) {
        let length = memory.bytes(zone.range.count);
        let of_zone = (0..length).step_by(PIECE_BYTES);
        pieces.extend(of_zone.map(|offset| Piece { zone, offset, bytes: PIECE_BYTES.min(length - offset) }));
    }
    pieces.sort_by_key(|piece| piece.offset);
    pieces
}

fn populate(piece: &Piece<'_>) -> Result<(), PoolError> {
    let populated = piece.zone.mapping.populate_or_touch(piece.offset, piece.bytes);
    populated.map_err(|source| PoolError::Prefault { node: piece.zone.node, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Warnings;
    use crate::memory::mapping::tests::resident;
    use crate::memory::plan::ZonePlan;
    use crate::memory::zones::{Binding, HugePages, Manner};
    use zonal::units::{NodeId, Order, PageCount, ZoneKind};

    fn memory(frames: u64) -> PoolMemory {
        let plan = |id| ZonePlan {
            node: NodeId::new(id).unwrap(),
            kind: ZoneKind::Normal,
            frames: PageCount::new(frames),
        };
        let manner = Manner {
            page_bytes: 4096,
            max_order: Order::DEFAULT_MAX,
            huge_pages: HugePages::Never,
            binding: Binding::None,
        };
        PoolMemory::map(&[plan(0), plan(1)], manner, &mut Warnings::default()).unwrap()
    }

    #[test]
    fn backs_everything_and_tells() {
        let memory = memory(20_000);
        let most = Mutex::new(Progress { done: 0, total: 0 });
        prefault(&memory, &|progress| {
            let mut most = most.lock();
            if progress.done > most.done {
                *most = progress;
            }
            ControlFlow::Continue(())
        })
        .unwrap();
        let total = 2 * 20_000 * 4096;
        assert_eq!(most.into_inner(), Progress { done: total, total });
        assert!(memory.zones().iter().all(|zone| resident(&zone.mapping) >= 20_000 * 4096));
    }

    #[test]
    fn stops_when_told() {
        let memory = memory(20_000);
        let calls = AtomicU64::new(0);
        let outcome = prefault(&memory, &|_| {
            calls.fetch_add(1, Ordering::Relaxed); // one count
            ControlFlow::Break(())
        });
        assert!(matches!(outcome, Err(PoolError::Interrupted)));
        assert!(calls.into_inner() <= THREADS_MAX as u64);
    }

    #[test]
    fn a_panic_of_the_callback_is_the_builders() {
        let memory = memory(80_000);
        let calls = AtomicU64::new(0);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            prefault(&memory, &|_| {
                calls.fetch_add(1, Ordering::Relaxed); // one count
                std::panic::panic_any("of the callback")
            })
        }));
        let payload = outcome.map(|_| ()).unwrap_err();
        assert_eq!(payload.downcast_ref(), Some(&"of the callback"));
        assert!(calls.into_inner() <= THREADS_MAX as u64);
    }
}

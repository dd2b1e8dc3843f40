//! Backs a pool with memory before it is used: in pieces, with several threads, and with progress reports.
//!
//! Pieces of different nodes alternate, so that the memory of all nodes is zeroed at the same time. Neighbours:
//! `pool/builder.rs` calls this once; `memory/mapping.rs` populates a piece.

use std::any::Any;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::callback::contained;
use crate::error::PoolError;
use crate::memory::zones::{PoolMemory, ZoneMemory};
use crate::threads::attributes::{SignalsBlocked, reset_scheduling, take_own_signals};

/// Bytes populated by one system call; between calls, progress is reported and a stop takes effect.
const PIECE_BYTES: usize = 32 << 20;
/// Largest number of threads; with more, contention on the kernel's own locks dominates.
const THREADS_MAX: usize = 16;

/// Progress of building a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Bytes backed so far.
    pub done: u64,
    /// Total bytes to back.
    pub total: u64,
}

/// Callback that receives progress reports, from any of the prefault threads. [`ControlFlow::Break`] stops the
/// build, and so does a panic, which is resumed in the thread that builds the pool.
pub type OnProgress<'a> = &'a (dyn Fn(Progress) -> ControlFlow<()> + Sync);

struct Piece<'a> {
    zone: &'a ZoneMemory,
    offset: usize,
    bytes: usize,
}

/// Why prefaulting stopped early.
enum Stop {
    Failed(PoolError),
    /// A panic of the callback, with its payload.
    Panicked(Box<dyn Any + Send>),
}

impl From<PoolError> for Stop {
    fn from(error: PoolError) -> Self {
        Self::Failed(error)
    }
}

/// Backs all of `memory`. Contents may be lost, so the memory must not be in use yet.
pub(super) fn prefault(memory: &PoolMemory, on_progress: OnProgress<'_>) -> Result<(), PoolError> {
    let pieces = pieces(memory);
    let total = pieces.iter().map(|piece| piece.bytes as u64).sum();
    let (next, done) = (AtomicUsize::new(0), AtomicU64::new(0));
    let (stop, failure) = (AtomicBool::new(false), Mutex::new(None));
    let work = || {
        // Relaxed throughout: the counters only assign and sum pieces; the end of the scope orders the rest.
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
                // Only one of several panics is resumed; dropping the payload of another may panic itself.
                contained(|| drop(late)).ok();
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        let blocked = SignalsBlocked::begin();
        // No helper is started if signals cannot be blocked, because it would receive the program's signals.
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
        // This thread works too, so failing to start a helper is not an error.
        work();
    });
    match failure.into_inner() {
        None => Ok(()),
        Some(Stop::Failed(error)) => Err(error),
        Some(Stop::Panicked(payload)) => resume_unwind(payload),
    }
}

/// Returns all pieces of zones that are not backed yet: first the first piece of each zone, then the second, and so
/// on.
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
    use crate::memory::zones::{Binding, HugePages, MapOptions};
    use zonal::units::{NodeId, Order, PageCount, ZoneKind};

    fn memory(frames: u64) -> PoolMemory {
        let plan = |id| ZonePlan {
            node: NodeId::new(id).unwrap(),
            kind: ZoneKind::Normal,
            frames: PageCount::new(frames),
        };
        let options = MapOptions {
            page_bytes: 4096,
            max_order: Order::DEFAULT_MAX,
            huge_pages: HugePages::Never,
            binding: Binding::None,
        };
        PoolMemory::map(&[plan(0), plan(1)], options, &mut Warnings::default()).unwrap()
    }

    #[test]
    fn prefault_backs_all_memory_and_reports_progress() {
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
    fn prefault_stops_when_the_callback_breaks() {
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
    fn callback_panic_resumes_in_the_building_thread() {
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

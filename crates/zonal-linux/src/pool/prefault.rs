//! Populates the memory of a pool before the pool is used.
//!
//! Several threads populate the memory in pieces and report progress after each piece. Pieces of different nodes
//! alternate, so that the kernel zeroes the memory of all nodes concurrently.
//!
//! Related files: `pool/builder.rs` calls `prefault` once for each pool, and `memory/mapping.rs` populates a piece.

use std::any::Any;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::callback::contained;
use crate::error::PoolError;
use crate::memory::zones::{PoolMemory, ZoneMemory};
use crate::threads::start::with_helpers;

/// Bytes populated by one system call. Between two calls, a thread reports progress and stops if requested.
const PIECE_BYTES: usize = 32 << 20;
/// Largest number of threads unless the program chooses. With more threads, contention on locks of the kernel dominates.
const THREADS_MAX: usize = 16;

/// Progress of building a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Bytes populated so far.
    pub done: u64,
    /// Total bytes to populate.
    pub total: u64,
}

/// Callback that receives progress reports. Any of the prefault threads may call it.
///
/// If it returns [`ControlFlow::Break`], the build stops with an error. If it panics, the build stops too, and the
/// panic is resumed on the thread that builds the pool.
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

/// Populates all of `memory` that is online at first, with `threads` or a number of threads that suits the machine. The call
/// may overwrite contents, so the memory must not be in use yet.
pub(super) fn prefault(
    memory: &PoolMemory,
    threads: Option<NonZeroUsize>,
    on_progress: OnProgress<'_>,
) -> Result<(), PoolError> {
    let pieces = pieces(memory);
    let total = pieces.iter().map(|piece| piece.bytes as u64).sum();
    let (next, done) = (AtomicUsize::new(0), AtomicU64::new(0));
    let (stop, failure) = (AtomicBool::new(false), Mutex::new(None));
    let work = || {
        // Relaxed, here and below: the counters only assign pieces to threads and sum their bytes. The thread that
        // builds the pool reads the results after all helpers have ended.
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
                // Only the first panic is resumed. The payload of a later one is dropped here, and its destructor may
                // panic too.
                contained(|| drop(late)).ok();
            }
        }
    };
    let of_machine = || std::thread::available_parallelism().map_or(1, |cpus| cpus.get().min(THREADS_MAX));
    let threads = threads.map_or_else(of_machine, NonZeroUsize::get);
    // The calling thread populates pieces too, so a helper that cannot be started is not an error.
    with_helpers("zonal-prefault", threads.min(pieces.len()).saturating_sub(1), &work);
    match failure.into_inner() {
        None => Ok(()),
        Some(Stop::Failed(error)) => Err(error),
        Some(Stop::Panicked(payload)) => resume_unwind(payload),
    }
}

/// Returns all pieces of the zones that are not populated yet. The first piece of each zone comes first, then the
/// second piece of each zone, and so on.
fn pieces(memory: &PoolMemory) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    for zone in memory.zones().iter().filter(|zone| !zone.populated) {
        let length = memory.bytes(zone.online);
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
    use crate::memory::huge_pages::HugePages;
    use crate::memory::mapping::tests::resident;
    use crate::memory::plan::ZonePlan;
    use crate::memory::zones::{Binding, MapOptions, Sharing};
    use zonal::units::{NodeId, Order, PageCount, ZoneKind};

    fn memory(frames: u64) -> PoolMemory {
        let plan = |id| ZonePlan {
            node: NodeId::new(id).unwrap(),
            kind: ZoneKind::Normal,
            frames: PageCount::new(frames),
            online: PageCount::new(frames),
        };
        let options = MapOptions {
            page_bytes: 4096,
            max_order: Order::DEFAULT_MAX,
            huge_pages: HugePages::Never,
            binding: Binding::None,
            sharing: Sharing::Private,
        };
        PoolMemory::map(&[plan(0), plan(1)], options, &mut Warnings::default()).unwrap()
    }

    #[test]
    fn prefault_backs_all_memory_and_reports_progress() {
        let memory = memory(20_000);
        let most = Mutex::new(Progress { done: 0, total: 0 });
        prefault(&memory, None, &|progress| {
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
        let outcome = prefault(&memory, None, &|_| {
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
            prefault(&memory, None, &|_| {
                calls.fetch_add(1, Ordering::Relaxed); // one count
                std::panic::panic_any("of the callback")
            })
        }));
        let payload = outcome.map(|_| ()).unwrap_err();
        assert_eq!(payload.downcast_ref(), Some(&"of the callback"));
        assert!(calls.into_inner() <= THREADS_MAX as u64);
    }
}

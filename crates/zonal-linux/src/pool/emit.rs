//! Events for subscribers of `tracing`, and the rule where they may be emitted.
//!
//! A subscriber is code of the program: it uses the heap, takes locks, and may use the pool. Events are therefore emitted
//! only by calls that may wait, on the calling thread, when it holds no lock of the pool any more, and by threads of the
//! pool while they count as being in a reclaimer. Calls that signal handlers may make emit none, nor do frees and the
//! dropping of handles. `docs/decisions/0026-probes-and-events.md` has the reasons. Related files: `pool/observed.rs`
//! reports what the allocator counted, `pool/probes.rs` has probes for all places that may not emit.

use std::cell::Cell;
use std::marker::PhantomData;

use parking_lot::Mutex;
#[cfg(feature = "tracing")]
pub(super) use tracing::Level;

use super::callback::{contained, outside};
use super::reclaimers;
use crate::threads::presence::Presence;
use crate::threads::reentrancy;

/// Maximum number of changes that wait to be reported.
const CHANGES_MAX: usize = 64;

thread_local! {
    /// Whether a subscriber runs on this thread because of a pool's event. Has no destructor.
    static EMITTING: Cell<bool> = const { Cell::new(false) };
}

/// Whether a subscriber may want events of `level`. Costs one load.
#[cfg(feature = "tracing")]
#[inline]
pub(super) fn is_on(level: Level) -> bool {
    level <= tracing::level_filters::LevelFilter::current()
}

/// The levels of events that a build without subscribers does not emit.
#[cfg(not(feature = "tracing"))]
pub(super) struct Level;

#[cfg(not(feature = "tracing"))]
impl Level {
    pub(super) const WARN: Self = Self;
    pub(super) const INFO: Self = Self;
    pub(super) const DEBUG: Self = Self;
}

/// Whether a subscriber may want events: there is none in this build.
#[cfg(not(feature = "tracing"))]
pub(super) const fn is_on(_level: Level) -> bool {
    false
}

/// Emits an event of a pool, if a subscriber wants it and the calling thread may emit.
///
/// The caller must hold no lock of the pool.
macro_rules! emit {
    ($platform:expr, $level:ident, $($event:tt)+) => {
        if $crate::pool::emit::is_on($crate::pool::emit::Level::$level)
            && let Some(_emitting) = $crate::pool::emit::Emitting::begin(&$platform.presence)
        {
            #[cfg(feature = "tracing")]
            tracing::event!(target: "zonal", tracing::Level::$level, pool = $platform.key.get(), $($event)+);
        }
    };
}
pub(super) use emit;

/// Marks the calling thread as emitting until dropped.
pub(super) struct Emitting {
    /// Makes this type neither `Send` nor `Sync`, because the mark belongs to its thread.
    _of_thread: PhantomData<*const ()>,
}

impl Emitting {
    /// Begins to emit an event. Returns `None` if the thread must not: a subscriber runs on it already, it is inside a
    /// reclaimer of any pool or a signal handler, or the process is a child of the one that built the pool, in which other
    /// threads may have held the subscriber's locks.
    #[cold]
    pub(super) fn begin(presence: &Presence) -> Option<Self> {
        let may_emit = presence.is_here()
            && !reclaimers::is_reclaiming_any()
            && !reentrancy::is_inside()
            && !EMITTING.replace(true);
        may_emit.then(|| Self { _of_thread: PhantomData }) // dropping it would end the other event's mark
    }
}

impl Drop for Emitting {
    fn drop(&mut self) {
        EMITTING.set(false);
    }
}

/// Runs `emit`, which emits one event, on a thread of the pool that is at work. Nothing waits for the thread meanwhile, and
/// panics are caught.
pub(super) fn on_own_thread(presence: &Presence, emit: impl FnOnce()) {
    // A panic is the subscriber's mistake, and ends with its event. Nothing is emitted while the pool is being dropped.
    outside(presence, || contained(emit).unwrap_or(())).unwrap_or(());
}

/// Changes of settings by threads that must not emit, which a thread of the pool reports.
#[derive(Default)]
pub(super) struct PendingChanges(Mutex<Vec<(String, String)>>);

impl PendingChanges {
    /// Adds a change, if a subscriber may want it and not too many wait already.
    pub(super) fn add(&self, name: &str, value: &str) {
        if is_on(Level::INFO) {
            let change = (name.to_owned(), value.to_owned());
            let mut changes = self.0.lock();
            if changes.len() < CHANGES_MAX {
                changes.push(change);
            }
        }
    }

    /// Returns the changes and forgets them.
    pub(super) fn take(&self) -> Vec<(String, String)> {
        std::mem::take(&mut self.0.lock())
    }
}

//! Cells and locks that report what they do to the hook of the calling thread, and the mistakes planted in them.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::cell::Cell;

use zonal::platform::{Atomic, RawLock};
use zonal_conformance::{Event, Watch, WatchedCell};

use crate::kernel::safe_point;
use crate::machine::{Mistake, nap};

type Hook = &'static dyn Fn(Event);

thread_local! {
    static HOOK: Cell<Option<Hook>> = const { Cell::new(None) };
    /// The mistake of the platform on which the thread works.
    static MISTAKE: Cell<Mistake> = const { Cell::new(Mistake::None) };
    /// Number of locks that the thread holds or waits for.
    static LOCKS: Cell<u32> = const { Cell::new(0) };
    static UNLOCKS: Cell<u32> = const { Cell::new(0) };
}

/// Prepares the calling thread for a job, whatever a panic has left behind.
pub(crate) fn start_thread(mistake: Mistake) {
    MISTAKE.set(mistake);
    LOCKS.set(0);
}

pub(crate) fn has(mistake: Mistake) -> bool {
    MISTAKE.get() == mistake
}

pub(crate) fn holds_locks() -> bool {
    LOCKS.get() > 0
}

/// Calls `work`, and `hook` at each event of the calling thread.
pub(crate) fn with_hook(hook: &dyn Fn(Event), work: &mut dyn FnMut()) {
    // SAFETY: `Reset` removes the hook before this function returns or unwinds, so the reference is not used later.
    let hook: Hook = unsafe { core::mem::transmute(hook) };
    let _reset = Reset(HOOK.replace(Some(hook)));
    work();
}

/// Calls `work` without the hook.
pub(crate) fn quietly<R>(work: impl FnOnce() -> R) -> R {
    let _reset = Reset(HOOK.take());
    work()
}

struct Reset(Option<Hook>);

impl Drop for Reset {
    fn drop(&mut self) {
        HOOK.set(self.0);
    }
}

pub(crate) fn emit(event: Event) {
    if let Some(hook) = HOOK.get() {
        hook(event);
    }
}

/// Passes accesses to the hook.
pub(crate) struct Emit;

impl Watch for Emit {
    fn on_access() {
        emit(Event::Access);
    }
}

/// A watched cell.
pub(crate) struct TestCell<A>(WatchedCell<A, Emit>);

macro_rules! test_cell {
    ($($cell:ident: $value:ident),*) => {$(
        impl Atomic<$value> for TestCell<$cell> {
            fn new(value: $value) -> Self {
                Self(WatchedCell::new(value))
            }
            fn load(&self, order: Ordering) -> $value {
                self.0.load(order)
            }
            fn store(&self, value: $value, order: Ordering) {
                self.0.store(value, order);
            }
            fn swap(&self, value: $value, order: Ordering) -> $value {
                self.0.swap(value, order)
            }
            fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                ok: Ordering,
                failed: Ordering,
            ) -> Result<$value, $value> {
                self.0.compare_exchange(current, new, ok, failed)
            }
            fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                if has(Mistake::TornAdd) {
                    let before = self.0.load(Ordering::Acquire);
                    self.0.store(before.wrapping_add(value), Ordering::Release);
                    return before;
                }
                self.0.fetch_add(value, order)
            }
            fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.0.fetch_or(value, order)
            }
            fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                self.0.fetch_and(value, order)
            }
        }
    )*};
}
test_cell!(AtomicU8: u8, AtomicU32: u32, AtomicU64: u64);

/// A lock that answers other CPUs while it waits.
pub(crate) struct Lock(AtomicBool);

impl RawLock for Lock {
    fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    fn lock(&self) {
        emit(Event::Locks);
        LOCKS.set(LOCKS.get() + 1);
        while !self.take() {
            emit(Event::Waits(None));
            safe_point();
            nap();
        }
    }

    fn try_lock(&self) -> bool {
        emit(Event::Locks);
        LOCKS.set(LOCKS.get() + 1);
        let is_taken = self.take();
        if !is_taken {
            left();
        }
        is_taken
    }

    fn unlock(&self) {
        UNLOCKS.set(UNLOCKS.get() + 1);
        if !(has(Mistake::LostUnlock) && UNLOCKS.get().is_multiple_of(7)) {
            self.0.store(false, Ordering::Release); // pairs with the acquire in `take`
        }
        left();
    }
}

impl Lock {
    fn take(&self) -> bool {
        let was_held = self.0.swap(true, Ordering::Acquire); // pairs with the release in `unlock`
        !was_held || has(Mistake::LockNeverWaits)
    }
}

fn left() {
    LOCKS.set(LOCKS.get() - 1);
    emit(Event::Unlocks);
}

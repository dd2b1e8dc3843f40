//! Cells and locks of the test platform that report each access to a watcher, which a test sets for each thread.
//!
//! Related files: `examples/shared_lines/watched.rs` has the cells and locks.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use super::watched::{self, Access, Watch};
use super::{Cells, Plan, TestPlatform, World, run_on};
use zonal::platform::ZeroedCells;
use zonal::{Allocator, Config};

/// Receives the accesses of a thread.
pub trait Watcher: Sync {
    /// Called before a cell or lock is accessed.
    fn before(&self, _access: Access) {}

    /// Called after the access.
    fn after(&self, _access: Access) {}

    /// Called when a cell with so many bytes is created.
    fn created(&self, _bytes: usize) {}

    /// Called when the last access locked the lock at this address.
    fn took_lock(&self, _address: usize) {}

    /// Called when the last access unlocked the lock at this address.
    fn freed_lock(&self, _address: usize) {}

    /// Called while the thread waits for a lock. It returns only if another thread can release the lock.
    fn waits(&self) {
        panic!("a lock is held, and no other thread can release it");
    }
}

struct Nothing;

impl Watcher for Nothing {}

thread_local! {
    static WATCHER: Cell<&'static dyn Watcher> = const { Cell::new(&Nothing) };
    /// Addresses of the locks that the thread holds.
    static HELD: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Reports the accesses of the calling thread to `watcher` from now on.
pub fn watch(watcher: &'static dyn Watcher) {
    WATCHER.set(watcher);
}

/// Whether the calling thread holds a lock.
pub fn holds_lock() -> bool {
    HELD.with_borrow(|held| !held.is_empty())
}

/// Cells and locks that report to the watcher of the thread.
pub struct Watched;

impl Watch for Watched {
    fn saw(access: Access) {
        WATCHER.get().before(access);
    }

    fn did(access: Access) {
        WATCHER.get().after(access);
    }

    fn created(bytes: usize) {
        WATCHER.get().created(bytes);
    }

    fn took_lock(address: usize) {
        HELD.with_borrow_mut(|held| held.push(address));
        WATCHER.get().took_lock(address);
    }

    fn freed_lock(address: usize) {
        HELD.with_borrow_mut(|held| {
            let at = held.iter().rposition(|&lock| lock == address);
            held.swap_remove(at.expect("a lock was freed that was not held"));
        });
        WATCHER.get().freed_lock(address);
    }

    fn waits() {
        WATCHER.get().waits();
    }
}

impl Cells for Watched {
    type U8 = watched::Cell<AtomicU8, Self>;
    type U32 = watched::Cell<AtomicU32, Self>;
    type U64 = watched::Cell<AtomicU64, Self>;
    type Lock = watched::Lock<Self>;

    // SAFETY: the cells are plain integers in transparent wrappers, and the lock is one of them. All are zero when new,
    // and none needs to be dropped.
    const ZEROED: Option<ZeroedCells<TestPlatform<Self>>> = Some(unsafe { ZeroedCells::promise() });
}

pub type WatchedAllocator = Allocator<'static, TestPlatform<Watched>>;

impl Plan {
    /// Builds an allocator for this machine whose accesses `watcher` receives. The calling thread acts as CPU 0.
    pub fn build_watched(&self, config: &Config, watcher: &'static dyn Watcher) -> World<Watched> {
        run_on(0);
        watch(watcher);
        self.build_of(config, |_| ())
    }
}

//! A list of objects that a pool calls: its reclaimers, or its callbacks for memory pressure.
//!
//! An object usually owns frames of its pool, and each of these holds a reference to the pool. The list therefore holds
//! only a weak reference to the object, to avoid a reference cycle. A [`Registration`] holds a strong reference. Panics
//! of objects are caught.
//!
//! Related files: `pool/reclaimers.rs` has the reclaimers, and `pool/pressure.rs` the callbacks.

use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};

use super::callback::{contained, outside};
use super::key::PoolKey;
use crate::threads::presence::Presence;
use crate::threads::reentrancy::Inside;
use crate::threads::sync::held;

/// The registration of a reclaimer or a callback with a pool. Dropping it ends the calls; see
/// [`Pool::register_reclaimer`](crate::Pool::register_reclaimer) and [`Pool::on_pressure`](crate::Pool::on_pressure).
///
/// ```
/// use std::sync::Arc;
/// use zonal_linux::{Pool, Reclaimer, Registration};
///
/// /// A cache in use, stored together with its registration.
/// struct Service<C> {
///     cache: Arc<C>,
///     _registration: Registration,
/// }
///
/// fn start<C: Reclaimer + Send + 'static>(pool: &Pool, cache: C) -> Service<C> {
///     let cache = Arc::new(cache);
///     Service { _registration: pool.register_reclaimer(&cache), cache }
/// }
/// ```
///
/// The registration holds a strong reference to the object, but none to the pool. If the object is being called when
/// the registration is dropped, that call may finish later. An object that owns its own registration is never dropped.
#[must_use = "an object is no longer called once its registration is dropped"]
pub struct Registration {
    id: ObjectId,
    list: Arc<dyn Unregister>,
    _object: Box<dyn Send + Sync>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.list.unregister(self.id);
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Identifies a registered object, to unregister it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ObjectId(u64);

/// A list from which objects can be removed.
trait Unregister: Send + Sync {
    fn unregister(&self, id: ObjectId);
}

pub(super) struct Entry<T: ?Sized> {
    id: ObjectId,
    object: Weak<T>,
}

impl<T: ?Sized> Clone for Entry<T> {
    fn clone(&self) -> Self {
        Self { id: self.id, object: Weak::clone(&self.object) }
    }
}

/// The objects of one kind that a pool calls.
///
/// Invariant: `entries` have distinct ids and are in the order of registration.
pub(super) struct Registry<T: ?Sized> {
    key: PoolKey,
    /// Updated when a thread of the pool enters an object.
    presence: Arc<Presence>,
    /// The list, which is replaced as a whole. A caller copies the reference, and so holds no lock while an object is
    /// called.
    entries: Mutex<Arc<[Entry<T>]>>,
    next_id: AtomicU64,
    panics: AtomicU64,
}

impl<T: ?Sized + Send + Sync + 'static> Unregister for Registry<T> {
    fn unregister(&self, id: ObjectId) {
        self.replace(|entries| entries.iter().filter(|entry| entry.id != id).cloned().collect());
    }
}

impl<T: ?Sized + Send + Sync + 'static> Registry<T> {
    pub(super) fn new(key: PoolKey, presence: Arc<Presence>) -> Self {
        Self {
            key,
            presence,
            entries: Mutex::new(Arc::new([])),
            next_id: AtomicU64::new(0),
            panics: AtomicU64::new(0),
        }
    }

    /// Registers an object, which stays registered until its registration is dropped.
    pub(super) fn register(self: &Arc<Self>, object: Arc<T>) -> Registration {
        // Relaxed: the numbers must only be unique, and they order no other memory accesses.
        let id = ObjectId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let entry = Entry { id, object: Arc::downgrade(&object) };
        self.replace(|entries| entries.iter().chain([&entry]).cloned().collect());
        let list: Arc<Self> = Arc::clone(self);
        Registration { id, list, _object: Box::new(object) }
    }

    /// Replaces the list with the result of `change`.
    ///
    /// The function does not use the heap while it holds the lock of the list, so that a signal handler never
    /// interrupts a thread that holds both this lock and a lock of the heap.
    fn replace(&self, change: impl Fn(&[Entry<T>]) -> Arc<[Entry<T>]>) {
        loop {
            let Some(before) = self.entries() else { return };
            let changed = change(&before);
            let _inside = Inside::enter();
            let Some(mut entries) = self.lock() else { return };
            if Arc::ptr_eq(&entries, &before) {
                // `_before`, the old list, is dropped at the end of the scope, after the lock has been released.
                let _before = mem::replace(&mut *entries, changed);
                drop(entries);
                return;
            }
        }
    }

    /// Locks the list. In a child made by `fork`, returns `None` if the lock is held.
    ///
    /// A child does not wait for the lock, because the holder may be a thread of the parent that does not exist in the
    /// child. Without the lock, the child can neither read nor change the list: it calls no object, and an entry whose
    /// registration is dropped stays in the list.
    fn lock(&self) -> Option<MutexGuard<'_, Arc<[Entry<T>]>>> {
        if self.presence.is_here() {
            return Some(held(self.entries.lock()));
        }
        match self.entries.try_lock() {
            Ok(entries) => Some(entries),
            Err(TryLockError::Poisoned(entries)) => Some(entries.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Returns the list, or `None` in a child made by `fork` if a thread of the parent held its lock.
    pub(super) fn entries(&self) -> Option<Arc<[Entry<T>]>> {
        let _inside = Inside::enter();
        self.lock().map(|entries| Arc::clone(&entries))
    }

    /// Returns how often an object panicked.
    pub(super) fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed) // relaxed: a statistic
    }

    /// Calls an object if it still exists, and catches its panics. `is_ours` is whether the caller is a thread of the
    /// pool.
    ///
    /// Returns `None` if the object does not exist any more, if it panicked, or if the pool is being dropped.
    pub(super) fn guarded<R>(
        &self,
        entry: &Entry<T>,
        is_ours: impl FnOnce(PoolKey) -> bool,
        call: impl FnOnce(&T) -> R,
    ) -> Option<R> {
        let guarded = || self.guarded_here(entry, call);
        if is_ours(self.key) { outside(&self.presence, guarded)? } else { guarded() }
    }

    fn guarded_here<R>(&self, entry: &Entry<T>, call: impl FnOnce(&T) -> R) -> Option<R> {
        let object = entry.object.upgrade()?;
        let called = contained(|| call(&*object));
        // If this is the last reference, the destructor of the object runs here, and it may panic too.
        let dropped = contained(|| drop(object));
        let panics = u64::from(called.is_err()) + u64::from(dropped.is_err());
        self.panics.fetch_add(panics, Ordering::Relaxed); // relaxed: a statistic
        called.ok()
    }
}

//! Cells and locks that report each access to a watcher: the address, the kind, and the line of code.
//!
//! They are as large as plain cells and locks, so that the layout of the metadata does not change. In the example, one
//! thread acts as all CPUs, so no CPU ever waits for a lock. Related files: `coherence.rs` is the watcher of this
//! example. Tests of the core include this file with another watcher.
#![allow(dead_code, unreachable_pub)] // the tests share this file and use only a part of it

use core::marker::PhantomData;
use core::panic::Location;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use zonal::platform::{Atomic, RawLock};

/// The effect of an access on its cache line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Requires a copy of the line.
    Read,
    /// Requires the only copy of the line.
    Write,
    /// Requires the only copy of the line, and waits for its contents.
    ReadWrite,
}

/// An access of the watched code.
#[derive(Clone, Copy)]
pub struct Access {
    /// Address of the cell.
    pub address: usize,
    /// Size of the cell.
    pub bytes: usize,
    /// Kind of the access.
    pub kind: Kind,
    /// Place in the code.
    pub site: &'static Location<'static>,
}

/// Receives the accesses.
pub trait Watch: Send + Sync + 'static {
    /// Called before a cell or lock is accessed.
    fn saw(access: Access);

    /// Called after the access.
    fn did(_access: Access) {}

    /// Called when a cell with so many bytes is created.
    fn created(_bytes: usize) {}

    /// Called when the last access locked the lock at this address.
    fn took_lock(_address: usize) {}

    /// Called when the last access unlocked the lock at this address.
    fn freed_lock(_address: usize) {}

    /// Called while a thread waits for a lock. It returns only if another thread can release the lock.
    fn waits() {
        panic!("a lock is held, and no other thread can release it");
    }
}

/// A watched cell.
#[repr(transparent)]
pub struct Cell<A, W>(A, PhantomData<fn() -> W>);

macro_rules! watched_cell {
    ($($cell:ident: $value:ident),*) => {$(
        impl<W: Watch> Cell<$cell, W> {
            #[track_caller]
            fn watch<R>(&self, kind: Kind, access: impl FnOnce(&$cell) -> R) -> R {
                let (address, bytes) = (core::ptr::from_ref(self).addr(), size_of::<$value>());
                let seen = Access { address, bytes, kind, site: Location::caller() };
                W::saw(seen);
                let result = access(&self.0);
                W::did(seen);
                result
            }
        }

        impl<W: Watch> Atomic<$value> for Cell<$cell, W> {
            fn new(value: $value) -> Self {
                W::created(size_of::<$value>());
                Self($cell::new(value), PhantomData)
            }
            #[track_caller]
            fn load(&self, order: Ordering) -> $value {
                self.watch(Kind::Read, |cell| cell.load(order))
            }
            #[track_caller]
            fn store(&self, value: $value, order: Ordering) {
                self.watch(Kind::Write, |cell| cell.store(value, order));
            }
            #[track_caller]
            fn swap(&self, value: $value, order: Ordering) -> $value {
                self.watch(Kind::ReadWrite, |cell| cell.swap(value, order))
            }
            #[track_caller]
            fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                ok: Ordering,
                failed: Ordering,
            ) -> Result<$value, $value> {
                self.watch(Kind::ReadWrite, |cell| cell.compare_exchange(current, new, ok, failed))
            }
            #[track_caller]
            fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.watch(Kind::ReadWrite, |cell| cell.fetch_add(value, order))
            }
            #[track_caller]
            fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.watch(Kind::ReadWrite, |cell| cell.fetch_or(value, order))
            }
            #[track_caller]
            fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                self.watch(Kind::ReadWrite, |cell| cell.fetch_and(value, order))
            }
        }
    )*};
}
watched_cell!(AtomicU8: u8, AtomicU32: u32, AtomicU64: u64);

/// A watched lock.
pub struct Lock<W>(Cell<AtomicU32, W>);

impl<W: Watch> RawLock for Lock<W> {
    fn new() -> Self {
        Self(Cell::new(0))
    }

    #[track_caller]
    fn lock(&self) {
        while !self.try_lock() {
            W::waits();
        }
    }

    #[track_caller]
    fn try_lock(&self) -> bool {
        // Acquire: takes the last holder's writes; pairs with `unlock`.
        let took = self.0.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if took {
            W::took_lock(core::ptr::from_ref(self).addr());
        }
        took
    }

    #[track_caller]
    fn unlock(&self) {
        self.0.store(0, Ordering::Release); // Release: publishes the holder's writes; pairs with `try_lock`.
        W::freed_lock(core::ptr::from_ref(self).addr());
    }
}

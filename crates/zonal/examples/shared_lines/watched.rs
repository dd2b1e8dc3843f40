//! Cells and locks that report each access to a watcher: the address, the kind, and the line of code.
//!
//! They are as large as plain cells and locks, so that the layout of the metadata does not change. One thread acts as
//! all CPUs, so no CPU ever waits for a lock. Related files: `coherence.rs` is the watcher of this example. Tests of
//! the core include this file with other watchers.
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
    /// Kind of the access.
    pub kind: Kind,
    /// Place in the code.
    pub site: &'static Location<'static>,
}

/// Receives the accesses.
pub trait Watch: Send + Sync + 'static {
    /// Called when a cell or lock is accessed.
    fn saw(access: Access);

    /// Called when the last access locked the lock at this address.
    fn took_lock(_address: usize) {}

    /// Called when the last access unlocked the lock at this address.
    fn freed_lock(_address: usize) {}
}

/// A watched cell.
#[repr(transparent)]
pub struct Cell<A, W>(A, PhantomData<fn() -> W>);

macro_rules! watched_cell {
    ($($cell:ident: $value:ident),*) => {$(
        impl<W: Watch> Cell<$cell, W> {
            #[track_caller]
            fn saw(&self, kind: Kind) {
                let address = core::ptr::from_ref(self).addr();
                W::saw(Access { address, kind, site: Location::caller() });
            }
        }

        impl<W: Watch> Atomic<$value> for Cell<$cell, W> {
            fn new(value: $value) -> Self {
                Self($cell::new(value), PhantomData)
            }
            #[track_caller]
            fn load(&self, order: Ordering) -> $value {
                self.saw(Kind::Read);
                self.0.load(order)
            }
            #[track_caller]
            fn store(&self, value: $value, order: Ordering) {
                self.saw(Kind::Write);
                self.0.store(value, order);
            }
            #[track_caller]
            fn swap(&self, value: $value, order: Ordering) -> $value {
                self.saw(Kind::ReadWrite);
                self.0.swap(value, order)
            }
            #[track_caller]
            fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                ok: Ordering,
                failed: Ordering,
            ) -> Result<$value, $value> {
                self.saw(Kind::ReadWrite);
                self.0.compare_exchange(current, new, ok, failed)
            }
            #[track_caller]
            fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.saw(Kind::ReadWrite);
                self.0.fetch_add(value, order)
            }
            #[track_caller]
            fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.saw(Kind::ReadWrite);
                self.0.fetch_or(value, order)
            }
            #[track_caller]
            fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                self.saw(Kind::ReadWrite);
                self.0.fetch_and(value, order)
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
        assert!(self.try_lock(), "a lock is held, and no other thread can release it");
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

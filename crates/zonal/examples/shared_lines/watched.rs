//! Cells and locks that tell a watcher of each access: what it touched, how, and from which line of
//! code.
//!
//! They are as large as the plain ones, so that metadata lies as it does everywhere. One thread
//! plays all CPUs: a lock is never waited for. Neighbours: `coherence.rs` is the watcher of the
//! example; the tests of the core bring one that only counts.
#![allow(dead_code, unreachable_pub)] // shared with tests, which use a part

use core::marker::PhantomData;
use core::panic::Location;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use zonal::platform::{Atomic, RawLock};

/// What an access does to the cache line it goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Wants a copy.
    Read,
    /// Wants the only copy.
    Write,
    /// Wants the only copy, and waits for what it holds.
    ReadWrite,
}

/// One access of the code under watch.
#[derive(Clone, Copy)]
pub struct Access {
    /// Address of the cell.
    pub address: usize,
    /// What it does.
    pub kind: Kind,
    /// Who does it.
    pub site: &'static Location<'static>,
}

/// Is told what happens.
pub trait Watch: Send + Sync + 'static {
    /// A cell or lock is accessed.
    fn saw(access: Access);

    /// A lock was just taken by the access before.
    fn took_lock(_address: usize) {}

    /// A lock is free since the access before.
    fn freed_lock(_address: usize) {}
}

/// A cell under watch.
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

/// A lock under watch.
pub struct Lock<W>(Cell<AtomicU32, W>);

impl<W: Watch> RawLock for Lock<W> {
    fn new() -> Self {
        Self(Cell::new(0))
    }

    #[track_caller]
    fn lock(&self) {
        assert!(self.try_lock(), "a lock is waited for, and there is nobody to free it");
    }

    #[track_caller]
    fn try_lock(&self) -> bool {
        // Acquire pairs with the release in `unlock`.
        let took = self.0.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if took {
            W::took_lock(core::ptr::from_ref(self).addr());
        }
        took
    }

    #[track_caller]
    fn unlock(&self) {
        self.0.store(0, Ordering::Release); // pairs with the acquire in `try_lock`
        W::freed_lock(core::ptr::from_ref(self).addr());
    }
}

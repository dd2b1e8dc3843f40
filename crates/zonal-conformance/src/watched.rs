//! Cells that report their accesses before they make them.
//!
//! A harness that can [watch](crate::Harness::watch) uses them as the cells of its platform.

use core::marker::PhantomData;
use core::sync::atomic::Ordering;

use zonal::platform::Atomic;

/// Receives the accesses of [`WatchedCell`]s.
pub trait Watch: 'static {
    /// Handles that the calling CPU is about to access a cell.
    fn on_access();
}

/// A cell that calls a [`Watch`] before each access.
#[repr(transparent)]
#[derive(Debug)]
pub struct WatchedCell<A, W>(A, PhantomData<fn() -> W>);

impl<T: Copy, A: Atomic<T>, W: Watch> Atomic<T> for WatchedCell<A, W> {
    fn new(value: T) -> Self {
        Self(A::new(value), PhantomData)
    }
    fn load(&self, order: Ordering) -> T {
        W::on_access();
        self.0.load(order)
    }
    fn store(&self, value: T, order: Ordering) {
        W::on_access();
        self.0.store(value, order);
    }
    fn swap(&self, value: T, order: Ordering) -> T {
        W::on_access();
        self.0.swap(value, order)
    }
    fn compare_exchange(&self, current: T, new: T, ok: Ordering, failed: Ordering) -> Result<T, T> {
        W::on_access();
        self.0.compare_exchange(current, new, ok, failed)
    }
    fn fetch_add(&self, value: T, order: Ordering) -> T {
        W::on_access();
        self.0.fetch_add(value, order)
    }
    fn fetch_or(&self, value: T, order: Ordering) -> T {
        W::on_access();
        self.0.fetch_or(value, order)
    }
    fn fetch_and(&self, value: T, order: Ordering) -> T {
        W::on_access();
        self.0.fetch_and(value, order)
    }
}

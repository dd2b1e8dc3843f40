//! The interface of a model checker, and the macro that implements it for loom and shuttle.
//!
//! Both libraries provide atomics, mutexes, threads and thread locals of the same names.
//!
//! Related files: `under_loom.rs` and `under_shuttle.rs` use the macro, `cells.rs` and `world.rs` the interface.

use std::sync::atomic::Ordering;

use crate::interleavings::cells::Table;

/// An atomic integer of a checker.
pub(crate) trait SharedCell: 'static {
    fn new(value: u64) -> Self;
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    fn swap(&self, value: u64, order: Ordering) -> u64;
    /// Returns the previous value, and stores `new` if the previous value was `current`.
    fn exchange(&self, current: u64, new: u64, ok: Ordering, failed: Ordering) -> u64;
    fn add(&self, value: u64, order: Ordering) -> u64;
    fn or(&self, value: u64, order: Ordering) -> u64;
    fn and(&self, value: u64, order: Ordering) -> u64;
}

/// A lock of a checker.
pub(crate) trait SharedLock: 'static {
    fn new() -> Self;
    fn lock(&self);
    fn try_lock(&self) -> bool;
    fn unlock(&self);
}

/// The contents of a frame. A write that races with another write is a fault.
pub(crate) trait Contents: 'static {
    fn new() -> Self;
    fn write(&self);
}

/// A model checker.
pub(crate) trait Checker: Sized + Send + Sync + 'static {
    type Cell: SharedCell;
    type Lock: SharedLock;
    type Contents: Contents;
    type Thread;

    /// Calls `work` with the table of the running model.
    fn table<R>(work: impl FnOnce(&Table<Self>) -> R) -> R;
    /// Starts a thread on a CPU.
    fn spawn(cpu: u32, job: impl FnOnce() + Send + 'static) -> Self::Thread;
    fn join(thread: Self::Thread);
    /// Yields to another thread.
    fn relax();
    fn cpu() -> u32;
    fn set_cpu(cpu: u32);
    fn is_reclaiming() -> bool;
    fn set_reclaiming(reclaiming: bool);
    /// Whether the thread is a handler that interrupted its own thread inside the allocator.
    fn is_reentered() -> bool;
    fn set_reentered(reentered: bool);
}

/// Implements a checker with a library.
macro_rules! checker {
    ($checker:ident, $library:ident, $contents:ty, $spawn:expr) => {
        use std::cell::{Cell as Plain, RefCell};
        use std::rc::Rc;
        use std::sync::atomic::Ordering;

        use crate::interleavings::cells::Table;
        use crate::interleavings::checker::{Checker, Contents, SharedCell, SharedLock};

        $library::thread_local! {
            static CPU: Plain<u32> = Plain::new(0);
            static RECLAIMING: Plain<bool> = Plain::new(false);
            static REENTERED: Plain<bool> = Plain::new(false);
        }
        std::thread_local! {
            static TABLE: Rc<Table<$checker>> = Rc::default();
        }

        impl Checker for $checker {
            type Cell = $library::sync::atomic::AtomicU64;
            type Lock = Lock;
            type Contents = $contents;
            type Thread = $library::thread::JoinHandle<()>;

            fn table<R>(work: impl FnOnce(&Table<Self>) -> R) -> R {
                TABLE.with(|table| work(table))
            }

            fn spawn(cpu: u32, job: impl FnOnce() + Send + 'static) -> Self::Thread {
                $spawn(move || {
                    Self::set_cpu(cpu);
                    job();
                })
            }

            fn join(thread: Self::Thread) {
                thread.join().expect("a thread of the model failed");
            }

            fn relax() {
                $library::thread::yield_now();
            }

            fn cpu() -> u32 {
                CPU.with(Plain::get)
            }

            fn set_cpu(cpu: u32) {
                CPU.with(|current| current.set(cpu));
            }

            fn is_reclaiming() -> bool {
                RECLAIMING.with(Plain::get)
            }

            fn set_reclaiming(reclaiming: bool) {
                RECLAIMING.with(|current| current.set(reclaiming));
            }

            fn is_reentered() -> bool {
                REENTERED.with(Plain::get)
            }

            fn set_reentered(reentered: bool) {
                REENTERED.with(|current| current.set(reentered));
            }
        }

        impl SharedCell for $library::sync::atomic::AtomicU64 {
            fn new(value: u64) -> Self {
                Self::new(value)
            }
            fn load(&self, order: Ordering) -> u64 {
                self.load(order)
            }
            fn store(&self, value: u64, order: Ordering) {
                self.store(value, order);
            }
            fn swap(&self, value: u64, order: Ordering) -> u64 {
                self.swap(value, order)
            }
            fn exchange(&self, current: u64, new: u64, ok: Ordering, failed: Ordering) -> u64 {
                self.compare_exchange(current, new, ok, failed).unwrap_or_else(|found| found)
            }
            fn add(&self, value: u64, order: Ordering) -> u64 {
                self.fetch_add(value, order)
            }
            fn or(&self, value: u64, order: Ordering) -> u64 {
                self.fetch_or(value, order)
            }
            fn and(&self, value: u64, order: Ordering) -> u64 {
                self.fetch_and(value, order)
            }
        }

        /// The checker's mutex and its guard.
        pub(crate) struct Lock {
            /// This field is the first one, because the guard must be dropped before the mutex.
            held: RefCell<Option<$library::sync::MutexGuard<'static, ()>>>,
            mutex: Box<$library::sync::Mutex<()>>,
        }

        impl Lock {
            fn mutex(&self) -> &'static $library::sync::Mutex<()> {
                // SAFETY: the mutex is in a box of its own and is dropped after `held`, the only place where
                // guards made from this reference are stored.
                unsafe { &*std::ptr::from_ref(&*self.mutex) }
            }
        }

        impl SharedLock for Lock {
            fn new() -> Self {
                Self { held: RefCell::default(), mutex: Box::new($library::sync::Mutex::new(())) }
            }

            fn lock(&self) {
                let guard = self.mutex().lock().expect("no thread failed");
                *self.held.borrow_mut() = Some(guard);
            }

            fn try_lock(&self) -> bool {
                let Ok(guard) = self.mutex().try_lock() else { return false };
                *self.held.borrow_mut() = Some(guard);
                true
            }

            fn unlock(&self) {
                let guard = self.held.borrow_mut().take();
                drop(guard); // another thread may run meanwhile
            }
        }
    };
}
pub(crate) use checker;

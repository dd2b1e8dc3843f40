//! The allocator's cells and locks as handles into a table of the checker that runs the model.
//!
//! A handle is a plain number, so metadata buffers contain nothing that must be dropped. While the table is *quiet*, a
//! single thread builds or verifies a world, and cells are plain values. While it is *live*, each cell that any thread
//! ever writes is an atomic of the checker. Cells that are only read stay plain, because their value cannot change. The
//! set of written cells is *learned*: the first write to a plain cell records the cell and restarts the exploration.
//!
//! Related files: `checker.rs` is the interface of a checker, and `world.rs` uses the table.

use std::cell::{Cell as Plain, RefCell};
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use zonal::platform::reclaimer::{ReclaimRequest, Reclaimer};
use zonal::platform::{Atomic, RawLock};
use zonal::units::{CpuId, Moment, NodeId, PageCount};

use crate::interleavings::checker::{Checker, SharedCell, SharedLock};
use crate::interleavings::ways::Way;

/// The current state of one model's cells. Each thread of the test harness has a table.
pub(crate) struct Table<C: Checker> {
    values: RefCell<Vec<u64>>,
    cells: RefCell<Vec<Option<Rc<C::Cell>>>>,
    locks: RefCell<Vec<Option<Rc<C::Lock>>>>,
    is_live: Plain<bool>,
    /// Cells that threads write, over all interleavings so far.
    written: RefCell<Vec<bool>>,
    /// Written cells that are also changed by read-modify-write operations.
    exchanged: RefCell<Vec<bool>>,
    has_learned: Plain<bool>,
    now_ns: Plain<u64>,
    /// Number of interleavings since the exploration was last started.
    pub(crate) explored: Plain<u64>,
}

impl<C: Checker> Default for Table<C> {
    fn default() -> Self {
        Self {
            values: RefCell::default(),
            cells: RefCell::default(),
            locks: RefCell::default(),
            is_live: Plain::new(false),
            written: RefCell::default(),
            exchanged: RefCell::default(),
            has_learned: Plain::new(false),
            now_ns: Plain::new(1),
            explored: Plain::new(0),
        }
    }
}

impl<C: Checker> Table<C> {
    /// Discards the learned cells of an earlier model.
    pub(crate) fn forget(&self) {
        self.written.borrow_mut().clear();
        self.exchanged.borrow_mut().clear();
        self.begin();
    }

    /// Starts an exploration.
    pub(crate) fn begin(&self) {
        self.has_learned.set(false);
        self.explored.set(0);
    }

    /// Whether a thread wrote a cell that was not in the learned set when the exploration began.
    #[allow(dead_code, reason = "shuttle learns as it goes")]
    pub(crate) fn has_learned(&self) -> bool {
        self.has_learned.get()
    }

    /// Drops the cells of the previous interleaving.
    pub(crate) fn clear(&self) {
        self.is_live.set(false);
        self.values.borrow_mut().clear();
        self.cells.borrow_mut().clear();
        self.locks.borrow_mut().clear();
        self.now_ns.set(1);
    }

    /// Makes the table live: from now on several threads use the cells.
    pub(crate) fn go_live(&self) {
        let values = self.values.borrow();
        let written = self.written.borrow();
        let live = |(at, &value)| written.get(at).is_some_and(|&is| is).then(|| Rc::new(C::Cell::new(value)));
        *self.cells.borrow_mut() = values.iter().enumerate().map(live).collect();
        self.locks.borrow_mut().iter_mut().for_each(|lock| *lock = Some(Rc::new(C::Lock::new())));
        self.is_live.set(true);
    }

    /// Makes the table quiet again, after all other threads have ended.
    pub(crate) fn settle(&self) {
        let cells = self.cells.take();
        for (at, cell) in cells.into_iter().enumerate() {
            if let Some(cell) = cell {
                let value = cell.load(Ordering::Acquire); // the threads were joined
                self.values.borrow_mut()[at] = value;
            }
        }
        self.is_live.set(false);
        self.locks.borrow_mut().iter_mut().for_each(|lock| *lock = None);
    }

    /// Sets the clock.
    pub(crate) fn set_now(&self, now_ns: u64) {
        self.now_ns.set(now_ns);
    }

    fn add_cell(&self, value: u64) -> usize {
        assert!(!self.is_live.get(), "cells are made while the table is quiet");
        let mut values = self.values.borrow_mut();
        values.push(value);
        values.len() - 1
    }

    fn add_lock(&self) -> usize {
        let mut locks = self.locks.borrow_mut();
        locks.push(None);
        locks.len() - 1
    }

    /// Returns the checker's cell, if there is one.
    fn cell(&self, at: usize) -> Option<Rc<C::Cell>> {
        self.is_live.get().then(|| self.cells.borrow()[at].clone()).flatten()
    }

    fn plain(&self, at: usize) -> u64 {
        self.values.borrow()[at]
    }

    /// Records that a cell is changed by a read-modify-write operation.
    fn note_exchange(&self, at: usize) {
        if self.is_live.get() {
            self.learn(&self.exchanged, at);
        }
    }

    fn is_exchanged(&self, at: usize) -> bool {
        self.exchanged.borrow().get(at).is_some_and(|&is| is)
    }

    fn learn(&self, what: &RefCell<Vec<bool>>, at: usize) {
        let mut what = what.borrow_mut();
        if at >= what.len() {
            what.resize(at + 1, false);
        }
        if !std::mem::replace(&mut what[at], true) {
            self.has_learned.set(true);
        }
    }

    fn set_plain(&self, at: usize, value: u64) {
        if self.is_live.get() {
            self.learn(&self.written, at);
        }
        self.values.borrow_mut()[at] = value;
    }

    fn lock(&self, at: usize) -> Option<Rc<C::Lock>> {
        self.locks.borrow()[at].clone()
    }
}

/// A cell for `T` in the table of `C`.
pub(crate) struct Handle<C, T> {
    at: u32,
    of: PhantomData<fn() -> (C, T)>,
}

impl<C: Checker, T: Copy + Into<u64> + TryFrom<u64>> Handle<C, T> {
    /// Accesses a cell as [`Self::on`] does, with a read-modify-write operation.
    fn exchange(&self, live: impl FnOnce(&C::Cell) -> u64, plain: impl FnOnce(u64) -> Option<u64>) -> T {
        C::table(|table| table.note_exchange(self.at as usize));
        self.on(live, plain)
    }

    /// Accesses the checker's cell or, if there is none, the plain value. Writes the value that `plain` returns, if
    /// any.
    fn on(&self, live: impl FnOnce(&C::Cell) -> u64, plain: impl FnOnce(u64) -> Option<u64>) -> T {
        let at = self.at as usize;
        let was = match C::table(|table| table.cell(at)) {
            Some(cell) => live(&cell),
            None => C::table(|table| {
                let was = table.plain(at);
                if let Some(next) = plain(was) {
                    table.set_plain(at, next);
                }
                was
            }),
        };
        narrow(was)
    }
}

/// Converts a value to the type of the cell. The allocator never lets cells of small types wrap.
fn narrow<T: TryFrom<u64>>(value: u64) -> T {
    T::try_from(value).unwrap_or_else(|_| panic!("{value} does not fit its cell"))
}

impl<C: Checker, T: Copy + Into<u64> + TryFrom<u64>> Atomic<T> for Handle<C, T> {
    fn new(value: T) -> Self {
        Self { at: C::table(|table| table.add_cell(value.into())) as u32, of: PhantomData }
    }

    fn load(&self, order: Ordering) -> T {
        self.on(|cell| cell.load(order), |_| None)
    }

    fn store(&self, value: T, order: Ordering) {
        let value = value.into();
        // loom may order a plain store between the load and the store of a concurrent exchange, so that the plain store
        // is lost. A store by exchange avoids this.
        let is_exchanged = C::table(|table| table.is_exchanged(self.at as usize));
        let store = |cell: &C::Cell| {
            if is_exchanged {
                cell.swap(value, order);
            } else {
                cell.store(value, order);
            }
            value
        };
        self.on(store, |_| Some(value));
    }

    fn swap(&self, value: T, order: Ordering) -> T {
        self.exchange(|cell| cell.swap(value.into(), order), |_| Some(value.into()))
    }

    fn compare_exchange(&self, current: T, new: T, ok: Ordering, failed: Ordering) -> Result<T, T> {
        let (current, new) = (current.into(), new.into());
        let exchange = |cell: &C::Cell| cell.exchange(current, new, ok, failed);
        let was: T = self.exchange(exchange, |was| (was == current).then_some(new));
        if was.into() == current { Ok(was) } else { Err(was) }
    }

    fn fetch_add(&self, value: T, order: Ordering) -> T {
        self.exchange(|cell| cell.add(value.into(), order), |was| Some(was.wrapping_add(value.into())))
    }

    fn fetch_or(&self, value: T, order: Ordering) -> T {
        self.exchange(|cell| cell.or(value.into(), order), |was| Some(was | value.into()))
    }

    fn fetch_and(&self, value: T, order: Ordering) -> T {
        self.exchange(|cell| cell.and(value.into(), order), |was| Some(was & value.into()))
    }
}

/// A lock in the table of `C`. It does nothing while the table is quiet, because a single thread uses it.
pub(crate) struct LockHandle<C> {
    at: u32,
    of: PhantomData<fn() -> C>,
}

impl<C> Clone for LockHandle<C> {
    fn clone(&self) -> Self {
        Self { at: self.at, of: PhantomData }
    }
}

impl<C: Checker> LockHandle<C> {
    fn live(&self) -> Option<Rc<C::Lock>> {
        C::table(|table| table.lock(self.at as usize))
    }
}

impl<C: Checker> RawLock for LockHandle<C> {
    fn new() -> Self {
        Self { at: C::table(Table::add_lock) as u32, of: PhantomData }
    }

    fn lock(&self) {
        assert!(!C::is_reentered(), "a handler waits for the thread it has interrupted");
        if let Some(lock) = self.live() {
            lock.lock();
        }
    }

    fn try_lock(&self) -> bool {
        self.live().is_none_or(|lock| lock.try_lock())
    }

    fn unlock(&self) {
        if let Some(lock) = self.live() {
            lock.unlock();
        }
    }
}

/// The scenario's part of the platform: the functions that the allocator requires of its embedder.
pub(crate) trait Host: Send + Sync {
    /// Handles a wake-up of background reclaim for `node`.
    fn wake(&self, _node: NodeId) {}

    /// Returns the number of frames that could be freed.
    fn count(&self, _request: &ReclaimRequest) -> PageCount {
        PageCount::ZERO
    }

    /// Frees frames, and returns their number.
    fn reclaim(&self, _request: &ReclaimRequest) -> PageCount {
        PageCount::ZERO
    }
}

/// The platform of a model.
pub(crate) struct Model<C: Checker> {
    host: Shrinker,
    way: Way<C>,
}

struct Shrinker(Box<dyn Host>);

impl Reclaimer for Shrinker {
    fn count(&self, request: &ReclaimRequest) -> PageCount {
        self.0.count(request)
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        self.0.reclaim(request)
    }
}

impl<C: Checker> Model<C> {
    /// Creates the platform of a model with the embedder `host`, whose CPUs access their pagesets in this `way`.
    pub(crate) fn new(host: Box<dyn Host>, way: Way<C>) -> Self {
        Self { host: Shrinker(host), way }
    }
}

impl<C: Checker> zonal::Platform for Model<C> {
    type U8 = Handle<C, u8>;
    type U32 = Handle<C, u32>;
    type U64 = Handle<C, u64>;
    type Lock = LockHandle<C>;
    type CpuLocal = Way<C>;

    fn current_cpu(&self) -> CpuId {
        CpuId::new(C::cpu())
    }

    fn cpu_local(&self) -> &Way<C> {
        &self.way
    }

    fn now(&self) -> Moment {
        Moment::from_ns(C::table(|table| table.now_ns.get()))
    }

    fn relax(&self, _round: u32) {
        C::relax();
    }

    fn is_reclaiming(&self) -> bool {
        C::is_reclaiming()
    }

    fn is_reentered(&self) -> bool {
        C::is_reentered()
    }

    fn begin_reclaiming(&self) {
        C::set_reclaiming(true);
    }

    fn end_reclaiming(&self) {
        C::set_reclaiming(false);
    }

    fn wake_background_reclaim(&self, node: NodeId) {
        self.host.0.wake(node);
    }

    fn reclaimer(&self) -> &dyn Reclaimer {
        &self.host
    }
}

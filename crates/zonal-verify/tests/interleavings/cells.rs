//! The allocator's cells and locks as handles into a table of the checker that runs the model.
//!
//! A handle is a plain number, so metadata buffers contain nothing that must be dropped. While the table is *quiet*, a
//! single thread builds or verifies a world, and cells are plain values. While it is *live*, each cell that any thread
//! ever writes is an atomic of the checker. Cells that are only read stay plain, because their value cannot change. The
//! set of written cells is *learned*: the first write to a plain cell records the cell and restarts the exploration.
//!
//! Processes that share an allocator have zeroed buffers of their own, in which an address stands for a cell of the table, the
//! same one for all of them. One process may be doomed: it dies before a write, and what it was about to write is lost.
//!
//! Related files: `checker.rs` is the interface of a checker, and `world.rs` uses the table.

use std::cell::{Cell as Plain, RefCell};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::panic::resume_unwind;
use std::ptr;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use zonal::platform::{Atomic, RawLock};

use crate::interleavings::checker::{Checker, SharedCell, SharedLock};

/// Bytes of a cell or lock in a buffer.
const CELL_BYTES: usize = 4;
/// Bit of a lock whose holder died, until what it guards is repaired.
const TORN: u64 = 1 << 31;

/// What a death unwinds with.
pub(crate) struct Death;

/// What becomes of an access.
enum Fate {
    Made,
    /// A process that is dead makes no access.
    Dropped,
    Death,
}

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
    pub(crate) now_ns: Plain<u64>,
    /// Zeroed buffers: their addresses, and the index of the first cell in each.
    zeroed: RefCell<Vec<(std::ops::Range<usize>, usize)>>,
    /// CPU of the process that dies, and the writes that are left to it.
    doomed: Plain<Option<(u32, u64)>>,
    is_dead: Plain<bool>,
    /// Whether other processes can know of the death.
    death: RefCell<Option<Rc<C::Cell>>>,
    /// Writes that are left to a doomed process.
    pub(crate) writes: Plain<u64>,
    /// Most writes that one has made.
    pub(crate) most_writes: Plain<u64>,
    /// Number of deaths, and of interleavings, since the exploration was last started.
    pub(crate) deaths: Plain<u64>,
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
            zeroed: RefCell::default(),
            doomed: Plain::new(None),
            is_dead: Plain::new(false),
            death: RefCell::default(),
            writes: Plain::new(0),
            most_writes: Plain::new(0),
            deaths: Plain::new(0),
            explored: Plain::new(0),
        }
    }
}

impl<C: Checker> Table<C> {
    /// Discards the learned cells of an earlier model.
    pub(crate) fn forget(&self) {
        self.written.borrow_mut().clear();
        self.exchanged.borrow_mut().clear();
        self.most_writes.set(0);
        self.begin();
    }

    /// Starts an exploration.
    pub(crate) fn begin(&self) {
        self.has_learned.set(false);
        self.deaths.set(0);
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
        self.zeroed.borrow_mut().clear();
        self.doomed.set(None);
        self.is_dead.set(false);
        self.now_ns.set(1);
    }

    /// Makes the table live: from now on several threads use the cells.
    pub(crate) fn go_live(&self) {
        let values = self.values.borrow();
        let written = self.written.borrow();
        let live = |(at, &value)| written.get(at).is_some_and(|&is| is).then(|| Rc::new(C::Cell::new(value)));
        *self.cells.borrow_mut() = values.iter().enumerate().map(live).collect();
        self.locks.borrow_mut().iter_mut().for_each(|lock| *lock = Some(Rc::new(C::Lock::new())));
        *self.death.borrow_mut() = self.doomed.get().map(|_| Rc::new(C::Cell::new(0)));
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
        if let Some((_, left)) = self.doomed.get() {
            self.most_writes.set(self.most_writes.get().max(self.writes.get() - left));
        }
        self.is_live.set(false);
        self.locks.borrow_mut().iter_mut().for_each(|lock| *lock = None);
        self.death.take();
    }

    /// Adds the cells of a zeroed buffer: those from index `first` on, or new ones. Returns the index of the first.
    pub(crate) fn add_zeroed(&self, bytes: &[MaybeUninit<u8>], first: Option<usize>) -> usize {
        let mut values = self.values.borrow_mut();
        let (start, end) = (values.len(), values.len() + bytes.len().div_ceil(CELL_BYTES));
        if first.is_none() {
            values.resize(end, 0);
        }
        let first = first.unwrap_or(start);
        let at = bytes.as_ptr().addr();
        self.zeroed.borrow_mut().push((at..at + bytes.len(), first));
        first
    }

    /// Returns the index of the cell at an address in a zeroed buffer.
    fn index_at(&self, address: usize) -> usize {
        let zeroed = self.zeroed.borrow();
        let (its, first) =
            zeroed.iter().find(|(its, _)| its.contains(&address)).expect("a buffer has the cell");
        first + (address - its.start) / CELL_BYTES
    }

    /// Lets the process of CPU 0 die, while the table is live, after `writes` writes.
    pub(crate) fn doom(&self) {
        self.doomed.set(Some((0, self.writes.get())));
    }

    fn fate(&self, cpu: u32, is_write: bool) -> Fate {
        let Some((_, left)) = self.doomed.get().filter(|&(its, _)| its == cpu && self.is_live.get()) else {
            return Fate::Made;
        };
        match left.checked_sub(1) {
            _ if self.is_dead.get() => return Fate::Dropped,
            _ if !is_write => {}
            Some(left) => self.doomed.set(Some((cpu, left))),
            None if std::thread::panicking() => {} // a check has failed
            None => {
                self.is_dead.set(true);
                self.deaths.set(self.deaths.get() + 1);
                return Fate::Death;
            }
        }
        Fate::Made
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

    fn death(&self) -> Option<Rc<C::Cell>> {
        self.death.borrow().clone()
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

/// Ends the doomed process: others can know of its death from now on, and of all that it wrote before.
pub(crate) fn die<C: Checker>() {
    if let Some(death) = C::table(Table::death) {
        death.store(1, Ordering::Release); // Release: as when the kernel releases the locks of a process
    }
}

/// Whether the process of a CPU is known to have died.
pub(crate) fn has_died<C: Checker>(cpu: u32) -> bool {
    let (doomed, is_dead, death) = C::table(|table| (table.doomed.get(), table.is_dead.get(), table.death()));
    doomed.is_some_and(|(its, _)| its == cpu)
        && death.map_or(is_dead, |death| death.load(Ordering::Acquire) != 0) // Acquire: as when the kernel is asked
}

/// Accesses the checker's cell or, if there is none, the plain value. Writes the value that `plain` returns, if any.
fn access<C: Checker>(
    at: usize,
    is_write: bool,
    live: impl FnOnce(&C::Cell) -> u64,
    plain: impl FnOnce(u64) -> Option<u64>,
) -> u64 {
    match C::table(|table| table.fate(C::cpu(), is_write)) {
        Fate::Made => {}
        Fate::Dropped => return C::table(|table| table.plain(at)),
        Fate::Death => resume_unwind(Box::new(Death)),
    }
    match C::table(|table| table.cell(at)) {
        Some(cell) => live(&cell),
        None => C::table(|table| {
            let was = table.plain(at);
            if let Some(next) = plain(was) {
                table.set_plain(at, next);
            }
            was
        }),
    }
}

/// Changes a cell with a read-modify-write operation.
fn exchange<C: Checker>(
    at: usize,
    live: impl FnOnce(&C::Cell) -> u64,
    plain: impl FnOnce(u64) -> Option<u64>,
) -> u64 {
    C::table(|table| table.note_exchange(at));
    access::<C>(at, true, live, plain)
}

/// Stores `new` if the cell has `current`; returns what it had.
fn compare_exchange<C: Checker>(at: usize, current: u64, new: u64, ok: Ordering, failed: Ordering) -> u64 {
    let live = |cell: &C::Cell| cell.exchange(current, new, ok, failed);
    exchange::<C>(at, live, |was| (was == current).then_some(new))
}

fn store<C: Checker>(at: usize, value: u64, order: Ordering) {
    // loom may order a plain store between the load and the store of a concurrent exchange, so that the plain store
    // is lost. A store by exchange avoids this.
    let is_exchanged = C::table(|table| table.is_exchanged(at));
    let live = |cell: &C::Cell| {
        if is_exchanged {
            cell.swap(value, order);
        } else {
            cell.store(value, order);
        }
        value
    };
    access::<C>(at, true, live, |_| Some(value));
}

fn load<C: Checker>(at: usize, order: Ordering) -> u64 {
    access::<C>(at, false, |cell| cell.load(order), |_| None)
}

/// A cell for `T` in the table of `C`.
pub(crate) struct Handle<C, T> {
    /// 1 + index in the table; 0 in a zeroed buffer, where the address says which cell it is.
    at: u32,
    of: PhantomData<fn() -> (C, T)>,
}

impl<C: Checker, T> Handle<C, T> {
    fn at(&self) -> usize {
        let by_address = || C::table(|table| table.index_at(ptr::from_ref(self).addr()));
        (self.at as usize).checked_sub(1).unwrap_or_else(by_address)
    }
}

/// Converts a value to the type of the cell. The allocator never lets cells of small types wrap.
fn narrow<T: TryFrom<u64>>(value: u64) -> T {
    T::try_from(value).unwrap_or_else(|_| panic!("{value} does not fit its cell"))
}

impl<C: Checker, T: Copy + Into<u64> + TryFrom<u64>> Atomic<T> for Handle<C, T> {
    fn new(value: T) -> Self {
        Self { at: C::table(|table| table.add_cell(value.into())) as u32 + 1, of: PhantomData }
    }

    fn load(&self, order: Ordering) -> T {
        narrow(load::<C>(self.at(), order))
    }

    fn store(&self, value: T, order: Ordering) {
        store::<C>(self.at(), value.into(), order);
    }

    fn swap(&self, value: T, order: Ordering) -> T {
        let value = value.into();
        narrow(exchange::<C>(self.at(), |cell| cell.swap(value, order), |_| Some(value)))
    }

    fn compare_exchange(&self, current: T, new: T, ok: Ordering, failed: Ordering) -> Result<T, T> {
        let was = compare_exchange::<C>(self.at(), current.into(), new.into(), ok, failed);
        if was == current.into() { Ok(narrow(was)) } else { Err(narrow(was)) }
    }

    fn fetch_add(&self, value: T, order: Ordering) -> T {
        let value = value.into();
        narrow(exchange::<C>(self.at(), |cell| cell.add(value, order), |was| Some(was.wrapping_add(value))))
    }

    fn fetch_or(&self, value: T, order: Ordering) -> T {
        let value = value.into();
        narrow(exchange::<C>(self.at(), |cell| cell.or(value, order), |was| Some(was | value)))
    }

    fn fetch_and(&self, value: T, order: Ordering) -> T {
        let value = value.into();
        narrow(exchange::<C>(self.at(), |cell| cell.and(value, order), |was| Some(was & value)))
    }
}

/// A lock in the table of `C`, which does nothing while the table is quiet, because a single thread uses it. In a zeroed buffer it
/// is instead a cell that names its holder, and is taken from a holder that has died.
pub(crate) struct LockHandle<C> {
    /// 1 + index in the table; 0 in a zeroed buffer.
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
        C::table(|table| table.lock(self.at as usize - 1))
    }

    /// Returns the index of the cell that names the holder, in a zeroed buffer.
    fn named(&self) -> Option<usize> {
        (self.at == 0).then(|| C::table(|table| table.index_at(ptr::from_ref(self).addr())))
    }
}

impl<C: Checker> RawLock for LockHandle<C> {
    fn new() -> Self {
        Self { at: C::table(Table::add_lock) as u32 + 1, of: PhantomData }
    }

    fn lock(&self) {
        assert!(!C::is_reentered(), "a handler waits for the thread it has interrupted");
        let Some(at) = self.named() else {
            if let Some(lock) = self.live() {
                lock.lock();
            }
            return;
        };
        let own = u64::from(C::cpu()) + 1;
        loop {
            let found = compare_exchange::<C>(at, 0, own, Ordering::Acquire, Ordering::Relaxed);
            if found == 0 {
                return;
            }
            let is_dead = has_died::<C>((found & !TORN) as u32 - 1);
            let take = || compare_exchange::<C>(at, found, own | TORN, Ordering::Acquire, Ordering::Relaxed);
            if is_dead && take() == found {
                return;
            }
            C::relax();
        }
    }

    fn try_lock(&self) -> bool {
        let own = u64::from(C::cpu()) + 1;
        match self.named() {
            Some(at) => compare_exchange::<C>(at, 0, own, Ordering::Acquire, Ordering::Relaxed) == 0,
            None => self.live().is_none_or(|lock| lock.try_lock()),
        }
    }

    fn unlock(&self) {
        if let Some(at) = self.named() {
            store::<C>(at, 0, Ordering::Release);
        } else if let Some(lock) = self.live() {
            lock.unlock();
        }
    }

    fn is_torn(&self) -> bool {
        self.named().is_some_and(|at| load::<C>(at, Ordering::Relaxed) & TORN != 0)
    }

    fn set_repaired(&self) {
        if let Some(at) = self.named() {
            exchange::<C>(at, |cell| cell.and(!TORN, Ordering::Relaxed), |was| Some(was & !TORN));
        }
    }
}

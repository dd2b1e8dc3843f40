//! The processes of a shared pool: who takes part, who has died, and what they ask each other.
//!
//! A process is alive while it holds the lock of its byte in the file. The kernel releases that lock when all threads of the
//! process have ended, and never earlier; a stopped process holds it. The table of processes changes only under another
//! lock in the file, which the kernel releases in the same way. Related files: `memory/pool_file.rs` has the cells,
//! `pool/joining.rs` joins, `pool/table.rs` locks the table, `pool/entered.rs` lists the pools of this process. Source:
//! Linux `fcntl(2)`, open file description locks.

use std::cmp;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use zonal::units::{NodeId, PageCount};
use zonal::{Buffer, OnDeath};

use crate::error::SharedError;
use crate::memory::origin::Origin;
use crate::memory::pool_file::{MEMBERS_MAX, MemberCells, PoolFile};
use crate::pool::between::{LIFE_AT, TRIM_AT, is_locked, set_lock, try_lock, wait, wake};
use crate::pool::lives;
use crate::pool::owner::PoolOwner;
use crate::pool::roots;
use crate::pool::table::Table;
use crate::shared_name::SharedName;
use crate::threads::lock::{compare_epochs, forget_name, holder_name, process_of};

/// What a process is doing; the values of [`MemberCells::stage`].
mod stage {
    /// The cells are free.
    pub(super) const FREE: u32 = 0;
    /// A process has taken the cells, or is being recovered.
    pub(super) const TAKEN: u32 = 1;
    /// The process uses the pool.
    pub(super) const LIVE: u32 = 2;
    /// The process has ended, and what it held is kept.
    pub(super) const KEPT: u32 = 3;
}

/// How long a request waits for other processes to drain their pagesets.
const DRAIN_WAIT: Duration = Duration::from_millis(10);
/// How long a process sleeps between two checks whether another has died.
const REST: Duration = Duration::from_millis(100);

/// This process's part in a shared pool.
#[derive(Debug)]
pub(super) struct Membership {
    file: PoolFile,
    /// Holds the locks of this process. Nothing else has this open file description.
    life: ManuallyDrop<OwnedFd>,
    processes: u8,
    /// Index of this process.
    at: usize,
    /// Whether this process has locked its byte.
    has_entered: bool,
    /// Whether a thread of this process trims the pool.
    trims: AtomicBool,
    origin: Origin,
}

/// Whether a process makes the allocator of a shared pool, or joins it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    First,
    Further,
}

/// The right to trim the pool, which one thread of all its processes has until this is dropped.
pub(super) struct Trimming<'a>(&'a Membership);

impl Membership {
    /// Takes part in the pool of a file, for at most `processes` processes, as the successor of a process with this name if
    /// there is one. The caller then makes or joins the allocator while it holds the table, and calls [`Membership::begin`].
    pub(super) fn enter(
        file: PoolFile,
        processes: u8,
        name: Option<SharedName>,
    ) -> Result<Self, SharedError> {
        let life = ManuallyDrop::new(lives::opened(|| file.reopened())?);
        let mut this = Self {
            file,
            life,
            processes,
            at: 0,
            has_entered: false,
            trims: AtomicBool::new(false),
            origin: Origin::here(),
        };
        let table = this.table()?;
        let own = match name.and_then(|name| this.named(name)) {
            Some(at) if this.is_alive(at) => return Err(this.in_use(at)),
            Some(at) => at,
            None => {
                // A process that is about to leave has freed its cells, but may still be alive.
                let places = 0..usize::from(processes);
                let mut dead = places.filter(|&at| this.name(at).is_none() && !this.is_alive(at));
                let free = dead.clone().find(|&at| this.cells(at).stage() == stage::FREE);
                free.or_else(|| dead.next()).ok_or_else(|| this.full())?
            }
        };
        if this.name(own).is_none() {
            roots::forget(&this.file, own as u8 + 1);
        }
        this.lock_life(own)?;
        let cells = this.cells(own);
        cells.pid.store(std::process::id(), Ordering::Relaxed); // relaxed, as below: `set_stage` publishes them
        // Release: publishes that this process lives; pairs with `Membership::lock_name_at`.
        cells.epoch.fetch_add(1, Ordering::Release);
        cells.set_stage(stage::TAKEN);
        drop(table);
        (this.at, this.has_entered) = (own, true);
        Ok(this)
    }

    fn lock_life(&self, at: usize) -> Result<(), SharedError> {
        set_lock(self.life.as_fd(), LIFE_AT + at as i64, libc::F_WRLCK)
            .map_err(|source| SharedError::Unusable { source })
    }

    /// Returns the number of this process in the allocator.
    pub(super) const fn process(&self) -> u8 {
        self.at as u8 + 1
    }

    /// Whether this process takes part, and is not a child of it made by `fork`, which has neither its mappings nor its locks.
    pub(super) fn is_here(&self) -> bool {
        self.origin.is_here()
    }

    /// Returns the descriptor with which other processes can join.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.descriptor()
    }

    /// Returns a buffer of the allocator in the file.
    ///
    /// # Safety
    /// The buffer must not be used after `self` is dropped, and no other one of this process may overlap it.
    pub(super) unsafe fn buffer(&self, at: usize, bytes: usize) -> Option<Buffer<'static>> {
        let end = at.checked_add(bytes).filter(|&end| end <= self.file.meta().bytes())?;
        // SAFETY: the range is in the mapping, and the caller guarantees the rest.
        let bytes = unsafe { self.file.meta().bytes_of(at..end) };
        // SAFETY: the bytes are zero, or those of the allocator that another process has made from the same request.
        Some(unsafe { Buffer::of_process(bytes) })
    }

    /// Publishes the file under its name, now that the pool is ready.
    pub(super) fn publish(&self) -> Result<(), SharedError> {
        self.file.publish()
    }

    /// Returns the right to trim the pool, or `None` while another thread of any process has it.
    pub(super) fn try_trimming(&self) -> io::Result<Option<Trimming<'_>>> {
        // Acquire: takes the file's lock as released; pairs with `Trimming::drop`.
        if self.trims.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return Ok(None);
        }
        let is_locked = try_lock(self.life.as_fd(), TRIM_AT);
        if !matches!(is_locked, Ok(true)) {
            self.trims.store(false, Ordering::Release); // Release: publishes the file's lock as it was; pairs with `Membership::try_trimming`.
        }
        Ok(is_locked?.then(|| Trimming(self)))
    }

    /// Locks the table of processes, for which it waits.
    pub(super) fn table(&self) -> Result<Table<'_>, SharedError> {
        Table::lock(self.life.as_fd())
    }

    /// Locks the table of processes, unless it is locked.
    pub(super) fn free_table(&self) -> Result<Table<'_>, SharedError> {
        Table::try_lock(self.life.as_fd())?.ok_or(SharedError::Busy)
    }

    /// Begins to use the pool, whose allocator this process has made or joined, with a name if its blocks shall outlive it. The
    /// caller holds the table.
    pub(super) fn begin(
        &self,
        name: Option<SharedName>,
        set_on_death: impl FnOnce(u8, OnDeath),
    ) -> Result<(), SharedError> {
        let cells = self.cells(self.at);
        if let Some(name) = name {
            match self.named(name) {
                Some(at) if at != self.at => return Err(self.in_use(at)),
                _ => cells.name.store(name),
            }
        }
        set_on_death(self.process(), if name.is_some() { OnDeath::Keep } else { OnDeath::Free });
        // Relaxed: read under the table's lock, or by owners, for people.
        cells.is_named.store(name.is_some().into(), Ordering::Relaxed);
        cells.set_stage(stage::LIVE);
        Ok(())
    }

    /// Returns the name of the process at `at`, if it has one: its blocks outlive it.
    fn name(&self, at: usize) -> Option<SharedName> {
        let cells = self.cells(at);
        let is_named = cells.stage() != stage::FREE && cells.is_named.load(Ordering::Relaxed) != 0; // relaxed: as in `begin`
        is_named.then(|| cells.name.load())
    }

    /// Returns the index of the process with a name, whether it lives or not.
    fn named(&self, name: SharedName) -> Option<usize> {
        (0..usize::from(self.processes)).find(|&at| self.name(at) == Some(name))
    }

    fn full(&self) -> SharedError {
        let ended = (0..usize::from(self.processes)).filter(|&at| !self.is_alive(at));
        SharedError::Full { processes: self.processes, kept: ended.filter_map(|at| self.name(at)).collect() }
    }

    fn in_use(&self, at: usize) -> SharedError {
        let (name, pid) = (self.cells(at).name.load(), self.cells(at).pid.load(Ordering::Relaxed));
        SharedError::NameInUse { name, pid }
    }

    /// Frees what was kept for a process with this name, which must not live; returns how many frames.
    pub(super) fn discard(
        &self,
        name: SharedName,
        set_on_death: impl FnOnce(u8, OnDeath),
        recover: impl Fn(u8) -> PageCount,
    ) -> Result<PageCount, SharedError> {
        let _table = self.table()?;
        let at = self.named(name).ok_or(SharedError::NotKept(name))?;
        if self.is_alive(at) {
            return Err(self.in_use(at));
        }
        // First, so that no root names a block that is free, whenever this process dies.
        roots::forget(&self.file, at as u8 + 1);
        set_on_death(at as u8 + 1, OnDeath::Free);
        self.cells(at).is_named.store(0, Ordering::Relaxed); // relaxed: as in `begin`
        Ok(self.end(at, recover))
    }

    /// Returns the pool's file, with its roots, which change while the caller holds the table.
    pub(super) const fn file(&self) -> &PoolFile {
        &self.file
    }

    /// Frees what processes that have died held; returns how many frames. Does so if `table` locks the table.
    pub(super) fn recover_dead<'a>(
        &'a self,
        table: impl FnOnce(&'a Self) -> Result<Table<'a>, SharedError>,
        recover: impl Fn(u8) -> PageCount,
    ) -> Result<PageCount, SharedError> {
        if !self.has_dead() {
            return Ok(PageCount::ZERO);
        }
        let _table = table(self)?;
        let dead = (0..usize::from(self.processes)).filter(|&at| self.is_dead(at));
        Ok(dead.map(|at| self.end(at, &recover)).sum())
    }

    /// Whether a process has died and is not recovered.
    pub(super) fn has_dead(&self) -> bool {
        (0..usize::from(self.processes)).any(|at| self.is_dead(at))
    }

    fn is_dead(&self, at: usize) -> bool {
        let has_ended = match self.cells(at).stage() {
            stage::KEPT => self.name(at).is_some(), // else it died while it discarded what was kept
            stage => stage == stage::FREE,
        };
        !has_ended && at != self.at && !self.is_alive(at)
    }

    /// Frees what the process at `at` held, unless it is kept, and then its cells; returns how many frames were freed. The caller
    /// holds the table.
    fn end(&self, at: usize, recover: impl FnOnce(u8) -> PageCount) -> PageCount {
        let is_kept = self.name(at).is_some();
        if !is_kept {
            roots::forget(&self.file, at as u8 + 1);
        }
        let freed = recover(at as u8 + 1);
        self.cells(at).set_stage(if is_kept { stage::KEPT } else { stage::FREE });
        freed
    }

    /// Whether another process has the byte of the process at `at` locked, or this process is the one.
    pub(super) fn is_alive(&self, at: usize) -> bool {
        self.has_entered && at == self.at || is_locked(self.life.as_fd(), LIFE_AT + at as i64)
    }

    /// Asks the other processes to drain their pagesets, and waits a moment for those that do.
    pub(super) fn drain_others(&self) {
        let until = Instant::now() + DRAIN_WAIT;
        let others = (0..usize::from(self.processes)).filter(|&at| at != self.at);
        let is_live = |at: &usize| self.cells(*at).stage() == stage::LIVE;
        let mut numbers = [None; MEMBERS_MAX];
        for at in others.clone().filter(is_live) {
            let cells = self.cells(at);
            // AcqRel: takes earlier requests, publishes what led to this one; pairs with `Membership::serve`.
            numbers[at] = Some(cells.asked.fetch_add(1, Ordering::AcqRel).wrapping_add(1));
            wake(&cells.asked);
        }
        for (at, number) in others.filter_map(|at| Some((at, numbers[at]?))) {
            let cells = self.cells(at);
            loop {
                // Acquire: takes what the other process has drained; pairs with `Membership::serve`.
                let answered = cells.answered.load(Ordering::Acquire);
                let left = until.saturating_duration_since(Instant::now());
                if answered.wrapping_sub(number).cast_signed() >= 0 || left.is_zero() {
                    break;
                }
                wait(&cells.answered, answered, left);
            }
        }
    }

    /// Asks the other processes to reclaim frames of a node, which may be in caches of theirs. Needs no heap.
    pub(super) fn reclaim_by_others(&self, node: NodeId) {
        let bit = 1 << (node.get() % 64);
        let others = (0..usize::from(self.processes)).filter(|&at| at != self.at).map(|at| self.cells(at));
        for cells in others.filter(|cells| cells.stage() == stage::LIVE) {
            let is_asked = cells.low_nodes.load(Ordering::Relaxed) & bit != 0; // relaxed: who has set it has woken the process
            // AcqRel: takes earlier requests, publishes what led to this one; pairs with `Membership::serve`.
            if !is_asked && cells.low_nodes.fetch_or(bit, Ordering::AcqRel) & bit == 0 {
                wake(&cells.asked);
            }
        }
    }

    /// Calls `drain` when other processes ask for it, `reclaim` with the bits of nodes for which they ask, and `recover` when
    /// processes have died, until `is_over`.
    pub(super) fn serve(
        &self,
        recover: impl Fn(),
        drain: impl Fn(),
        reclaim: impl Fn(u64),
        is_over: impl Fn() -> bool,
    ) {
        let cells = self.cells(self.at);
        let mut seen = cells.answered.load(Ordering::Relaxed); // relaxed: this thread alone writes it
        while !is_over() {
            // Acquire: takes what led to the request; pairs with `Membership::drain_others`, `Membership::ring`.
            let asked = cells.asked.load(Ordering::Acquire);
            if asked == seen && self.has_dead() {
                recover();
            }
            // Last before the wait, which a request that comes in between does not end before its time is over.
            // AcqRel: takes what led to the request, publishes the start; pairs with `Membership::reclaim_by_others`.
            match cells.low_nodes.swap(0, Ordering::AcqRel) {
                0 if asked == seen => wait(&cells.asked, asked, REST),
                0 => {}
                bits => reclaim(bits),
            }
            if asked == seen {
                continue;
            }
            drain();
            seen = asked;
            // Release: publishes what was drained; pairs with `Membership::drain_others`.
            cells.answered.store(seen, Ordering::Release);
            wake(&cells.answered);
        }
    }

    /// Makes [`Membership::serve`] look whether it is over.
    pub(super) fn ring(&self) {
        // AcqRel: takes earlier requests, publishes that it is over; pairs with `Membership::serve`.
        self.cells(self.at).asked.fetch_add(1, Ordering::AcqRel);
        wake(&self.cells(self.at).asked);
    }

    /// Ends the part of this process, which has no operation under way: gives back what it holds.
    pub(super) fn leave(&self, recover: impl FnOnce(u8) -> PageCount) {
        if !self.is_here() {
            return; // a child made by `fork` has no part
        }
        // Without the table, another process finds this one dead, and gives back what it holds.
        if let Ok(_table) = self.table() {
            self.end(self.at, recover);
            self.unlock_life();
        }
    }

    /// Unlocks this process's byte, and takes its descriptor from the list of those that a child closes. Before that, takes away
    /// the name in locks: both lists have the same size, and the next membership enters the other one first.
    fn unlock_life(&self) {
        forget_name(self.start());
        lives::remove(self.life.as_raw_fd());
        _ = set_lock(self.life.as_fd(), LIFE_AT + self.at as i64, libc::F_UNLCK);
    }

    /// Calls `each` with each process that takes part, or for which something is kept; `held` has what each holds.
    pub(super) fn for_each(&self, held: impl Fn(u8) -> PageCount, mut each: impl FnMut(PoolOwner)) {
        let is_used = |at: &usize| self.cells(*at).stage() != stage::FREE;
        for at in (0..usize::from(self.processes)).filter(is_used) {
            let (cells, process) = (self.cells(at), at as u8 + 1);
            each(PoolOwner {
                process,
                pid: cells.pid.load(Ordering::Relaxed),
                epoch: cells.epoch.load(Ordering::Relaxed),
                held: held(process),
                is_this: at == self.at,
                is_alive: self.is_alive(at),
                name: self.name(at),
            });
        }
    }

    /// Returns the address at which the memory begins that has the pool's locks.
    pub(super) fn start(&self) -> usize {
        self.file.meta().base().addr().get()
    }

    /// Whether the lock at this address is one of the pool.
    pub(super) fn has_lock(&self, address: usize) -> bool {
        address.checked_sub(self.start()).is_some_and(|offset| offset < self.file.meta().bytes())
    }

    /// Returns the name with which this process holds locks during this membership.
    pub(super) fn lock_name(&self) -> u32 {
        self.lock_name_at(self.at)
    }

    fn lock_name_at(&self, at: usize) -> u32 {
        // Acquire: takes the lock of its byte, for which a later check asks; pairs with `Membership::enter`.
        holder_name(at as u8 + 1, self.cells(at).epoch.load(Ordering::Acquire))
    }

    /// Whether the membership in which a process held locks with this name has ended. No later one has the name.
    pub(super) fn has_ended(&self, lock_name: u32) -> bool {
        let Some(at) = usize::from(process_of(lock_name)).checked_sub(1) else { return false };
        // The epoch may be out of date, so an earlier one proves nothing.
        match compare_epochs(self.lock_name_at(at), lock_name) {
            cmp::Ordering::Less => false,
            cmp::Ordering::Equal => !self.is_alive(at),
            cmp::Ordering::Greater => true,
        }
    }

    fn cells(&self, at: usize) -> &MemberCells {
        self.file.member(at)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if !self.origin.is_here() {
            return; // `lives` has closed the descriptor in a child, where its number may have another use
        }
        self.unlock_life();
        // SAFETY: the descriptor is not used any more.
        unsafe { ManuallyDrop::drop(&mut self.life) };
    }
}

impl Drop for Trimming<'_> {
    fn drop(&mut self) {
        _ = set_lock(self.0.life.as_fd(), TRIM_AT, libc::F_UNLCK);
        self.0.trims.store(false, Ordering::Release); // Release: publishes the file's lock as released; pairs with `Membership::try_trimming`.
    }
}

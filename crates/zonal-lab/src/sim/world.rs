//! The state of one simulated machine while it runs, and the way of its memory cells to it.
//!
//! Vocabulary: a *thread* runs on one CPU; the *horizon* is when the next event of anybody else is
//! due: a thread that is past it must let others go first before it does what others can notice;
//! *charging* is on while accesses cost time. Cells know nothing but their address, so the world
//! they belong to is that of the host thread. Neighbours: `charge.rs` says what an access costs,
//! `engine.rs` runs threads.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ptr;

use zonal::units::NodeId;

use super::bandwidth::Bandwidth;
use super::coherence::Directory;
use super::fiber;
use super::geometry::Geometry;
use super::hardware::Hardware;
use super::lock_queues::Locks;
use super::reclaimers::Reclaim;
use super::thread_id::ThreadId;
use super::time::Time;

/// What is due at some time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Event {
    /// A thread goes on.
    Thread(ThreadId),
    /// A line can serve the next who waits for it.
    Line(usize),
}

/// The future: events by time, and among those of one time by when they were planned.
#[derive(Default)]
struct Agenda {
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    planned: u64,
}

/// What a thread has been doing.
#[derive(Clone, Copy, Default, Debug)]
pub struct Account {
    /// Waiting for locks, hand-over included.
    pub lock_wait: Time,
    /// Waiting for lines that others were being served, and their transfer.
    pub line_wait: Time,
    /// In the program's own code.
    pub user: Time,
    /// Doing nothing: asleep until something happens.
    pub idle: Time,
    /// While the thread does not run: the state of its [`ListWork`].
    list_work: ListWork,
}

/// Frames that a thread has moved under a lock of the allocator. The count of what a lock guards lies at a
/// fixed distance from it; how much that changes is how many frames move.
#[derive(Clone, Copy, Default, Debug)]
struct ListWork {
    /// Address of the count; 0 = no lock is held.
    count_at: usize,
    moved: u64,
    /// When the lock was taken.
    since: Time,
}

/// From the lock of a region to its count of free frames.
const COUNT_OFFSET: usize = 16;

/// Checkpoints that a thread passes before it steps aside though it is behind all others: some milliseconds of the
/// host's.
const CHECKPOINTS: u32 = 1 << 16;

/// A simulated machine.
pub struct World {
    /// Of the thread that runs.
    clock: Cell<Time>,
    horizon: Cell<Time>,
    thread: Cell<ThreadId>,
    pub(super) cpu: Cell<usize>,
    charging: Cell<bool>,
    /// Depth of sections in which nothing else may run.
    pinned: Cell<u32>,
    agenda: RefCell<Agenda>,
    pub(super) geometry: Geometry,
    pub(super) hardware: Hardware,
    pub(super) directory: Directory,
    pub(super) locks: Locks,
    pub(super) reclaim: Reclaim,
    pub(super) bandwidth: Vec<RefCell<Bandwidth>>,
    pub(super) random: RefCell<fastrand::Rng>,
    seed: u64,
    /// By thread: the CPU it runs on.
    cpus: RefCell<Vec<usize>>,
    /// Of the running thread.
    list_work: Cell<ListWork>,
    /// By thread.
    accounts: RefCell<Vec<Account>>,
    reclaiming: RefCell<Vec<bool>>,
    /// Checkpoints since a thread last stepped aside at one.
    checkpoints: Cell<u32>,
    /// How far a thread may run ahead of others while it does nothing that they can notice.
    pub(super) leash: Time,
}

thread_local! {
    static CURRENT: Cell<*const World> = const { Cell::new(ptr::null()) };
}

/// Until dropped, the cells that this host thread uses belong to a world.
pub(crate) struct Entered<'w> {
    before: *const World,
    _world: &'w World,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}

/// Calls `work` with the world of this host thread, if there is one.
#[inline(always)]
pub(crate) fn with<R>(work: impl FnOnce(&World) -> R) -> Option<R> {
    let world = CURRENT.get();
    if world.is_null() {
        return None;
    }
    // SAFETY: set by `enter` to a world that is borrowed until the `Entered` is dropped, which resets it.
    #[allow(unsafe_code)]
    Some(work(unsafe { &*world }))
}

impl World {
    pub(crate) fn new(geometry: Geometry, hardware: Hardware, directory: Directory, seed: u64) -> Self {
        let rate = (hardware.node_gb_s != 0.0).then_some(hardware.node_gb_s * 1e9);
        let bandwidth = (0..geometry.nodes).map(|_| RefCell::new(Bandwidth::new(rate))).collect();
        Self {
            clock: Cell::default(),
            horizon: Cell::new(Time::NEVER),
            thread: Cell::new(ThreadId(0)),
            cpu: Cell::new(0),
            charging: Cell::new(false),
            pinned: Cell::new(0),
            agenda: RefCell::default(),
            geometry,
            hardware,
            directory,
            locks: Locks::default(),
            reclaim: Reclaim::default(),
            bandwidth,
            random: RefCell::new(fastrand::Rng::with_seed(seed)),
            seed,
            cpus: RefCell::default(),
            list_work: Cell::default(),
            accounts: RefCell::default(),
            reclaiming: RefCell::default(),
            checkpoints: Cell::new(0),
            leash: Time::from_ns(100_000.0),
        }
    }

    /// Makes this the world of the host thread until the result is dropped.
    pub(crate) fn enter(&self) -> Entered<'_> {
        Entered { before: CURRENT.replace(self), _world: self }
    }

    /// The time of the thread that runs.
    #[inline(always)]
    #[must_use]
    pub fn now(&self) -> Time {
        self.clock.get()
    }

    #[inline(always)]
    pub(super) fn set_now(&self, now: Time) {
        self.clock.set(now);
    }

    /// A time before which nobody does anything any more: others go on at the horizon or later.
    pub(super) fn settled(&self) -> Time {
        self.clock.get().min(self.horizon.get())
    }

    /// The seed of the run.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// What things cost here.
    #[must_use]
    pub const fn hardware(&self) -> &Hardware {
        &self.hardware
    }

    /// The CPU that runs.
    #[inline(always)]
    #[must_use]
    pub fn cpu(&self) -> usize {
        self.cpu.get()
    }

    /// Place of the node of the CPU that runs.
    #[must_use]
    pub fn node(&self) -> usize {
        self.geometry.node_of_cpu[self.cpu.get()]
    }

    /// Place of a node among those of the machine.
    ///
    /// # Panics
    /// When the machine does not have it.
    #[must_use]
    pub fn place_of(&self, node: NodeId) -> usize {
        self.geometry.place_of(node).expect("a node of the machine")
    }

    /// The thread that runs.
    #[must_use]
    pub fn thread(&self) -> ThreadId {
        self.thread.get()
    }

    #[inline(always)]
    pub(super) fn is_charging(&self) -> bool {
        self.charging.get()
    }

    /// Whether accesses cost time from now on.
    pub(crate) fn set_charging(&self, charging: bool) {
        self.charging.set(charging);
    }

    /// Does `work` without any cost and without anything else running meanwhile: for observers.
    pub fn free_of_charge<R>(&self, work: impl FnOnce() -> R) -> R {
        let charging = self.charging.replace(false);
        let result = self.undisturbed(work);
        self.charging.set(charging);
        result
    }

    /// Does `work` on the running CPU with nothing else running meanwhile.
    #[inline(always)]
    pub(super) fn undisturbed<R>(&self, work: impl FnOnce() -> R) -> R {
        self.pinned.set(self.pinned.get() + 1);
        let result = work();
        self.pinned.set(self.pinned.get() - 1);
        result
    }

    pub(super) fn is_pinned(&self) -> bool {
        self.pinned.get() != 0
    }

    /// Passes time on the running CPU.
    #[inline]
    pub fn spend(&self, time: Time) {
        self.clock.set(self.clock.get() + time);
    }

    /// Lets all others go first whose time is not after that of the running thread: to be called before
    /// doing what others can notice.
    #[inline]
    pub(super) fn sync(&self) {
        if self.clock.get() >= self.horizon.get() && self.pinned.get() == 0 {
            self.step_aside();
        }
    }

    /// To be called by programs now and then: keeps the thread from running far ahead of others, and a run from
    /// going on long after it was asked to stop.
    #[inline]
    pub fn checkpoint(&self) {
        let (clock, horizon) = (self.clock.get(), self.horizon.get());
        let passed = self.checkpoints.get().saturating_add(1);
        self.checkpoints.set(passed);
        let is_ahead = clock.saturating_sub(self.leash) > horizon;
        // Before all others it comes next again, so that nothing changes.
        let may_be_asked = passed >= CHECKPOINTS && clock < horizon;
        if (is_ahead || may_be_asked) && self.pinned.get() == 0 {
            self.checkpoints.set(0);
            self.step_aside();
        }
    }

    #[cold]
    fn step_aside(&self) {
        self.plan(self.clock.get(), Event::Thread(self.thread.get()));
        fiber::suspend();
    }

    /// Suspends the running thread until somebody calls [`Self::wake`] for it; gives how long it was.
    pub(super) fn block(&self) -> Time {
        assert!(self.pinned.get() == 0, "a pinned section must not wait");
        let since = self.clock.get();
        fiber::suspend();
        // Who wakes it may be a little behind: its own time does not go back.
        self.clock.set(self.clock.get().max(since));
        self.clock.get() - since
    }

    /// Has a blocked thread go on at `time`.
    pub(super) fn wake(&self, thread: ThreadId, time: Time) {
        self.plan(time, Event::Thread(thread));
    }

    pub(super) fn plan(&self, time: Time, event: Event) {
        let agenda = &mut *self.agenda.borrow_mut();
        agenda.events.push(Reverse((time, agenda.planned, event)));
        agenda.planned += 1;
        if time < self.horizon.get() {
            self.horizon.set(time);
        }
    }

    /// The next event, with the horizon set to the one after it.
    pub(crate) fn next_event(&self) -> Option<(Time, Event)> {
        let agenda = &mut *self.agenda.borrow_mut();
        let Reverse((time, _, event)) = agenda.events.pop()?;
        let after = agenda.events.peek().map_or(Time::NEVER, |Reverse((time, ..))| *time);
        self.horizon.set(after);
        Some((time, event))
    }

    /// There will be threads on these CPUs, by thread.
    pub(crate) fn set_threads(&self, cpus: Vec<usize>) {
        self.accounts.borrow_mut().resize(cpus.len(), Account::default());
        self.reclaiming.borrow_mut().resize(cpus.len(), false);
        self.cpus.replace(cpus);
    }

    /// Moves the running thread to another CPU.
    pub fn move_to(&self, cpu: usize) {
        if cpu != self.cpu.get() {
            self.cpus.borrow_mut()[self.thread.get().index()] = cpu;
            self.cpu.set(cpu);
            self.directory.use_cpu(cpu);
        }
    }

    /// Has a thread go on at a time.
    pub(crate) fn switch_to(&self, thread: ThreadId, time: Time) {
        if thread != self.thread.get() {
            let work = self.list_work.get();
            self.account(|account| account.list_work = work);
            self.list_work.set(self.account_of(thread).list_work);
        }
        self.clock.set(time);
        self.thread.set(thread);
        let cpu = self.cpus.borrow()[thread.index()];
        self.cpu.set(cpu);
        self.directory.use_cpu(cpu);
    }

    /// The running thread writes a word that holds `old`.
    #[inline(always)]
    pub(super) fn note_write(&self, address: usize, old: u64, new: u64) {
        let work = self.list_work.get();
        if work.count_at == address {
            let moved = work.moved + new.wrapping_sub(old).min(old.wrapping_sub(new));
            self.list_work.set(ListWork { moved, ..work });
        }
    }

    /// The running thread has taken the lock of the allocator at an address.
    pub(super) fn begin_list_work(&self, lock: usize) {
        self.list_work.set(ListWork { count_at: lock + COUNT_OFFSET, moved: 0, since: self.now() });
    }

    /// Passes what moving so many frames would have taken longer with linked lists.
    pub(super) fn end_list_work(&self) {
        let work = self.list_work.take();
        let held = self.now().saturating_sub(work.since);
        self.spend(Time::from_ns(work.moved as f64 * self.hardware.list_work_ns).saturating_sub(held));
    }

    /// Changes the account of the running thread.
    pub(super) fn account(&self, change: impl FnOnce(&mut Account)) {
        if let Some(account) = self.accounts.borrow_mut().get_mut(self.thread.get().index()) {
            change(account);
        }
    }

    /// What a thread has been doing so far.
    #[must_use]
    pub fn account_of(&self, thread: ThreadId) -> Account {
        self.accounts.borrow()[thread.index()]
    }

    /// Passes time in the program's own code.
    pub fn spend_user(&self, time: Time) {
        self.spend(time);
        self.account(|account| account.user += time);
    }

    /// Does nothing until `time`.
    pub fn sleep_until(&self, time: Time) {
        // Whoever is at the end of time lets the run end.
        if time > self.clock.get() || time == Time::NEVER {
            self.wake(self.thread.get(), time);
            self.idle();
        }
    }

    /// Does nothing until somebody wakes the thread.
    pub(super) fn idle(&self) {
        let slept = self.block();
        self.account(|account| account.idle += slept);
    }

    pub(super) fn is_reclaiming(&self) -> bool {
        self.reclaiming.borrow().get(self.thread.get().index()).copied().unwrap_or(false)
    }

    pub(super) fn set_reclaiming(&self, reclaiming: bool) {
        if let Some(flag) = self.reclaiming.borrow_mut().get_mut(self.thread.get().index()) {
            *flag = reclaiming;
        }
    }
}

//! The state of one simulated machine while it runs, and the way in which its memory cells find this state.
//!
//! A *thread* runs on one CPU. The *horizon* is the time of the next event on any other thread or line. A thread whose
//! clock has reached the horizon must let other threads run before it does anything that they can observe. While
//! *charging* is on, accesses cost time. A cell has no pointer to its world, so the current world of the host thread is
//! used. Related files: `sim/charge.rs` charges accesses, `sim/engine.rs` schedules threads.

use std::cell::{Cell, RefCell};
use std::ptr;

use zonal::units::NodeId;

use super::agenda::{Agenda, Event};
use super::bandwidth::Bandwidth;
use super::coherence::Directory;
use super::doublings::KernelDrains;
use super::fiber;
use super::geometry::Geometry;
use super::hardware::Hardware;
use super::lock_queues::{KeptLock, Locks};
use super::programs::Programs;
use super::reclaimers::Reclaim;
use super::thread_id::ThreadId;
use super::time::Time;

/// Time used by a thread, by activity.
#[derive(Clone, Copy, Default, Debug)]
pub struct Account {
    /// Waiting for locks, including the hand-over.
    pub lock_wait: Time,
    /// Waiting for contended lines, including their transfer.
    pub line_wait: Time,
    /// Running the program's own code.
    pub user: Time,
    /// Sleeping.
    pub idle: Time,
    /// Frames moved under a lock of the allocator.
    pub moved: u64,
    /// State of the thread's [`ListWork`] while the thread is suspended.
    list_work: ListWork,
}

/// Frames that a thread has moved under an allocator lock, and the lock that it keeps for its whole operation. The count of free frames that a lock protects is at a fixed
/// distance from the lock. Every change of this count is added to the moved frames.
#[derive(Clone, Copy, Default, Debug)]
struct ListWork {
    /// Address of the count; 0 = no lock is held.
    count_at: usize,
    moved: u64,
    /// Time at which the lock was acquired.
    since: Time,
    /// Whether the thread already held the lock.
    resumed: bool,
    /// Lock that the allocator has released, but that is held until the operation ends (`sim/locks.rs`).
    kept: Option<KeptLock>,
}

/// Offset from the lock of the free areas to their free frame count, in bytes.
const COUNT_OFFSET: usize = 16;

/// Checkpoints after which a thread yields even if all other threads are ahead of it. The engine can then check the
/// stop flag every few milliseconds of host time.
const CHECKPOINTS: u32 = 1 << 16;

/// A second, as most clocks count it.
const SECOND: Time = Time::from_ps(1_000_000_000_000);

/// A running simulated machine.
pub struct World {
    /// Virtual time of the running thread.
    clock: Cell<Time>,
    /// A second on the allocator's clock.
    second: Cell<Time>,
    horizon: Cell<Time>,
    thread: Cell<ThreadId>,
    pub(super) cpu: Cell<usize>,
    charging: Cell<bool>,
    /// Nesting depth of pinned sections, in which no other thread may run.
    pinned: Cell<u32>,
    agenda: RefCell<Agenda>,
    pub(super) geometry: Geometry,
    pub(super) hardware: Hardware,
    pub(super) directory: Directory,
    pub(super) locks: Locks,
    pub(super) reclaim: Reclaim,
    pub(super) drains: KernelDrains,
    pub(super) bandwidth: Vec<RefCell<Bandwidth>>,
    pub(super) random: RefCell<fastrand::Rng>,
    seed: u64,
    /// CPU of each thread, indexed by thread.
    cpus: RefCell<Vec<usize>>,
    /// Programs that run at the same time.
    pub(super) programs: Programs,
    /// List work of the running thread.
    list_work: Cell<ListWork>,
    /// Time used by each thread, indexed by thread.
    accounts: RefCell<Vec<Account>>,
    reclaiming: RefCell<Vec<bool>>,
    /// Number of checkpoints since a thread last yielded at a checkpoint.
    checkpoints: Cell<u32>,
    /// Distance and bytes of the last transfer from or to memory, and the time that it takes without contention.
    pub(super) last_stream: Cell<(u8, u64, Time)>,
    /// Time by which a thread may run ahead of others while it does nothing that they can observe.
    pub(super) leash: Time,
}

thread_local! {
    static CURRENT: Cell<*const World> = const { Cell::new(ptr::null()) };
}

/// A guard. While it exists, all accesses of this host thread to cells are charged in one world.
pub(crate) struct Entered<'w> {
    before: *const World,
    _world: &'w World,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}

/// Calls `work` with the current world of this host thread, if there is one.
#[inline(always)]
pub(crate) fn with<R>(work: impl FnOnce(&World) -> R) -> Option<R> {
    let world = CURRENT.get();
    if world.is_null() {
        return None;
    }
    // SAFETY: `enter` sets the pointer to a world that stays borrowed until the `Entered` is dropped, and the drop
    // resets the pointer.
    #[allow(unsafe_code)]
    Some(work(unsafe { &*world }))
}

impl World {
    pub(crate) fn new(geometry: Geometry, hardware: Hardware, directory: Directory, seed: u64) -> Self {
        let rate = (hardware.node_gb_s != 0.0).then_some(hardware.node_gb_s * 1e9);
        let bandwidth = (0..geometry.nodes).map(|_| RefCell::new(Bandwidth::new(rate))).collect();
        let reclaim = Reclaim::new(geometry.nodes);
        let drains = KernelDrains::new(geometry.node_of_cpu.len());
        Self {
            second: Cell::new(SECOND),
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
            reclaim,
            drains,
            bandwidth,
            random: RefCell::new(fastrand::Rng::with_seed(seed)),
            seed,
            cpus: RefCell::default(),
            programs: Programs::default(),
            list_work: Cell::default(),
            accounts: RefCell::default(),
            reclaiming: RefCell::default(),
            checkpoints: Cell::new(0),
            last_stream: Cell::new((0, 0, Time::ZERO)),
            leash: Time::from_ns(100_000.0),
        }
    }

    /// Makes this world the current world of the host thread until the returned guard is dropped.
    pub(crate) fn enter(&self) -> Entered<'_> {
        Entered { before: CURRENT.replace(self), _world: self }
    }

    /// Returns the virtual time of the running thread.
    #[inline(always)]
    #[must_use]
    pub fn now(&self) -> Time {
        self.clock.get()
    }

    /// Returns how long a second on the allocator's clock takes.
    #[must_use]
    pub fn second(&self) -> Time {
        self.second.get()
    }

    /// Lets the allocator's clock run faster, so that what it does each second is done within a short run. To be called
    /// before the first thread runs.
    pub fn set_second(&self, second: Time) {
        self.second.set(second);
    }

    /// Returns the time on the allocator's clock, in nanoseconds.
    pub(super) fn clock_ns(&self) -> u64 {
        const SECOND_NS: u64 = 1_000_000_000;
        let (now, second) = (self.now(), self.second.get());
        if second == SECOND { now.ns() } else { (now.seconds() / second.seconds() * SECOND_NS as f64) as u64 }
    }

    #[inline(always)]
    pub(super) fn set_now(&self, now: Time) {
        self.clock.set(now);
    }

    /// Returns a time before which no thread can act any more, because all other threads resume at the horizon or
    /// later.
    pub(super) fn settled(&self) -> Time {
        self.clock.get().min(self.horizon.get())
    }

    /// Returns the seed of the run.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the hardware costs of the machine.
    #[must_use]
    pub const fn hardware(&self) -> &Hardware {
        &self.hardware
    }

    /// Returns the id of the running CPU.
    #[inline(always)]
    #[must_use]
    pub fn cpu(&self) -> usize {
        self.cpu.get()
    }

    /// Returns the index of the running CPU's node.
    #[must_use]
    pub fn node(&self) -> usize {
        self.geometry.node_of_cpu[self.cpu.get()]
    }

    /// Returns the machine's index of a node.
    ///
    /// # Panics
    /// Panics if the machine does not have the node.
    #[must_use]
    pub fn place_of(&self, node: NodeId) -> usize {
        self.geometry.place_of(node).expect("a node of the machine")
    }

    /// Returns the running thread.
    #[must_use]
    pub fn thread(&self) -> ThreadId {
        self.thread.get()
    }

    #[inline(always)]
    pub(super) fn is_charging(&self) -> bool {
        self.charging.get()
    }

    /// Sets whether accesses cost time from now on.
    pub(crate) fn set_charging(&self, charging: bool) {
        self.charging.set(charging);
        self.directory.caches.forget_recent();
    }

    /// Runs `work` without cost, and without running other threads during `work`. Observers use this function.
    pub fn free_of_charge<R>(&self, work: impl FnOnce() -> R) -> R {
        let charging = self.is_charging();
        self.set_charging(false);
        let result = self.undisturbed(work);
        self.set_charging(charging);
        result
    }

    /// Runs `work` on the running CPU, without running other threads during `work`.
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

    /// Advances the running CPU's virtual time.
    #[inline]
    pub fn spend(&self, time: Time) {
        self.clock.set(self.clock.get() + time);
    }

    /// Lets all threads run whose time is not later than that of the running thread. Must be called before an action
    /// that other threads can observe.
    #[inline]
    pub(super) fn sync(&self) {
        if self.clock.get() >= self.horizon.get() && self.pinned.get() == 0 {
            self.step_aside();
        }
    }

    /// Yields if the running thread is far ahead of the others, and periodically so that the engine can check the
    /// stop flag. Programs must call this function regularly.
    #[inline]
    pub fn checkpoint(&self) {
        let (clock, horizon) = (self.clock.get(), self.horizon.get());
        let passed = self.checkpoints.get().saturating_add(1);
        self.checkpoints.set(passed);
        let is_ahead = clock.saturating_sub(self.leash) > horizon;
        // A thread that is behind all others is scheduled again immediately, so this yield does not change any
        // result.
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

    /// Suspends the running thread until another thread calls [`Self::wake`] for it. Returns the duration of the
    /// suspension.
    pub(super) fn block(&self) -> Time {
        assert!(self.pinned.get() == 0, "a pinned section must not wait");
        let since = self.clock.get();
        fiber::suspend();
        // The clock of the waking thread may be slightly behind, but a thread's own clock never goes backwards.
        self.clock.set(self.clock.get().max(since));
        self.clock.get() - since
    }

    /// Resumes a blocked thread at `time`.
    pub(super) fn wake(&self, thread: ThreadId, time: Time) {
        self.plan(time, Event::Thread(thread));
    }

    pub(super) fn plan(&self, time: Time, event: Event) {
        self.agenda.borrow_mut().plan(time, event);
        if time < self.horizon.get() {
            self.horizon.set(time);
        }
    }

    /// Removes and returns the next event, and sets the horizon to the time of the event after it.
    pub(crate) fn next_event(&self) -> Option<(Time, Event)> {
        let mut agenda = self.agenda.borrow_mut();
        let next = agenda.next()?;
        self.horizon.set(agenda.earliest());
        Some(next)
    }

    /// Removes the events of threads that no longer exist.
    pub(crate) fn forget_events(&self) {
        self.agenda.borrow_mut().clear();
    }

    /// Adds threads on `cpus` and returns the index of the first one. They replace the threads of earlier runs, unless
    /// they belong to programs that run at the same time.
    pub(crate) fn add_threads(&self, cpus: impl Iterator<Item = usize>) -> u32 {
        let mut all = self.cpus.borrow_mut();
        if !self.programs.is_several() {
            all.clear();
        }
        let first = all.len() as u32;
        all.extend(cpus);
        self.accounts.borrow_mut().resize(all.len(), Account::default());
        self.reclaiming.borrow_mut().resize(all.len(), false);
        first
    }

    /// Returns the number of threads.
    pub(super) fn threads(&self) -> usize {
        self.cpus.borrow().len()
    }

    /// Returns the ids of a program's `count` threads, after [`Self::run`] has returned to the program.
    pub fn thread_ids(&self, count: usize) -> impl Iterator<Item = ThreadId> + use<> {
        let first = self.programs.first.get();
        (first..first + count as u32).map(ThreadId)
    }

    /// Moves the running thread to another CPU.
    pub fn move_to(&self, cpu: usize) {
        if cpu != self.cpu.get() {
            self.cpus.borrow_mut()[self.thread.get().index()] = cpu;
            self.cpu.set(cpu);
            self.directory.use_cpu(cpu);
        }
    }

    /// Makes `thread` the running thread at `time`.
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

    /// Records that the running thread replaces `old` with `new` at `address`.
    #[inline(always)]
    pub(super) fn note_write(&self, address: usize, old: u64, new: u64) {
        let work = self.list_work.get();
        if work.count_at == address {
            let moved = work.moved + new.wrapping_sub(old).min(old.wrapping_sub(new));
            self.list_work.set(ListWork { moved, ..work });
        }
    }

    /// Records that the running thread has acquired the allocator's lock at address `lock`, or resumed holding it.
    pub(super) fn begin_list_work(&self, lock: usize, resumed: bool) {
        let kept = self.kept_lock();
        let count_at = lock + COUNT_OFFSET;
        self.list_work.set(ListWork { count_at, moved: 0, since: self.now(), resumed, kept });
    }

    /// Spends the time that linked lists would have required to move the counted frames.
    pub(super) fn end_list_work(&self) {
        let work = self.list_work.take();
        self.set_kept_lock(work.kept);
        let held = self.now().saturating_sub(work.since);
        self.account(|account| account.moved += work.moved);
        let first = if work.resumed { 0.0 } else { self.hardware.lock_work_ns };
        let least = Time::from_ns(first + work.moved as f64 * self.hardware.list_work_ns);
        self.spend(least.saturating_sub(held));
    }

    /// Whether the running thread changes linked lists under a lock, whose time replaces its accesses.
    #[inline]
    pub(super) fn is_in_lists(&self) -> bool {
        let work = self.list_work.get();
        self.hardware.list_work_ns > 0.0 && (work.count_at != 0 || work.kept.is_some())
    }

    /// Returns the lock that the running thread keeps.
    #[inline]
    pub(super) fn kept_lock(&self) -> Option<KeptLock> {
        self.list_work.get().kept
    }

    pub(super) fn set_kept_lock(&self, kept: Option<KeptLock>) {
        self.list_work.set(ListWork { kept, ..self.list_work.get() });
    }

    /// Changes the account of the running thread.
    pub(super) fn account(&self, change: impl FnOnce(&mut Account)) {
        if let Some(account) = self.accounts.borrow_mut().get_mut(self.thread.get().index()) {
            change(account);
        }
    }

    /// Returns the time that a thread has used so far, by activity.
    #[must_use]
    pub fn account_of(&self, thread: ThreadId) -> Account {
        self.accounts.borrow()[thread.index()]
    }

    /// Spends time in the program's own code.
    pub fn spend_user(&self, time: Time) {
        self.spend(time);
        self.account(|account| account.user += time);
    }

    /// Blocks the running thread until `time`.
    pub fn sleep_until(&self, time: Time) {
        // A thread whose clock has saturated must still suspend so that the run can end.
        if time > self.clock.get() || time == Time::NEVER {
            self.wake(self.thread.get(), time);
            self.idle();
        }
    }

    /// Blocks the running thread until another thread wakes it.
    pub(super) fn idle(&self) {
        self.end_operation();
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

//! Mutual exclusion between a CPU's operations on its own pagesets.
//!
//! A pageset has a stack of single free frames, and a [`Head`] holds the state of that stack. One store to the *word*
//! of the head commits a pop or push. The word holds the stack's free slot count and the differences of four
//! counters (`platform/pageset_word.rs` has the layout). A *step* is the value that an operation adds to the word or
//! subtracts from it. Two *limits* bound the word. An operation fails without changing anything if it would exceed a
//! limit or if the *lock word* of the head is locked. Its caller then uses the slow path. A *sequence* is the list of
//! one operation's memory accesses.
//!
//! Related files: `alloc/mod.rs` tries these operations first, and `pageset/guard.rs` sets the limits. A platform
//! selects its access method with [`Platform::CpuLocal`].

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

pub use crate::platform::pageset_slot::{Head, LockWord, PagesetSlot, PagesetSlots, Popped, Push};
pub use crate::platform::pageset_word::Step;
use crate::platform::{Atomic, Platform};
use crate::units::CpuId;

/// A field of a pageset that a sequence loads or stores.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Field {
    /// [`Head::lock_word`].
    LockWord,
    /// [`Head::word`].
    Word,
    /// [`Head::pop_limit`].
    PopLimit,
    /// [`Head::push_limit`].
    PushLimit,
    /// The slot of the frame that is popped or pushed.
    Slot,
}

/// One memory access of a sequence.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// Load that is ordered before all later accesses.
    LoadAcquire(Field),
    /// Load that may be executed later than its position in the list, but not after the last store.
    Load(Field),
    /// Store. The last store of a sequence commits the operation.
    Store(Field),
}

/// The accesses of a sequence, in program order.
pub type Accesses = &'static [Access];

/// The accesses that pop a frame, for [`CpuLocal::pop_current`].
///
/// If the new word would exceed the limit, the sequence fails before it loads the slot.
pub const POP: Accesses = &[
    Access::LoadAcquire(Field::LockWord),
    Access::Load(Field::Word),
    Access::Load(Field::PopLimit),
    Access::Load(Field::Slot),
    Access::Store(Field::Word),
];

/// The accesses that push a frame, for [`CpuLocal::push_current`].
///
/// If the new word would exceed the limit, the sequence fails before it stores the frame into the slot.
pub const PUSH: Accesses = &[
    Access::LoadAcquire(Field::LockWord),
    Access::Load(Field::Word),
    Access::Load(Field::PushLimit),
    Access::Store(Field::Slot),
    Access::Store(Field::Word),
];

/// The accesses that lock a head, for [`CpuLocal::lock`].
///
/// If the head is already locked, the sequence fails before the store.
pub const LOCK: Accesses = &[Access::LoadAcquire(Field::LockWord), Access::Store(Field::LockWord)];

/// A CPU's operations on the heads of its own pagesets, and the remote lock.
///
/// Contract: only [`CpuLocal::lock_remote`] may wait. After a successful lock, no other operation on that head succeeds
/// until the holder stores [`LockWord::OPEN`] to the lock word with release ordering. Operations that succeed after
/// that store see all writes that precede it. An operation may fail spuriously at any time. The field documentation of
/// [`Head`] lists the checks that an operation must make.
pub trait CpuLocal<P: Platform>: Send + Sync {
    /// Pops the top frame of the current CPU's pageset slot, and returns that slot and the frame.
    ///
    /// Returns [`Popped::NOTHING`] with an arbitrary slot if the pop would exceed a limit, the head is locked, or the
    /// sequence is interrupted.
    #[inline(always)]
    fn pop_current<'m>(
        &self,
        platform: &P,
        slots: &PagesetSlots<'m, P>,
        step: Step,
    ) -> (&'m PagesetSlot<'m, P>, Popped) {
        let cpu = platform.current_cpu();
        let Some(slot) = slots.of(cpu) else { return (slots.null_slot(), Popped::NOTHING) };
        (slot, self.pop_from(cpu, slot, step))
    }

    /// Pops the top frame of the current CPU's pageset slot if `accepts` returns `true` for that slot. Returns the slot
    /// and the frame.
    ///
    /// The frame comes from the slot that `accepts` was called with, or the method returns `None`. The accesses are
    /// those of [`POP`]. Returns `None` if `accepts` refuses the slot, or the CPU has none.
    #[inline(always)]
    fn pop_current_if<'m>(
        &self,
        platform: &P,
        slots: &PagesetSlots<'m, P>,
        step: Step,
        accepts: impl FnOnce(&PagesetSlot<'m, P>) -> bool,
    ) -> Option<(&'m PagesetSlot<'m, P>, Popped)> {
        let cpu = platform.current_cpu();
        let slot = slots.of(cpu).filter(|slot| accepts(slot))?;
        Some((slot, self.pop_from(cpu, slot, step)))
    }

    /// Pushes a frame onto the stack of the current CPU's pageset slot. Returns `true` if the frame was pushed, or if
    /// `refused` accepted the frame.
    ///
    /// The method first calls `prepare` with the slot, and `prepare` returns the frame to push, or `None` to push
    /// nothing. If the push would exceed a limit, the head is locked, or the sequence is interrupted, the method then
    /// calls `refused` with the slot and the frame, and `refused` returns whether it accepted the frame.
    #[inline(always)]
    fn push_current<'m>(
        &self,
        platform: &P,
        slots: &PagesetSlots<'m, P>,
        prepare: impl FnOnce(&'m PagesetSlot<'m, P>) -> Option<Push>,
        refused: impl FnOnce(&'m PagesetSlot<'m, P>, Push) -> bool,
    ) -> bool {
        let cpu = platform.current_cpu();
        let Some(slot) = slots.of(cpu) else { return false };
        prepare(slot).is_some_and(|push| self.push_to(cpu, slot, push) || refused(slot, push))
    }

    /// Pops the top frame from a slot of `cpu`, whichever slot the CPU uses. The calling thread runs on `cpu`, or ran
    /// on it until recently.
    ///
    /// The accesses are those of [`POP`], or those of a pop under the lock. Returns [`Popped::NOTHING`] in the cases of
    /// [`CpuLocal::pop_current`].
    #[inline(always)]
    fn pop_from(&self, cpu: CpuId, slot: &PagesetSlot<'_, P>, step: Step) -> Popped {
        let frame = under_lock(self, cpu, slot, |head| head.pop(slot.slots, step, LockWord::OPEN));
        frame.unwrap_or(Popped::NOTHING)
    }

    /// Pushes a frame onto the stack in a slot of `cpu`, with the conditions of [`CpuLocal::pop_from`]. Returns whether
    /// the frame was pushed.
    #[inline(always)]
    fn push_to(&self, cpu: CpuId, slot: &PagesetSlot<'_, P>, push: Push) -> bool {
        under_lock(self, cpu, slot, |head| head.push(slot.slots, push, LockWord::OPEN)) == Some(true)
    }

    /// Locks a head of `cpu`. The calling thread runs on `cpu`, or ran on it until recently.
    ///
    /// Returns `false` if the head is already locked or the sequence was interrupted.
    #[must_use]
    fn lock(&self, cpu: CpuId, head: &Head<P>) -> bool;

    /// Locks a head of `cpu` from any CPU. The return value is the same as that of [`CpuLocal::lock`].
    #[must_use]
    fn lock_remote(&self, cpu: CpuId, head: &Head<P>) -> bool;

    /// Whether [`CpuLocal::lock_remote`] excludes the operations of other CPUs.
    ///
    /// If this method returns `false`, an allocator for more than one CPU cannot be created.
    fn reaches_other_cpus(&self) -> bool {
        true
    }
}

/// Access to pagesets under a lock: an atomic exchange locks the head before each operation, and a store unlocks it.
///
/// Use this type for programs whose threads may be preempted at any time, so that several threads may act for the same
/// CPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct TryLock;

impl<P: Platform> CpuLocal<P> for TryLock {
    #[inline(always)]
    fn lock(&self, _cpu: CpuId, head: &Head<P>) -> bool {
        // If the head was already locked, the exchange leaves it locked.
        // Acquire: takes the last holder's writes; pairs with `Head::open`.
        head.lock_word.swap(LockWord::LOCKED.bits(), Acquire) != LockWord::LOCKED.bits()
    }

    fn lock_remote(&self, cpu: CpuId, head: &Head<P>) -> bool {
        self.lock(cpu, head)
    }
}

#[inline(always)]
fn under_lock<P: Platform, L: CpuLocal<P> + ?Sized, R>(
    local: &L,
    cpu: CpuId,
    slot: &PagesetSlot<'_, P>,
    work: impl FnOnce(&Head<P>) -> R,
) -> Option<R> {
    local.lock(cpu, slot.head).then(|| {
        let result = work(slot.head);
        slot.head.open();
        result
    })
}

/// For platforms with [`Pinned`] access, ensures that no operation is in progress on another CPU.
///
/// The allocator calls [`Quiesce::quiesce`] when code on one CPU accesses the pagesets of another CPU. The methods
/// [`drain_pagesets`](crate::Allocator::drain_pagesets), [`tick`](crate::Allocator::tick) and
/// [`verify`](crate::Allocator::verify) do so, and so do run-time changes of CPUs, memory and settings. A request that
/// would otherwise fail drains the pagesets of other CPUs, and therefore also calls `quiesce`.
///
/// **Which CPU is passed.** `cpu` may be any CPU of the machine except the one that
/// [`current_cpu`](Platform::current_cpu) returns. If `current_cpu` returns a CPU that the machine does not have,
/// `cpu` may be any CPU. The allocator may have taken the CPU offline, and the CPU may never have been started.
///
/// **Context.** `quiesce` runs in the context of the code that called the allocator, and therefore usually with
/// interrupts off. The allocator may hold the lock for run-time changes (of type [`Platform::Lock`]), but it holds no
/// lock of a zone. The calling CPU may be in the middle of an allocation.
///
/// **Two CPUs may quiesce each other**, while a third CPU waits for the lock for run-time changes. To avoid a
/// deadlock, a CPU must answer quiesce requests of other CPUs wherever it waits with interrupts off: in `quiesce`
/// itself, in [`RawLock::lock`](crate::platform::RawLock::lock) of [`Platform::Lock`] and in [`Platform::relax`].
/// Answering in these methods is always safe, because a CPU has no operation on a head in progress when the allocator
/// calls one of them.
///
/// **CPUs that do not run** have no operation in progress, so `quiesce` may return at once for them. For this
/// purpose, a CPU runs if it can be executing code of the allocator. A CPU for which
/// [`offline_cpu`](crate::Allocator::offline_cpu) was called may still run, because that method only stops the use of
/// the CPU's pagesets. Code that still runs on the CPU reads these pagesets, so the CPU must answer. A CPU that starts
/// or wakes later must see all writes made before `quiesce` returned. The platform has state that recorded this CPU as
/// not running, and the CPU's first access to that state must therefore be an acquire.
///
/// `examples/embed` implements this trait with one mailbox per CPU.
pub trait Quiesce: Send + Sync {
    /// Waits until every operation that `cpu` had begun on its heads is complete.
    ///
    /// Every operation that `cpu` begins later sees the writes that the caller made before the call. After the call,
    /// the caller sees the writes that `cpu` made in the completed operations. A kernel can implement this method by
    /// sending an interrupt to `cpu` and waiting for its acknowledgement.
    fn quiesce(&self, cpu: CpuId);

    /// Whether [`Quiesce::quiesce`] works for other CPUs.
    ///
    /// If this method returns `false`, the creation of an allocator for more than one CPU fails with
    /// [`ConfigError::UnreachableCpus`](crate::error::ConfigError::UnreachableCpus).
    fn reaches_other_cpus(&self) -> bool {
        true
    }
}

/// An implementation of [`Quiesce`] for machines with at most one CPU, where no other CPU can have an operation in
/// progress.
#[derive(Clone, Copy, Debug, Default)]
pub struct OneCpu;

impl Quiesce for OneCpu {
    fn quiesce(&self, _cpu: CpuId) {}

    fn reaches_other_cpus(&self) -> bool {
        false
    }
}

/// Access to pagesets with plain loads and stores.
///
/// Use this type for kernels that call the allocator with preemption and interrupts off, so that no other code runs on
/// the CPU between two accesses of an operation.
///
/// [`Platform::current_cpu`] must return the CPU that runs the caller. If the result is stale, two CPUs can change one
/// pageset concurrently, and neither CPU detects the conflict.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pinned<Q: Quiesce = OneCpu>(pub Q);

// The acquire loads of lock words pair with the release store in `Head::open`, which another CPU may execute.
impl<P: Platform, Q: Quiesce> CpuLocal<P> for Pinned<Q> {
    #[inline(always)]
    fn pop_from(&self, _cpu: CpuId, slot: &PagesetSlot<'_, P>, step: Step) -> Popped {
        slot.head.pop(slot.slots, step, slot.head.load_lock_word())
    }

    #[inline(always)]
    fn push_to(&self, _cpu: CpuId, slot: &PagesetSlot<'_, P>, push: Push) -> bool {
        slot.head.push(slot.slots, push, slot.head.load_lock_word())
    }

    #[inline(always)]
    fn lock(&self, _cpu: CpuId, head: &Head<P>) -> bool {
        if head.load_lock_word().is_locked() {
            return false;
        }
        // Relaxed: no other code runs on this CPU, and other CPUs quiesce this CPU before they access its heads.
        head.lock_word.store(LockWord::LOCKED.bits(), Relaxed);
        true
    }

    fn lock_remote(&self, cpu: CpuId, head: &Head<P>) -> bool {
        lock_remotely(head, || {
            self.0.quiesce(cpu);
            true
        })
    }

    fn reaches_other_cpus(&self) -> bool {
        self.0.reaches_other_cpus()
    }
}

/// Locks a head of another CPU that accesses the head without atomic read-modify-write operations.
///
/// The function stores [`LockWord::LOCKED_REMOTELY`] to the lock word. It then calls `quiesce` to wait until every
/// operation in progress on the head is complete or undone, and checks that the lock word is unchanged. If `quiesce`
/// returns `false` because it could not wait, the function opens the head again. Implementations of
/// [`CpuLocal::lock_remote`] call this function.
#[must_use]
pub fn lock_remotely<P: Platform>(head: &Head<P>, quiesce: impl FnOnce() -> bool) -> bool {
    // Only one CPU at a time may attempt a remote lock of the head. After two CPUs had stored the same value, neither
    // could detect whether it owns the lock.
    // Acquire: takes the end of the previous attempt; pairs with `lock_remotely`.
    if head.remote_lock.swap(1, Acquire) != 0 {
        return false;
    }
    let remotely = LockWord::LOCKED_REMOTELY.bits();
    let lock_word = LockWord::from_bits(head.lock_word.load(Relaxed)); // relaxed: the exchange below detects a change
    let shut = !lock_word.is_locked()
        // AcqRel: takes the last holder's writes, publishes the attempt; pairs with `open`, `load_lock_word`.
        && head.lock_word.compare_exchange(lock_word.bits(), remotely, AcqRel, Relaxed).is_ok()
        && if quiesce() {
            // Acquire: takes the owning CPU's writes; pairs with the platform's quiesce.
            head.lock_word.load(Acquire) == remotely // otherwise the owning CPU locked the head first
        } else {
            // Open the head, unless the owning CPU has locked it meanwhile.
            // Release: publishes the writes that the exchange above took; pairs with `Head::load_lock_word`.
            let _ = head.lock_word.compare_exchange(remotely, LockWord::OPEN.bits(), Release, Relaxed);
            false
        };
    head.remote_lock.store(0, Release); // Release: publishes the end of the attempt; pairs with `lock_remotely`.
    shut
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::cells::AllZero;
    use crate::platform::one_thread::OneThread;

    fn open_head() -> Head<OneThread> {
        let head = Head::all_zero();
        head.open();
        head
    }

    #[test]
    fn a_remote_lock_that_the_owner_overwrites_is_not_held() {
        for left in [LockWord::LOCKED, LockWord::OPEN] {
            let head = open_head();
            // The owner had loaded the lock word before.
            let held = lock_remotely(&head, || {
                head.lock_word.store(left.bits(), Relaxed);
                true
            });
            assert_eq!((held, head.load_lock_word()), (false, left));
        }
    }

    /// Without a lock word to put back, a thread that saw the lock finds a head that it may use.
    #[test]
    fn a_remote_lock_that_cannot_wait_leaves_the_head_open() {
        for before in [LockWord::OPEN, LockWord::from_bits(0)] {
            let head = open_head();
            head.lock_word.store(before.bits(), Relaxed);
            let held = lock_remotely(&head, || false);
            assert_eq!((held, head.load_lock_word()), (false, LockWord::OPEN));
        }
    }

    #[test]
    fn of_two_remote_locks_at_once_at_most_one_is_held() {
        let head = open_head();
        let mut other = false;
        let held = lock_remotely(&head, || {
            head.open(); // the owner has overwritten the lock word and unlocked the head
            other = lock_remotely(&head, || true);
            true
        });
        assert!(!(held && other), "both hold the lock");
    }
}

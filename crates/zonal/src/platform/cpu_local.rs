//! Mutual exclusion between a CPU's operations on its own pagesets.
//!
//! A [`Head`] holds the state of the stack of single frames of one pageset. A pop or push changes only its *word*, so
//! one store commits it. The word holds the number of free slots of the stack and the differences of four counters
//! (`platform/pageset_word.rs` has the layout). A *step* is the value that an operation adds to the word or subtracts
//! from it. Two *limits* bound the word: an operation that would exceed them fails, changes nothing and falls back to
//! the slow path. So does every operation on a head whose *lock word* is locked. Neighbours: `alloc/mod.rs` and
//! `alloc/free.rs` try this first, `pageset/guard.rs` sets the limits, `platform/mod.rs` names the platform's choice.

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
    /// A load that is ordered before all later accesses.
    LoadAcquire(Field),
    /// A load. It may be executed later than listed here, but not after the committing store.
    Load(Field),
    /// A store. The last store of a sequence commits it.
    Store(Field),
}

/// The accesses of a sequence, in program order.
pub type Accesses = &'static [Access];

/// The accesses that pop a frame, as in [`CpuLocal::pop_current`].
///
/// If the limit is exceeded, the sequence fails before it loads the slot.
pub const POP: Accesses = &[
    Access::LoadAcquire(Field::LockWord),
    Access::Load(Field::Word),
    Access::Load(Field::PopLimit),
    Access::Load(Field::Slot),
    Access::Store(Field::Word),
];

/// The accesses that push a frame, as in [`CpuLocal::push_current`].
///
/// If the limit is exceeded, the sequence fails before it stores into the slot.
pub const PUSH: Accesses = &[
    Access::LoadAcquire(Field::LockWord),
    Access::Load(Field::Word),
    Access::Load(Field::PushLimit),
    Access::Store(Field::Slot),
    Access::Store(Field::Word),
];

/// The accesses that lock a head, as in [`CpuLocal::lock`].
///
/// If the head is locked, the sequence fails before the store.
pub const LOCK: Accesses = &[Access::LoadAcquire(Field::LockWord), Access::Store(Field::LockWord)];

/// The operations of a CPU on the heads of its own pagesets, none of which may wait.
///
/// Contract: after a successful lock, no other operation on that head succeeds until [`LockWord::OPEN`] is stored to the
/// lock word with release, and operations that succeed after that see all earlier writes. [`Head`] documents what
/// this requires. An operation may always fail.
pub trait CpuLocal<P: Platform>: Send + Sync {
    /// Pops the top frame of the current CPU's pageset slot, and returns that slot and the frame.
    ///
    /// Returns [`Popped::NOTHING`], with any slot, when the pop exceeds a limit, the head is locked, or the sequence is
    /// interrupted.
    fn pop_current<'m>(
        &self,
        platform: &P,
        slots: &PagesetSlots<'m, P>,
        step: Step,
    ) -> (&'m PagesetSlot<'m, P>, Popped);

    /// Pushes a frame onto the stack of the current CPU's pageset slot, and returns whether it was pushed or
    /// `refused` accepted it.
    ///
    /// `prepare` gets the slot and returns what to push, or `None` to push nothing. `refused` is called with the
    /// slot and the same when the push exceeds a limit, the head is locked, or the sequence is interrupted; it
    /// returns whether it accepted the frame.
    fn push_current<'m>(
        &self,
        platform: &P,
        slots: &PagesetSlots<'m, P>,
        prepare: impl FnOnce(&'m PagesetSlot<'m, P>) -> Option<Push>,
        refused: impl FnOnce(&'m PagesetSlot<'m, P>, Push) -> bool,
    ) -> bool;

    /// Locks a head of `cpu`, the CPU that the caller ran on a moment ago, and returns the previous lock word;
    /// `None` if the head is locked or the attempt was interrupted.
    fn lock(&self, cpu: CpuId, head: &Head<P>) -> Option<LockWord>;

    /// Locks a head of `cpu` from any CPU; returns the same as `lock`.
    fn lock_remote(&self, cpu: CpuId, head: &Head<P>) -> Option<LockWord>;

    /// Whether [`CpuLocal::lock_remote`] excludes the operations of other CPUs.
    ///
    /// If not, an allocator for more than one CPU is refused.
    fn reaches_other_cpus(&self) -> bool {
        true
    }
}

/// Access with one exchange and two stores per operation.
///
/// For programs whose threads may be preempted at any time, so that several threads may act for the same CPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct TryLock;

impl<P: Platform> CpuLocal<P> for TryLock {
    #[inline(always)]
    fn pop_current<'m>(
        &self,
        platform: &P,
        slots: &PagesetSlots<'m, P>,
        step: Step,
    ) -> (&'m PagesetSlot<'m, P>, Popped) {
        let cpu = platform.current_cpu();
        let Some(slot) = slots.of(cpu) else { return (slots.null_slot(), Popped::NOTHING) };
        let frame = under_lock(self, cpu, slot, |head| head.pop(slot.slots, step, LockWord::OPEN));
        (slot, frame.unwrap_or(Popped::NOTHING))
    }

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
        let Some(push) = prepare(slot) else { return false };
        let given = under_lock(self, cpu, slot, |head| head.push(slot.slots, push, LockWord::OPEN));
        given == Some(true) || refused(slot, push)
    }

    #[inline(always)]
    fn lock(&self, _cpu: CpuId, head: &Head<P>) -> Option<LockWord> {
        // Acquire: pairs with the release in `Head::open`. A locked lock word remains locked.
        let lock_word = LockWord::from_bits(head.lock_word.swap(LockWord::LOCKED.bits(), Acquire));
        (lock_word != LockWord::LOCKED).then_some(lock_word)
    }

    fn lock_remote(&self, cpu: CpuId, head: &Head<P>) -> Option<LockWord> {
        self.lock(cpu, head)
    }
}

#[inline(always)]
fn under_lock<P: Platform, R>(
    local: &TryLock,
    cpu: CpuId,
    slot: &PagesetSlot<'_, P>,
    work: impl FnOnce(&Head<P>) -> R,
) -> Option<R> {
    let lock_word = local.lock(cpu, slot.head)?;
    let result = (lock_word == LockWord::OPEN).then(|| work(slot.head));
    slot.head.lock_word.store(lock_word.bits(), Release); // Release: pairs with the acquire in `lock`.
    result
}

/// How a platform with [`Pinned`] access ensures that no operation is in progress on another CPU.
///
/// The allocator calls [`Quiesce::quiesce`] when it accesses the pagesets of one CPU from another:
/// [`drain_pagesets`](crate::Allocator::drain_pagesets), [`tick`](crate::Allocator::tick),
/// [`verify`](crate::Allocator::verify), run-time changes of CPUs, memory and settings, and requests that found no
/// frame anywhere else.
///
/// **With which CPU.** Any CPU of the machine except the one that [`current_cpu`](Platform::current_cpu) returns;
/// if that is not a CPU of the machine, any CPU. The CPU may be offline for the allocator, and it may never have
/// been started.
///
/// **In which context.** That of the caller of the allocator, so usually with interrupts off. At most the lock for
/// run-time changes ([`Platform::Lock`]) is held, and no lock of a zone. The caller may be in the middle of an
/// allocation.
///
/// **Two CPUs may quiesce each other**, and a third may wait for the lock for run-time changes meanwhile. So a CPU
/// must answer others wherever it waits with interrupts off: in `quiesce` itself, in
/// [`RawLock::lock`](crate::platform::RawLock::lock) of [`Platform::Lock`] and in [`Platform::relax`]. This is
/// always safe, because no operation on a head is in progress when the allocator calls the platform.
///
/// **CPUs that do not run** have no operation in progress, so `quiesce` may return at once for them. The platform
/// must decide this by whether the CPU can be executing code of the allocator, not by
/// [`offline_cpu`](crate::Allocator::offline_cpu), which only stops the use of the CPU's pagesets: code that still
/// runs there reads them, and must answer. A CPU that starts or wakes later must see all writes made before
/// `quiesce` returned: its first access to the state that recorded it as not running must be an acquire.
///
/// `examples/embed` implements this for CPUs that each have a mailbox.
pub trait Quiesce: Send + Sync {
    /// Waits until every operation that `cpu` had begun on its heads is complete.
    ///
    /// Every operation that `cpu` begins later sees what the caller wrote before the call, and the caller sees
    /// what `cpu` wrote in the completed operations. In a kernel: an interrupt to that CPU, and its answer.
    fn quiesce(&self, cpu: CpuId);

    /// Whether [`Quiesce::quiesce`] reaches other CPUs at all.
    ///
    /// If not, an allocator for more than one CPU is refused
    /// ([`ConfigError::UnreachableCpus`](crate::error::ConfigError::UnreachableCpus)).
    fn reaches_other_cpus(&self) -> bool {
        true
    }
}

/// A [`Quiesce`] for machines that are described with at most one CPU: no other CPU can have an operation in
/// progress.
#[derive(Clone, Copy, Debug, Default)]
pub struct OneCpu;

impl Quiesce for OneCpu {
    fn quiesce(&self, _cpu: CpuId) {}

    fn reaches_other_cpus(&self) -> bool {
        false
    }
}

/// Access with plain loads and stores.
///
/// For kernels that call the allocator with preemption and interrupts off, so that nothing else runs on the CPU
/// between two accesses of an operation.
///
/// [`Platform::current_cpu`] must return the CPU that runs the caller: with a stale answer two CPUs would change
/// one pageset concurrently without noticing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pinned<Q: Quiesce = OneCpu>(pub Q);

// The acquire loads of lock words pair with the release in `Head::open`, which may run on another CPU.
impl<P: Platform, Q: Quiesce> CpuLocal<P> for Pinned<Q> {
    #[inline(always)]
    fn pop_current<'m>(
        &self,
        platform: &P,
        slots: &PagesetSlots<'m, P>,
        step: Step,
    ) -> (&'m PagesetSlot<'m, P>, Popped) {
        let cpu = platform.current_cpu();
        let Some(slot) = slots.of(cpu) else { return (slots.null_slot(), Popped::NOTHING) };
        (slot, slot.head.pop(slot.slots, step, slot.head.load_lock_word()))
    }

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
        let Some(push) = prepare(slot) else { return false };
        slot.head.push(slot.slots, push, slot.head.load_lock_word()) || refused(slot, push)
    }

    #[inline(always)]
    fn lock(&self, _cpu: CpuId, head: &Head<P>) -> Option<LockWord> {
        let lock_word = head.load_lock_word();
        if lock_word.is_locked() {
            return None;
        }
        head.lock_word.store(LockWord::LOCKED.bits(), Relaxed); // relaxed: nothing else runs on this CPU; other CPUs quiesce it
        Some(lock_word)
    }

    fn lock_remote(&self, cpu: CpuId, head: &Head<P>) -> Option<LockWord> {
        lock_remotely(head, || {
            self.0.quiesce(cpu);
            true
        })
    }

    fn reaches_other_cpus(&self) -> bool {
        self.0.reaches_other_cpus()
    }
}

/// Locks a head that its own CPU uses without atomic operations.
///
/// Locks the lock word remotely, calls `quiesce` to wait until every operation in progress is complete or undone,
/// and checks that the lock word is unchanged. If `quiesce` returns `false` because it could not wait, restores
/// the lock word. For implementations of [`CpuLocal::lock_remote`].
pub fn lock_remotely<P: Platform>(head: &Head<P>, quiesce: impl FnOnce() -> bool) -> Option<LockWord> {
    // One remote lock attempt at a time: two CPUs that store the same value could not know which of them stored
    // it. Acquire: pairs with the release below.
    if head.remote_lock().swap(1, Acquire) != 0 {
        return None;
    }
    let remotely = LockWord::LOCKED_REMOTELY.bits();
    let lock_word = LockWord::from_bits(head.lock_word.load(Relaxed)); // relaxed: the exchange decides
    let shut = !lock_word.is_locked()
        // AcqRel: sees what the last holder wrote, and precedes what `quiesce` makes visible to other CPUs.
        && head.lock_word.compare_exchange(lock_word.bits(), remotely, AcqRel, Relaxed).is_ok()
        && if quiesce() {
            head.lock_word.load(Acquire) == remotely // else the owning CPU locked it first
        } else {
            // Undo; the owning CPU may have locked the head meanwhile. Relaxed: nothing was written.
            let _ = head.lock_word.compare_exchange(remotely, lock_word.bits(), Relaxed, Relaxed);
            false
        };
    head.remote_lock().store(0, Release); // Release: pairs with the acquire above.
    shut.then_some(lock_word)
}

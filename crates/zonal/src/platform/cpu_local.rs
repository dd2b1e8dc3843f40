//! How a CPU's operations on its own pagesets exclude each other.
//!
//! A [`Head`] is what decides about the stack of single frames of one pageset. All that changes by a
//! take or a give lies in its one *word*, so that one store commits it: how much room the stack
//! has, and the differences of four counters (`pageset_word.rs` says where). A *step* is what an
//! operation adds to the word or subtracts from it; two *limits* say how far the word may go; an
//! operation beyond them *trips* and changes nothing. The *gate* locks a head: whatever is held
//! against a shut gate trips. Neighbours: `alloc.rs` and `free.rs` use this first, `pageset.rs` sets
//! limits, `platform.rs` names the way that a platform has chosen.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

pub use crate::platform::pageset_slot::{
    Head, LOCKED, LOCKED_REMOTELY, NO_FRAME, OPEN, PagesetSlot, PagesetSlots, UNINIT,
};
use crate::platform::{Atomic, Platform};
use crate::units::CpuId;

/// What a sequence loads or stores of a pageset.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Field {
    /// [`Head::lock_word`].
    Gate,
    /// [`Head::word`].
    Word,
    /// [`Head::pop_limit`].
    TakeLimit,
    /// [`Head::push_limit`].
    GiveLimit,
    /// The slot of the frame that is popped or pushed.
    Slot,
}

/// One access of a sequence.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// A load that comes before all later accesses.
    LoadAcquire(Field),
    /// A load. It may come later than it stands here, though not after the store that commits.
    Load(Field),
    /// A store. The last one commits.
    Store(Field),
}

/// The accesses of a sequence, first to last.
pub type Accesses = &'static [Access];

/// Pops a frame: [`CpuLocal::pop_current`]. The sequence gives up before it loads the slot if the limit is
/// exceeded.
pub const POP: Accesses = &[
    Access::LoadAcquire(Field::Gate),
    Access::Load(Field::Word),
    Access::Load(Field::TakeLimit),
    Access::Load(Field::Slot),
    Access::Store(Field::Word),
];

/// Pushes a frame: [`CpuLocal::push_current`]. The sequence gives up before it stores into the slot if the
/// limit is exceeded.
pub const PUSH: Accesses = &[
    Access::LoadAcquire(Field::Gate),
    Access::Load(Field::Word),
    Access::Load(Field::GiveLimit),
    Access::Store(Field::Slot),
    Access::Store(Field::Word),
];

/// Locks a head: [`CpuLocal::lock`]. The sequence gives up before it stores if the gate is shut.
pub const LOCK: Accesses = &[Access::LoadAcquire(Field::Gate), Access::Store(Field::Gate)];

/// The operations of a CPU on the heads of its own pagesets, none of which may wait.
///
/// Contract: from a lock that succeeded until the gate is stored [`OPEN`], with release, no other
/// operation on that head succeeds, and those that succeed later see all that was written before.
/// [`Head`] says what that takes. Failing is always right.
pub trait CpuLocal<P: Platform>: Send + Sync {
    /// Takes the frame on top of the stack at the home that the caller's CPU uses; gives that home and
    /// the frame. [`NO_FRAME`], with any home, when the take trips or is disturbed.
    fn pop_current<'m>(
        &self,
        platform: &P,
        slots: &PagesetSlots<'m, P>,
        step: u64,
    ) -> (&'m PagesetSlot<'m, P>, u64);

    /// Puts a frame on top of the stack at the home that the caller's CPU uses. `prepare` sees that home
    /// and gives step and frame, or `None` to leave it. `refused` gets what the stack did not take, because the
    /// give trips or is disturbed, and says whether it took it. Says whether the frame was taken, by either.
    fn push_current<'m>(
        &self,
        platform: &P,
        slots: &PagesetSlots<'m, P>,
        prepare: impl FnOnce(&'m PagesetSlot<'m, P>) -> Option<(u64, u32)>,
        refused: impl FnOnce(&'m PagesetSlot<'m, P>, u64, u32) -> bool,
    ) -> bool;

    /// Locks a head of `cpu`, on which the caller was a moment ago; gives the gate as it was, or `None` when
    /// the head is locked or the attempt was disturbed.
    fn lock(&self, cpu: CpuId, head: &Head<P>) -> Option<u64>;

    /// Locks a head of `cpu`, whichever CPU the caller is on; as `lock`.
    fn lock_remote(&self, cpu: CpuId, head: &Head<P>) -> Option<u64>;

    /// Whether [`CpuLocal::lock_remote`] holds off the operations of another CPU. An allocator over more
    /// than one CPU is refused without.
    fn reaches_other_cpus(&self) -> bool {
        true
    }
}

/// One exchange and two stores an operation: for programs whose threads are preempted at any time
/// and share the CPUs they say they are on.
#[derive(Clone, Copy, Debug, Default)]
pub struct TryLock;

impl<P: Platform> CpuLocal<P> for TryLock {
    #[inline(always)]
    fn pop_current<'m>(
        &self,
        platform: &P,
        slots: &PagesetSlots<'m, P>,
        step: u64,
    ) -> (&'m PagesetSlot<'m, P>, u64) {
        let cpu = platform.current_cpu();
        let Some(slot) = slots.of(cpu) else { return (slots.nowhere(), NO_FRAME) };
        let frame = under_lock(self, cpu, slot, |head| head.pop(slot.slots, step, OPEN));
        (slot, frame.unwrap_or(NO_FRAME))
    }

    #[inline(always)]
    fn push_current<'m>(
        &self,
        platform: &P,
        slots: &PagesetSlots<'m, P>,
        prepare: impl FnOnce(&'m PagesetSlot<'m, P>) -> Option<(u64, u32)>,
        refused: impl FnOnce(&'m PagesetSlot<'m, P>, u64, u32) -> bool,
    ) -> bool {
        let cpu = platform.current_cpu();
        let Some(slot) = slots.of(cpu) else { return false };
        let Some((step, frame)) = prepare(slot) else { return false };
        let given = under_lock(self, cpu, slot, |head| head.push(slot.slots, step, frame, OPEN));
        given == Some(true) || refused(slot, step, frame)
    }

    #[inline(always)]
    fn lock(&self, _cpu: CpuId, head: &Head<P>) -> Option<u64> {
        // Acquire pairs with the release in `Head::open`. A gate that was shut stays so.
        let lock_word = head.lock_word.swap(LOCKED, Acquire);
        (lock_word != LOCKED).then_some(lock_word)
    }

    fn lock_remote(&self, cpu: CpuId, head: &Head<P>) -> Option<u64> {
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
    let result = (lock_word == OPEN).then(|| work(slot.head));
    slot.head.lock_word.store(lock_word, Release); // pairs with the acquire of `lock`
    result
}

/// How a platform with [`Pinned`] access makes sure that nothing is under way on another CPU.
///
/// The allocator calls [`Quiesce::quiesce`] where it works on the pagesets of a CPU from another one:
/// [`drain_pagesets`](crate::Allocator::drain_pagesets), [`tick`](crate::Allocator::tick),
/// [`verify`](crate::Allocator::verify), changes of CPUs, memory and settings at run time, and requests that
/// found no frame anywhere else.
///
/// **With which CPU.** Any that the machine has, except the one that
/// [`current_cpu`](Platform::current_cpu) names; with every one of them where that is none of the machine.
/// It may be offline for the allocator, and it may never have been started.
///
/// **In which context.** That of the caller of the allocator, so as a rule with interrupts off. At most the
/// lock of changes ([`Platform::Lock`]) is held, and no lock of a zone. The caller may be in
/// the middle of an allocation.
///
/// **Two CPUs may quiesce each other**, and a third may wait for the lock of changes meanwhile. So a
/// CPU must answer others wherever it waits with interrupts off: in `quiesce` itself, in
/// [`RawLock::lock`](crate::platform::RawLock::lock) of [`Platform::Lock`] and in [`Platform::relax`].
/// That is always safe, because no operation on a head is half done when the allocator calls the platform.
///
/// **CPUs that do not run** have nothing under way, so that `quiesce` returns at once for them. The
/// platform decides by whether the CPU can be executing code of the allocator, not by
/// [`offline_cpu`](crate::Allocator::offline_cpu), which only stops the use of its pagesets: code that still
/// runs there reads them, and must answer. A CPU that starts or wakes later must see all that was written
/// before `quiesce` returned: its first access of the state that said that it does not run acquires.
///
/// `examples/embed` is an implementation for CPUs that have a mailbox each.
pub trait Quiesce: Send + Sync {
    /// Returns once every operation that `cpu` had begun on its heads is done, and every one that it
    /// begins later sees what the caller wrote before the call. What `cpu` wrote in those operations is
    /// visible to the caller then. Kernels: an interrupt to that CPU, and its answer.
    fn quiesce(&self, cpu: CpuId);

    /// Whether [`Quiesce::quiesce`] reaches other CPUs at all. An allocator over more than one CPU is refused
    /// without ([`ConfigError::UnreachableCpus`](crate::error::ConfigError::UnreachableCpus)).
    fn reaches_other_cpus(&self) -> bool {
        true
    }
}

/// There is one CPU, so that nothing is ever under way on another: for machines that are described with
/// one CPU at most.
#[derive(Clone, Copy, Debug, Default)]
pub struct OneCpu;

impl Quiesce for OneCpu {
    fn quiesce(&self, _cpu: CpuId) {}

    fn reaches_other_cpus(&self) -> bool {
        false
    }
}

/// Plain loads and stores: for kernels that call the allocator with preemption and interrupts off,
/// so that nothing else runs on the CPU between two steps of an operation.
///
/// [`Platform::current_cpu`] must name the CPU that runs the caller: with a stale answer two CPUs would
/// change one pageset without seeing each other.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pinned<Q: Quiesce = OneCpu>(pub Q);

// Acquire loads of gates pair with the release in `Head::open`, perhaps on another CPU.
impl<P: Platform, Q: Quiesce> CpuLocal<P> for Pinned<Q> {
    #[inline(always)]
    fn pop_current<'m>(
        &self,
        platform: &P,
        slots: &PagesetSlots<'m, P>,
        step: u64,
    ) -> (&'m PagesetSlot<'m, P>, u64) {
        let cpu = platform.current_cpu();
        let Some(slot) = slots.of(cpu) else { return (slots.nowhere(), NO_FRAME) };
        (slot, slot.head.pop(slot.slots, step, slot.head.lock_word.load(Acquire)))
    }

    #[inline(always)]
    fn push_current<'m>(
        &self,
        platform: &P,
        slots: &PagesetSlots<'m, P>,
        prepare: impl FnOnce(&'m PagesetSlot<'m, P>) -> Option<(u64, u32)>,
        refused: impl FnOnce(&'m PagesetSlot<'m, P>, u64, u32) -> bool,
    ) -> bool {
        let cpu = platform.current_cpu();
        let Some(slot) = slots.of(cpu) else { return false };
        let Some((step, frame)) = prepare(slot) else { return false };
        slot.head.push(slot.slots, step, frame, slot.head.lock_word.load(Acquire))
            || refused(slot, step, frame)
    }

    #[inline(always)]
    fn lock(&self, _cpu: CpuId, head: &Head<P>) -> Option<u64> {
        let lock_word = head.lock_word.load(Acquire);
        if lock_word >= LOCKED_REMOTELY {
            return None;
        }
        head.lock_word.store(LOCKED, Relaxed); // nothing else runs on this CPU; others quiesce it
        Some(lock_word)
    }

    fn lock_remote(&self, cpu: CpuId, head: &Head<P>) -> Option<u64> {
        lock_remotely(head, || {
            self.0.quiesce(cpu);
            true
        })
    }

    fn reaches_other_cpus(&self) -> bool {
        self.0.reaches_other_cpus()
    }
}

/// Locks a head that its own CPU uses without atomic operations: shuts the gate, lets `quiesce` wait
/// until all that was under way is done or undone, and looks whether the gate is still shut so. When
/// `quiesce` says that it could not wait, the gate is as it was. For implementations of
/// [`CpuLocal::lock_remote`].
pub fn lock_remotely<P: Platform>(head: &Head<P>, quiesce: impl FnOnce() -> bool) -> Option<u64> {
    // One at a time: two who shut the gate could not tell each other's mark from their own.
    // Acquire pairs with the release below.
    if head.remote_lock().swap(1, Acquire) != 0 {
        return None;
    }
    let lock_word = head.lock_word.load(Relaxed); // relaxed: the exchange decides
    let shut = lock_word < LOCKED_REMOTELY
        // AcqRel: sees what the last holder wrote, and comes before what `quiesce` makes others see.
        && head.lock_word.compare_exchange(lock_word, LOCKED_REMOTELY, AcqRel, Relaxed).is_ok()
        && if quiesce() {
            head.lock_word.load(Acquire) == LOCKED_REMOTELY // else the head's own CPU came first
        } else {
            // Nothing was done; the head's own CPU may have come meanwhile. Relaxed: nothing was written.
            let _ = head.lock_word.compare_exchange(LOCKED_REMOTELY, lock_word, Relaxed, Relaxed);
            false
        };
    head.remote_lock().store(0, Release); // pairs with the acquire above
    shut.then_some(lock_word)
}

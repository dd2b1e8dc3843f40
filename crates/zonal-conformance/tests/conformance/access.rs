//! The ways in which CPUs access their pagesets, and the mistakes planted in them.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::Arc;

use zonal::Platform;
use zonal::platform::Atomic;
use zonal::platform::cpu_local::{
    Access as Step1, Accesses, CpuLocal, Field, Head, LockWord, OneCpu, POP, PUSH, PagesetSlot, PagesetSlots,
    Popped, Push, Quiesce, Step, TryLock, lock_remotely,
};
use zonal::units::CpuId;
use zonal_conformance::Event;

use crate::cells::{emit, has};
use crate::machine::{Mistake, Shared, Test, Way};
use crate::sequences::Change;

/// Loads the lock word last.
const POP_LATE: Accesses = &[
    Step1::Load(Field::Word),
    Step1::Load(Field::PopLimit),
    Step1::Load(Field::Slot),
    Step1::LoadAcquire(Field::LockWord),
    Step1::Store(Field::Word),
];
/// Stores the word before the slot.
const PUSH_EARLY: Accesses = &[
    Step1::LoadAcquire(Field::LockWord),
    Step1::Load(Field::Word),
    Step1::Load(Field::PushLimit),
    Step1::Store(Field::Word),
    Step1::Store(Field::Slot),
];

/// Access to pagesets in the machine's way.
pub(crate) struct Access(pub(crate) Arc<Shared>);

impl Access {
    fn change(&self, cpu: CpuId, slot: &PagesetSlot<'_, Test>, change: Change) -> Option<Popped> {
        let accesses = match change {
            Change::Pop(_) if has(Mistake::LockWordLast) => POP_LATE,
            Change::Pop(_) => POP,
            Change::Push(_) if has(Mistake::WordBeforeSlot) => PUSH_EARLY,
            Change::Push(_) => PUSH,
        };
        match (self.0.way, change) {
            (Way::Locks, Change::Pop(step)) => {
                Some(TryLock.pop_from(cpu, slot, step)).filter(|&popped| popped != Popped::NOTHING)
            }
            (Way::Locks, Change::Push(push)) => TryLock.push_to(cpu, slot, push).then_some(Popped::NOTHING),
            (way, _) => self.0.generations.change((cpu, way == Way::Sequences), slot, accesses, change),
        }
    }

    /// Waits until another CPU has no operation in progress.
    fn quiesce(&self, cpu: CpuId) {
        let is_skipped = has(Mistake::QuiesceReturnsEarly)
            || has(Mistake::QuiesceSkipsOffline) && !self.0.online[cpu.index()].load(Relaxed);
        if is_skipped {
            return;
        }
        match self.0.way {
            Way::Sequences => _ = self.0.generations.advance(cpu),
            Way::Alone => OneCpu.quiesce(cpu),
            Way::Pinned | Way::Locks => {
                emit(Event::Waits(Some(cpu)));
                self.0.kernel.cpu_local().0.quiesce(cpu);
            }
        }
    }
}

impl CpuLocal<Test> for Access {
    fn pop_current<'m>(
        &self,
        platform: &Test,
        slots: &PagesetSlots<'m, Test>,
        step: Step,
    ) -> (&'m PagesetSlot<'m, Test>, Popped) {
        let cpu = platform.current_cpu();
        let Some(slot) = slots.of(cpu) else { return (slots.null_slot(), Popped::NOTHING) };
        (slot, self.pop_from(cpu, slot, step))
    }

    fn pop_current_if<'m>(
        &self,
        platform: &Test,
        slots: &PagesetSlots<'m, Test>,
        step: Step,
        accepts: impl FnOnce(&PagesetSlot<'m, Test>) -> bool,
    ) -> Option<(&'m PagesetSlot<'m, Test>, Popped)> {
        let cpu = platform.current_cpu();
        let slot = slots.of(cpu).filter(|slot| accepts(slot))?;
        Some((slot, self.pop_from(cpu, slot, step)))
    }

    fn push_current<'m>(
        &self,
        platform: &Test,
        slots: &PagesetSlots<'m, Test>,
        prepare: impl FnOnce(&'m PagesetSlot<'m, Test>) -> Option<Push>,
        refused: impl FnOnce(&'m PagesetSlot<'m, Test>, Push) -> bool,
    ) -> bool {
        let cpu = platform.current_cpu();
        let Some(slot) = slots.of(cpu) else { return false };
        let Some(push) = prepare(slot) else { return false };
        self.push_to(cpu, slot, push) || refused(slot, push)
    }

    fn pop_from(&self, cpu: CpuId, slot: &PagesetSlot<'_, Test>, step: Step) -> Popped {
        self.change(cpu, slot, Change::Pop(step)).unwrap_or(Popped::NOTHING)
    }

    fn push_to(&self, cpu: CpuId, slot: &PagesetSlot<'_, Test>, push: Push) -> bool {
        self.change(cpu, slot, Change::Push(push)).is_some()
    }

    fn lock(&self, cpu: CpuId, head: &Head<Test>) -> bool {
        match self.0.way {
            Way::Locks => TryLock.lock(cpu, head),
            Way::Sequences => self.0.generations.lock(cpu, head),
            Way::Pinned | Way::Alone => {
                let lock_word = LockWord::from_bits(head.lock_word.load(Acquire));
                if !lock_word.is_locked() {
                    head.lock_word.store(LockWord::LOCKED.bits(), Relaxed);
                }
                !lock_word.is_locked()
            }
        }
    }

    fn lock_remote(&self, cpu: CpuId, head: &Head<Test>) -> bool {
        let remotely = LockWord::LOCKED_REMOTELY.bits();
        if self.0.way == Way::Locks {
            return TryLock.lock_remote(cpu, head);
        }
        if has(Mistake::NoRemoteFlag) {
            if LockWord::from_bits(head.lock_word.load(Acquire)).is_locked() {
                return false;
            }
            head.lock_word.store(remotely, Relaxed);
            self.quiesce(cpu);
            return head.lock_word.load(Acquire) == remotely;
        }
        if has(Mistake::RemoteLockUnchecked) {
            let open = LockWord::OPEN.bits();
            let is_locked = head.lock_word.compare_exchange(open, remotely, AcqRel, Relaxed).is_ok();
            if is_locked {
                self.quiesce(cpu);
            }
            return is_locked;
        }
        lock_remotely(head, || {
            self.quiesce(cpu);
            true
        })
    }

    fn reaches_other_cpus(&self) -> bool {
        self.0.way != Way::Alone || OneCpu.reaches_other_cpus()
    }
}

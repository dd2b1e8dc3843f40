//! The ways in which CPUs of a model access their own pagesets: with try-locks; with plain loads and stores while
//! interrupts are disabled, as in kernels; or with restartable sequences, as in programs on Linux.
//!
//! Related files: `cells.rs` is the platform, `world.rs` disables interrupts, and `restartable.rs` has the sequences.

use std::sync::atomic::Ordering::Relaxed;

use zonal::platform::cpu_local::{CpuLocal, Head, LockWord, Pinned, Popped, Push, Quiesce, Step, TryLock};
use zonal::platform::pageset_slot::{PagesetSlot, PagesetSlots};
use zonal::platform::{Atomic, RawLock};
use zonal::units::CpuId;

use crate::interleavings::cells::LockHandle;
use crate::interleavings::checker::Checker;
use crate::interleavings::model::Model;
use crate::interleavings::restartable::Restartable;

/// One lock for each CPU. Code that runs on the CPU with interrupts disabled holds the lock.
pub(crate) struct Interrupts<C> {
    cpus: Vec<LockHandle<C>>,
    /// Whether remote locks are checked. The check is one more access, which makes every exploration larger.
    are_locks_checked: bool,
}

impl<C> Clone for Interrupts<C> {
    fn clone(&self) -> Self {
        Self { cpus: self.cpus.clone(), ..*self }
    }
}

impl<C: Checker> Interrupts<C> {
    /// Creates the locks of `cpus` CPUs.
    pub(crate) fn new(cpus: usize) -> Self {
        Self { cpus: (0..cpus).map(|_| LockHandle::new()).collect(), are_locks_checked: false }
    }

    /// Returns the locks, with a check that the holder of a remote lock holds it.
    pub(crate) fn with_checked_locks(self) -> Self {
        Self { are_locks_checked: true, ..self }
    }

    /// Calls `work` with the interrupts of the caller's CPU disabled.
    pub(crate) fn off<R>(&self, work: impl FnOnce() -> R) -> R {
        let of_cpu = &self.cpus[C::cpu() as usize];
        of_cpu.lock();
        let result = work();
        of_cpu.unlock();
        result
    }
}

/// A CPU handles an interrupt as soon as its interrupts are enabled.
impl<C: Checker> Quiesce for Interrupts<C> {
    fn quiesce(&self, cpu: CpuId) {
        let of_cpu = &self.cpus[cpu.index()];
        of_cpu.lock();
        of_cpu.unlock();
    }
}

/// The way in which the CPUs of a model access their pagesets.
pub(crate) enum Way<C: Checker> {
    /// Try-locks, as in programs.
    Locks,
    /// Disabled interrupts, as in kernels.
    Interrupts(Pinned<Interrupts<C>>),
    /// Restartable sequences, as in programs on Linux.
    Sequences(Restartable<C>),
}

impl<C: Checker> CpuLocal<Model<C>> for Way<C> {
    fn pop_current<'m>(
        &self,
        platform: &Model<C>,
        slots: &PagesetSlots<'m, Model<C>>,
        step: Step,
    ) -> (&'m PagesetSlot<'m, Model<C>>, Popped) {
        match self {
            Self::Locks => TryLock.pop_current(platform, slots, step),
            Self::Interrupts(pinned) => pinned.pop_current(platform, slots, step),
            Self::Sequences(sequences) => sequences.pop_current(platform, slots, step),
        }
    }

    fn pop_current_if<'m>(
        &self,
        platform: &Model<C>,
        slots: &PagesetSlots<'m, Model<C>>,
        step: Step,
        accepts: impl FnOnce(&PagesetSlot<'m, Model<C>>) -> bool,
    ) -> Option<(&'m PagesetSlot<'m, Model<C>>, Popped)> {
        match self {
            Self::Locks => TryLock.pop_current_if(platform, slots, step, accepts),
            Self::Interrupts(pinned) => pinned.pop_current_if(platform, slots, step, accepts),
            Self::Sequences(sequences) => sequences.pop_current_if(platform, slots, step, accepts),
        }
    }

    fn push_current<'m>(
        &self,
        platform: &Model<C>,
        slots: &PagesetSlots<'m, Model<C>>,
        prepare: impl FnOnce(&'m PagesetSlot<'m, Model<C>>) -> Option<Push>,
        refused: impl FnOnce(&'m PagesetSlot<'m, Model<C>>, Push) -> bool,
    ) -> bool {
        match self {
            Self::Locks => TryLock.push_current(platform, slots, prepare, refused),
            Self::Interrupts(pinned) => pinned.push_current(platform, slots, prepare, refused),
            Self::Sequences(sequences) => sequences.push_current(platform, slots, prepare, refused),
        }
    }

    fn pop_from(&self, cpu: CpuId, slot: &PagesetSlot<'_, Model<C>>, step: Step) -> Popped {
        match self {
            Self::Locks => TryLock.pop_from(cpu, slot, step),
            Self::Interrupts(pinned) => pinned.pop_from(cpu, slot, step),
            Self::Sequences(sequences) => sequences.pop_from(cpu, slot, step),
        }
    }

    fn push_to(&self, cpu: CpuId, slot: &PagesetSlot<'_, Model<C>>, push: Push) -> bool {
        match self {
            Self::Locks => TryLock.push_to(cpu, slot, push),
            Self::Interrupts(pinned) => pinned.push_to(cpu, slot, push),
            Self::Sequences(sequences) => sequences.push_to(cpu, slot, push),
        }
    }

    fn lock(&self, cpu: CpuId, head: &Head<Model<C>>) -> bool {
        match self {
            Self::Locks => TryLock.lock(cpu, head),
            Self::Interrupts(pinned) => pinned.lock(cpu, head),
            Self::Sequences(sequences) => sequences.lock(cpu, head),
        }
    }

    fn lock_remote(&self, cpu: CpuId, head: &Head<Model<C>>) -> bool {
        match self {
            Self::Locks => TryLock.lock_remote(cpu, head),
            Self::Interrupts(pinned) => {
                let is_locked = pinned.lock_remote(cpu, head);
                if is_locked && pinned.0.are_locks_checked {
                    // Relaxed: the last store is that of this thread.
                    let found = LockWord::from_bits(head.lock_word.load(Relaxed));
                    assert_eq!(found, LockWord::LOCKED_REMOTELY, "the holder has lost its lock");
                }
                is_locked
            }
            Self::Sequences(sequences) => sequences.lock_remote(cpu, head),
        }
    }
}

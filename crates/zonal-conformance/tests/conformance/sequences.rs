//! Restartable sequences that software makes, and the same accesses without restarts.
//!
//! A sequence stores only while the generation of its CPU is that of its begin. The start of another sequence on the CPU,
//! and a barrier, advance the generation.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Mutex, PoisonError};

use zonal::platform::Atomic;
use zonal::platform::cpu_local::{Access, Accesses, Field, Head, LockWord, PagesetSlot, Popped, Push, Step};
use zonal::units::CpuId;
use zonal_conformance::Event;

use crate::cells::{emit, quietly};
use crate::machine::Test;

/// The generations of CPUs.
pub(crate) struct Generations(Vec<Mutex<u64>>);

/// A pop or push.
#[derive(Clone, Copy)]
pub(crate) enum Change {
    Pop(Step),
    Push(Push),
}

/// Means that a sequence did not store.
struct Abort;

impl Generations {
    pub(crate) fn new(cpus: usize) -> Self {
        Self((0..cpus).map(|_| Mutex::new(0)).collect())
    }

    /// Ends the running sequence of a CPU. Returns the generation of the next.
    pub(crate) fn advance(&self, cpu: CpuId) -> u64 {
        let mut generation = self.0[cpu.index()].lock().unwrap_or_else(PoisonError::into_inner);
        *generation += 1;
        *generation
    }

    /// Stores unless the generation has changed; always without a generation.
    fn store(&self, cpu: CpuId, begun: Option<u64>, store: impl FnOnce()) -> Result<(), Abort> {
        emit(Event::Access); // before the mutex is locked, so that the other job can go on
        let Some(begun) = begun else {
            quietly(store);
            return Ok(());
        };
        let generation = self.0[cpu.index()].lock().unwrap_or_else(PoisonError::into_inner);
        if *generation != begun {
            return Err(Abort);
        }
        quietly(store);
        Ok(())
    }

    /// Pops or pushes with these accesses, in one sequence if `restarts`.
    pub(crate) fn change(
        &self,
        (cpu, restarts): (CpuId, bool),
        slot: &PagesetSlot<'_, Test>,
        accesses: Accesses,
        change: Change,
    ) -> Option<Popped> {
        let begun = restarts.then(|| self.advance(cpu));
        self.try_change((cpu, begun), slot, accesses, change).ok()
    }

    fn try_change(
        &self,
        (cpu, begun): (CpuId, Option<u64>),
        slot: &PagesetSlot<'_, Test>,
        accesses: Accesses,
        change: Change,
    ) -> Result<Popped, Abort> {
        let head = slot.head;
        let (mut lock_word, mut word, mut limit, mut frame) = (None, 0, 0, 0);
        for &access in accesses {
            let next = match change {
                Change::Pop(step) => word + step.bits(),
                Change::Push(push) => word.wrapping_sub(push.step.bits()),
            };
            let place = match change {
                Change::Pop(_) => word,
                Change::Push(_) => next,
            } & ((1 << 27) - 1);
            let in_slots = || slot.slots.get(place as usize).ok_or(Abort);
            let is_refused = || {
                let reach = match change {
                    Change::Pop(_) => next.wrapping_add(limit),
                    Change::Push(_) => u64::wrapping_sub(limit, next),
                };
                lock_word.is_some_and(|lock_word: u64| reach & lock_word != 0)
            };
            match (access, change) {
                (Access::LoadAcquire(Field::LockWord) | Access::Load(Field::LockWord), _) => {
                    lock_word = Some(head.lock_word.load(Acquire));
                }
                (Access::Load(Field::Word), _) => word = head.word.load(Relaxed),
                (Access::Load(Field::PopLimit), _) => limit = head.pop_limit.load(Relaxed),
                (Access::Load(Field::PushLimit), _) => limit = head.push_limit.load(Relaxed),
                _ if is_refused() => return Err(Abort),
                (Access::Load(Field::Slot), _) => frame = in_slots()?.load(Relaxed),
                (Access::Store(Field::Word), _) => {
                    self.store(cpu, begun, || head.word.store(next, Release))?;
                    word = if accesses.last() == Some(&access) { next } else { word };
                }
                (Access::Store(Field::Slot), Change::Push(push)) => {
                    let cell = in_slots()?;
                    self.store(cpu, begun, || cell.store(push.frame, Relaxed))?;
                }
                other => panic!("{other:?} is not an access of a pop or push", other = other.0),
            }
        }
        Ok(Popped::frame(frame))
    }

    /// Locks a head by a sequence of its CPU.
    pub(crate) fn lock(&self, cpu: CpuId, head: &Head<Test>) -> bool {
        let begun = self.advance(cpu);
        let lock_word = LockWord::from_bits(head.lock_word.load(Acquire));
        let store = || head.lock_word.store(LockWord::LOCKED.bits(), Relaxed);
        !lock_word.is_locked() && self.store(cpu, Some(begun), store).is_ok()
    }
}

//! A model of restartable sequences, which a Linux pool implements with machine instructions.
//!
//! The accesses are those of the tables next to `Head`, in their order, and other threads may run between any two of
//! them. A sequence is aborted unless it commits before anything else runs on its CPU. To model this, each CPU has a
//! *generation*, and a sequence stores only while the generation is unchanged. The start of a sequence and a remote
//! barrier advance the generation.
//!
//! The CPU of a thread matters only when a sequence begins. Therefore two threads on one CPU also model a thread that
//! migrates at any moment while it holds a lock. Loads have the ordering of the table, and stores are relaxed. Sources:
//! Linux `rseq(2)`, `membarrier(2)`.
//!
//! Related files: `ways.rs` uses the sequences, and `sequences.rs` has the scenarios.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use zonal::platform::cpu_local::{
    Access, Accesses, CpuLocal, Field, Head, LOCK, LockWord, POP, PUSH, Popped, Push, Step, lock_remotely,
};
use zonal::platform::pageset_slot::{PagesetSlot, PagesetSlots};
use zonal::platform::{Atomic, Platform, RawLock};
use zonal::units::CpuId;

use crate::interleavings::cells::{Handle, LockHandle};
use crate::interleavings::checker::Checker;
use crate::interleavings::model::Model;

/// A platform's orders of accesses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Orders {
    pub(crate) pop: Accesses,
    pub(crate) push: Accesses,
    pub(crate) lock: Accesses,
}

/// The orders that the contract requires.
pub(crate) const CONTRACT: Orders = Orders { pop: POP, push: PUSH, lock: LOCK };

/// The sequences of a model's CPUs.
pub(crate) struct Restartable<C> {
    orders: Orders,
    cpus: Vec<Cpu<C>>,
}

/// The state of a CPU.
struct Cpu<C> {
    lock: LockHandle<C>,
    /// Identifies the running sequence. It is changed and compared under the lock, and is not part of the model.
    generation: AtomicU64,
}

impl<C: Checker> Cpu<C> {
    /// Aborts the running sequence, and returns the generation of the next one.
    fn interrupt(&self) -> u64 {
        self.lock.lock();
        let generation = self.generation.fetch_add(1, Relaxed) + 1;
        self.lock.unlock();
        generation
    }
}

/// A running sequence and its registers.
struct Sequence<'a, C: Checker> {
    cpu: &'a Cpu<C>,
    generation: u64,
    head: &'a Head<Model<C>>,
    slots: &'a [Handle<C, u32>],
    lock_word: Option<u64>,
    word: Option<u64>,
    limit: Option<u64>,
    slot: u32,
}

/// Means that a sequence was aborted before its last store.
struct Abort;

/// A pop or push.
#[derive(Clone, Copy)]
enum Change {
    Pop(Step),
    Push(Step),
}

impl<C: Checker> Sequence<'_, C> {
    /// Returns the value of the word after `step`, unless a limit or a lock forbids the step.
    fn next(&self, step: Change) -> Result<u64, Abort> {
        let loaded = "invalid order of accesses: lock word, word and limit must be loaded before the slot";
        let (lock_word, word, limit) =
            (self.lock_word.expect(loaded), self.word.expect(loaded), self.limit.expect(loaded));
        let (next, reach) = match step {
            Change::Pop(step) => {
                let next = word.wrapping_add(step.bits());
                (next, next.wrapping_add(limit))
            }
            Change::Push(step) => {
                let next = word.wrapping_sub(step.bits());
                (next, limit.wrapping_sub(next))
            }
        };
        if reach & lock_word == 0 { Ok(next) } else { Err(Abort) }
    }

    /// Returns the slot that `step` pops or pushes.
    fn slot_of(&self, step: Change) -> Result<&Handle<C, u32>, Abort> {
        let next = self.next(step)?;
        let word = match step {
            Change::Pop(_) => self.word.expect("`next` has checked that the word is loaded"),
            Change::Push(_) => next,
        };
        Ok(&self.slots[(word & ((1 << 27) - 1)) as usize])
    }

    /// Runs `store`, unless other code ran on the CPU since the sequence began.
    fn store(&self, store: impl FnOnce()) -> Result<(), Abort> {
        self.cpu.lock.lock();
        let goes_on = self.cpu.generation.load(Relaxed) == self.generation;
        if goes_on {
            store();
        }
        self.cpu.lock.unlock();
        if goes_on { Ok(()) } else { Err(Abort) }
    }

    /// Runs the accesses of a pop or push. Returns the value of the slot.
    fn run(&mut self, accesses: Accesses, step: Change) -> Result<u32, Abort> {
        for &access in accesses {
            let (field, order) = match access {
                Access::LoadAcquire(field) => (field, Acquire),
                Access::Load(field) | Access::Store(field) => (field, Relaxed),
            };
            match (access, field) {
                (Access::Store(_), Field::Word) => {
                    let next = self.next(step)?;
                    self.store(|| self.head.word.store(next, Relaxed))?;
                }
                (Access::Store(_), Field::Slot) => {
                    let slot = self.slot_of(step)?;
                    self.store(|| slot.store(self.slot, Relaxed))?;
                }
                (Access::Store(_), other) => panic!("a pop or push must not store {other:?}"),
                (_, Field::LockWord) => self.lock_word = Some(self.head.lock_word.load(order)),
                (_, Field::Word) => self.word = Some(self.head.word.load(order)),
                (_, Field::PopLimit) => self.limit = Some(self.head.pop_limit.load(order)),
                (_, Field::PushLimit) => self.limit = Some(self.head.push_limit.load(order)),
                (_, Field::Slot) => self.slot = self.slot_of(step)?.load(order),
            }
        }
        Ok(self.slot)
    }

    /// Locks the lock word.
    fn run_lock(&mut self, accesses: Accesses) -> Result<(), Abort> {
        for &access in accesses {
            match access {
                Access::LoadAcquire(Field::LockWord) => {
                    self.lock_word = Some(self.head.lock_word.load(Acquire));
                }
                Access::Load(Field::LockWord) => self.lock_word = Some(self.head.lock_word.load(Relaxed)),
                Access::Store(Field::LockWord) => {
                    let lock_word = self.lock_word.expect("the lock word is loaded before it is stored");
                    if LockWord::from_bits(lock_word).is_locked() {
                        return Err(Abort);
                    }
                    self.store(|| self.head.lock_word.store(LockWord::LOCKED.bits(), Relaxed))?;
                }
                other => panic!("a lock sequence must not access {other:?}"),
            }
        }
        Ok(())
    }
}

impl<C: Checker> Restartable<C> {
    /// Creates the sequences of `cpus` CPUs.
    pub(crate) fn new(cpus: usize, orders: Orders) -> Self {
        let cpu = |_| Cpu { lock: LockHandle::new(), generation: AtomicU64::new(0) };
        Self { orders, cpus: (0..cpus).map(cpu).collect() }
    }

    /// Begins a sequence of the calling thread on its CPU.
    fn begin<'a>(&'a self, head: &'a Head<Model<C>>, slots: &'a [Handle<C, u32>]) -> Sequence<'a, C> {
        let cpu = &self.cpus[C::cpu() as usize];
        let generation = cpu.interrupt();
        Sequence { cpu, generation, head, slots, lock_word: None, word: None, limit: None, slot: 0 }
    }
}

impl<C: Checker> CpuLocal<Model<C>> for Restartable<C> {
    fn pop_current<'m>(
        &self,
        platform: &Model<C>,
        slots: &PagesetSlots<'m, Model<C>>,
        step: Step,
    ) -> (&'m PagesetSlot<'m, Model<C>>, Popped) {
        let Some(slot) = slots.of(platform.current_cpu()) else {
            return (slots.null_slot(), Popped::NOTHING);
        };
        let frame = self.begin(slot.head, slot.slots).run(self.orders.pop, Change::Pop(step));
        (slot, frame.map_or(Popped::NOTHING, Popped::frame))
    }

    fn pop_current_if<'m>(
        &self,
        platform: &Model<C>,
        slots: &PagesetSlots<'m, Model<C>>,
        step: Step,
        accepts: impl FnOnce(&PagesetSlot<'m, Model<C>>) -> bool,
    ) -> Option<(&'m PagesetSlot<'m, Model<C>>, Popped)> {
        let slot = slots.of(platform.current_cpu()).filter(|slot| accepts(slot))?;
        let frame = self.begin(slot.head, slot.slots).run(self.orders.pop, Change::Pop(step));
        Some((slot, frame.map_or(Popped::NOTHING, Popped::frame)))
    }

    fn push_current<'m>(
        &self,
        platform: &Model<C>,
        slots: &PagesetSlots<'m, Model<C>>,
        prepare: impl FnOnce(&'m PagesetSlot<'m, Model<C>>) -> Option<Push>,
        refused: impl FnOnce(&'m PagesetSlot<'m, Model<C>>, Push) -> bool,
    ) -> bool {
        let Some(slot) = slots.of(platform.current_cpu()) else { return false };
        let Some(push) = prepare(slot) else { return false };
        let mut sequence = self.begin(slot.head, slot.slots);
        sequence.slot = push.frame;
        sequence.run(self.orders.push, Change::Push(push.step)).is_ok() || refused(slot, push)
    }

    fn pop_from(&self, cpu: CpuId, slot: &PagesetSlot<'_, Model<C>>, step: Step) -> Popped {
        assert_eq!(cpu.get(), C::cpu(), "threads of a model stay on their CPU");
        let frame = self.begin(slot.head, slot.slots).run(self.orders.pop, Change::Pop(step));
        frame.map_or(Popped::NOTHING, Popped::frame)
    }

    fn push_to(&self, cpu: CpuId, slot: &PagesetSlot<'_, Model<C>>, push: Push) -> bool {
        assert_eq!(cpu.get(), C::cpu(), "threads of a model stay on their CPU");
        let mut sequence = self.begin(slot.head, slot.slots);
        sequence.slot = push.frame;
        sequence.run(self.orders.push, Change::Push(push.step)).is_ok()
    }

    fn lock(&self, cpu: CpuId, head: &Head<Model<C>>) -> bool {
        assert_eq!(cpu.get(), C::cpu(), "threads of a model stay on their CPU");
        self.begin(head, &[]).run_lock(self.orders.lock).is_ok()
    }

    fn lock_remote(&self, cpu: CpuId, head: &Head<Model<C>>) -> bool {
        lock_remotely(head, || {
            self.cpus[cpu.index()].interrupt();
            true
        })
    }
}

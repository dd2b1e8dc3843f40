//! Restartable sequences as a model: what a Linux pool does by the instructions of its processor.
//!
//! The accesses come from the tables beside `Head`, one after the other, and other threads run between any two
//! of them. A sequence is undone unless it commits before anything else runs on its CPU: each CPU has a
//! *generation*, which a sequence advances when it begins and a remote barrier advances too, and a sequence
//! stores only while the generation is still its own. A thread's CPU counts when its sequence begins, and
//! never else: threads on one CPU are also threads of which one migrates at any moment of its holding a
//! lock. Loads have the ordering of the table, stores have none. Neighbours: `ways.rs`, `sequences.rs` has the
//! scenarios. Source: Linux `rseq(2)`, `membarrier(2)`.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use zonal::platform::cpu_local::{
    Access, Accesses, CpuLocal, Field, Head, LOCK, LOCKED, LOCKED_REMOTELY, NO_FRAME, POP, PUSH,
    lock_remotely,
};
use zonal::platform::pageset_slot::{PagesetSlot, PagesetSlots};
use zonal::platform::{Atomic, Platform, RawLock};
use zonal::units::CpuId;

use crate::interleavings::cells::{Handle, LockHandle, Model};
use crate::interleavings::checker::Checker;

/// The orders of accesses of a platform.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Orders {
    pub(crate) pop: Accesses,
    pub(crate) push: Accesses,
    pub(crate) lock: Accesses,
}

/// The orders of the contract.
pub(crate) const CONTRACT: Orders = Orders { pop: POP, push: PUSH, lock: LOCK };

/// The sequences of the CPUs of a model.
pub(crate) struct Restartable<C> {
    orders: Orders,
    cpus: Vec<Cpu<C>>,
}

/// What runs on a CPU.
struct Cpu<C> {
    lock: LockHandle<C>,
    /// Whose sequence it is; changed and compared under the lock. Not part of the model.
    generation: AtomicU64,
}

impl<C: Checker> Cpu<C> {
    /// Ends all that is under way here, and gives the generation of what begins.
    fn interrupt(&self) -> u64 {
        self.lock.lock();
        let generation = self.generation.fetch_add(1, Relaxed) + 1;
        self.lock.unlock();
        generation
    }
}

/// A sequence under way, with its registers.
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

/// Why a sequence ends before its last store.
struct Abort;

/// Pops and pushes.
#[derive(Clone, Copy)]
enum Step {
    Pop(u64),
    Push(u64),
}

impl<C: Checker> Sequence<'_, C> {
    /// The word after `step`, if all that it depends on is loaded and nothing forbids it.
    fn next(&self, step: Step) -> Result<u64, Abort> {
        let loaded = "the order of accesses is of no use: gate, word and limit decide about the slot";
        let (lock_word, word, limit) =
            (self.lock_word.expect(loaded), self.word.expect(loaded), self.limit.expect(loaded));
        let (next, reach) = match step {
            Step::Pop(step) => (word.wrapping_add(step), word.wrapping_add(step).wrapping_add(limit)),
            Step::Push(step) => (word.wrapping_sub(step), limit.wrapping_sub(word.wrapping_sub(step))),
        };
        if reach & lock_word == 0 { Ok(next) } else { Err(Abort) }
    }

    /// The slot that `step` is about.
    fn slot_of(&self, step: Step) -> Result<&Handle<C, u32>, Abort> {
        let next = self.next(step)?;
        let word = match step {
            Step::Pop(_) => self.word.expect("it was part of the sum"),
            Step::Push(_) => next,
        };
        Ok(&self.slots[(word & ((1 << 27) - 1)) as usize])
    }

    /// Stores, unless something else ran on the CPU since the sequence began.
    fn store(&self, store: impl FnOnce()) -> Result<(), Abort> {
        self.cpu.lock.lock();
        let goes_on = self.cpu.generation.load(Relaxed) == self.generation;
        if goes_on {
            store();
        }
        self.cpu.lock.unlock();
        if goes_on { Ok(()) } else { Err(Abort) }
    }

    /// Pops or pushes.
    fn run(&mut self, accesses: Accesses, step: Step) -> Result<u32, Abort> {
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
                (Access::Store(_), other) => panic!("no step stores {other:?}"),
                (_, Field::Gate) => self.lock_word = Some(self.head.lock_word.load(order)),
                (_, Field::Word) => self.word = Some(self.head.word.load(order)),
                (_, Field::TakeLimit) => self.limit = Some(self.head.pop_limit.load(order)),
                (_, Field::GiveLimit) => self.limit = Some(self.head.push_limit.load(order)),
                (_, Field::Slot) => self.slot = self.slot_of(step)?.load(order),
            }
        }
        Ok(self.slot)
    }

    /// Shuts the gate; gives what it was.
    fn run_lock(&mut self, accesses: Accesses) -> Result<u64, Abort> {
        for &access in accesses {
            match access {
                Access::LoadAcquire(Field::Gate) => self.lock_word = Some(self.head.lock_word.load(Acquire)),
                Access::Load(Field::Gate) => self.lock_word = Some(self.head.lock_word.load(Relaxed)),
                Access::Store(Field::Gate) => {
                    let lock_word = self.lock_word.expect("a gate is looked at before it is shut");
                    if lock_word >= LOCKED_REMOTELY {
                        return Err(Abort);
                    }
                    self.store(|| self.head.lock_word.store(LOCKED, Relaxed))?;
                }
                other => panic!("no lock does {other:?}"),
            }
        }
        self.lock_word.ok_or(Abort)
    }
}

impl<C: Checker> Restartable<C> {
    /// Of so many CPUs.
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
        step: u64,
    ) -> (&'m PagesetSlot<'m, Model<C>>, u64) {
        let Some(slot) = slots.of(platform.current_cpu()) else { return (slots.nowhere(), NO_FRAME) };
        let frame = self.begin(slot.head, slot.slots).run(self.orders.pop, Step::Pop(step));
        (slot, frame.map_or(NO_FRAME, u64::from))
    }

    fn push_current<'m>(
        &self,
        platform: &Model<C>,
        slots: &PagesetSlots<'m, Model<C>>,
        prepare: impl FnOnce(&'m PagesetSlot<'m, Model<C>>) -> Option<(u64, u32)>,
        refused: impl FnOnce(&'m PagesetSlot<'m, Model<C>>, u64, u32) -> bool,
    ) -> bool {
        let Some(slot) = slots.of(platform.current_cpu()) else { return false };
        let Some((step, frame)) = prepare(slot) else { return false };
        let mut sequence = self.begin(slot.head, slot.slots);
        sequence.slot = frame;
        sequence.run(self.orders.push, Step::Push(step)).is_ok() || refused(slot, step, frame)
    }

    fn lock(&self, cpu: CpuId, head: &Head<Model<C>>) -> Option<u64> {
        assert_eq!(cpu.get(), C::cpu(), "threads of a model stay on their CPU");
        self.begin(head, &[]).run_lock(self.orders.lock).ok()
    }

    fn lock_remote(&self, cpu: CpuId, head: &Head<Model<C>>) -> Option<u64> {
        lock_remotely(head, || {
            self.cpus[cpu.index()].interrupt();
            true
        })
    }
}

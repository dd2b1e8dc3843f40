//! Access orders that violate the contract of `Head`, each with a scenario in which loom must find the violation.
//!
//! They show that the model detects such errors.
//!
//! Related files: `sequences.rs` has the scenarios.

use zonal::platform::cpu_local::{Access, Accesses, Field};

use crate::interleavings::restartable::{CONTRACT, Orders};
use crate::interleavings::sequences::{
    lock_against_migrating_drain, pop_against_drain, pop_against_migrating_drain, pop_against_tick,
    push_against_drain, push_against_migrating_refill, push_against_tick,
};
use crate::under_loom::Loom;

/// A description of the violation, its orders, and a scenario that must find it.
pub(crate) type Broken = (&'static str, Orders, fn(Orders));

/// Returns sequences that load the lock word after the other fields of the head.
pub(crate) fn lock_word_last() -> [Broken; 6] {
    const POP: Accesses = &[
        Access::Load(Field::Word),
        Access::Load(Field::PopLimit),
        Access::LoadAcquire(Field::LockWord),
        Access::Load(Field::Slot),
        Access::Store(Field::Word),
    ];
    const PUSH: Accesses = &[
        Access::Load(Field::Word),
        Access::Load(Field::PushLimit),
        Access::LoadAcquire(Field::LockWord),
        Access::Store(Field::Slot),
        Access::Store(Field::Word),
    ];
    let (pop, push) = (Orders { pop: POP, ..CONTRACT }, Orders { push: PUSH, ..CONTRACT });
    [
        ("pop against drain", pop, pop_against_drain::<Loom>),
        ("pop against tick", pop, pop_against_tick::<Loom>),
        ("pop against migrating drain", pop, pop_against_migrating_drain::<Loom>),
        ("push against drain", push, push_against_drain::<Loom>),
        ("push against tick", push, push_against_tick::<Loom>),
        ("push against migrating refill", push, push_against_migrating_refill::<Loom>),
    ]
}

/// Returns sequences that load the lock word first, without acquire.
pub(crate) fn lock_word_relaxed() -> [Broken; 3] {
    const POP: Accesses = &[
        Access::Load(Field::LockWord),
        Access::Load(Field::Word),
        Access::Load(Field::PopLimit),
        Access::Load(Field::Slot),
        Access::Store(Field::Word),
    ];
    const PUSH: Accesses = &[
        Access::Load(Field::LockWord),
        Access::Load(Field::Word),
        Access::Load(Field::PushLimit),
        Access::Store(Field::Slot),
        Access::Store(Field::Word),
    ];
    const LOCK: Accesses = &[Access::Load(Field::LockWord), Access::Store(Field::LockWord)];
    let (pop, push) = (Orders { pop: POP, ..CONTRACT }, Orders { push: PUSH, ..CONTRACT });
    let lock = Orders { lock: LOCK, ..CONTRACT };
    [
        ("pop against migrating drain", pop, pop_against_migrating_drain::<Loom>),
        ("push against migrating refill", push, push_against_migrating_refill::<Loom>),
        ("lock against migrating drain", lock, lock_against_migrating_drain::<Loom>),
    ]
}

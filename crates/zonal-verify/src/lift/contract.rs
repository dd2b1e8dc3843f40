//! What each kind of sequence must do: the access lists next to `Head`, and the layout of the structures.
//!
//! Related files: `matching.rs` compares sequences with the contract.

use std::fmt;
use std::mem::offset_of;

use zonal::platform::cpu_local::{Access, Accesses, Field, Head, LOCK, LockWord, POP, PUSH, PagesetSlot};
use zonal_linux::LinuxPlatform;

/// Operation of a sequence.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// Pop from the current CPU's pageset slot, which the sequence looks up.
    Pop,
    /// Pop from a pageset slot that the caller has looked up.
    PopFrom,
    /// Push to a pageset slot that the caller has looked up.
    Push,
    /// Lock of a head.
    Lock,
}

/// Offsets in a thread's area, in bytes. Source: Linux `rseq(2)`, `struct rseq`.
pub(super) const AREA_CPU: u64 = 4;
pub(super) const AREA_DESCRIPTOR: u64 = 8;
/// Widths in bytes.
pub(super) const CPU_BYTES: u32 = 4;
pub(super) const WORD_BYTES: u32 = 8;
pub(super) const SLOT_BYTES: u32 = 4;

/// Offsets in a pageset slot, in bytes.
pub(super) const HEAD: u64 = offset_of!(PagesetSlot<LinuxPlatform>, head) as u64;
pub(super) const SLOTS: u64 = offset_of!(PagesetSlot<LinuxPlatform>, slots_at) as u64;

/// The bits of the word that count free slots: those below the first guard.
pub(super) const FREE_SLOTS: u64 = (1 << LockWord::OPEN.bits().trailing_zeros()) - 1;

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Pop, Self::PopFrom, Self::Push, Self::Lock];

    /// Returns the accesses that the contract lists.
    pub(super) const fn accesses(self) -> Accesses {
        match self {
            Self::Pop | Self::PopFrom => POP,
            Self::Push => PUSH,
            Self::Lock => LOCK,
        }
    }
}

/// Returns the offset of a field in the head, or `None` for the slot, which is not in the head.
pub(super) const fn offset_in_head(field: Field) -> Option<u64> {
    let offset = match field {
        Field::LockWord => offset_of!(Head<LinuxPlatform>, lock_word),
        Field::Word => offset_of!(Head<LinuxPlatform>, word),
        Field::PopLimit => offset_of!(Head<LinuxPlatform>, pop_limit),
        Field::PushLimit => offset_of!(Head<LinuxPlatform>, push_limit),
        Field::Slot => return None,
    };
    Some(offset as u64)
}

/// Whether the sequence must have tested that it may succeed before this access: before it loads or stores a slot, and
/// before it stores to the head.
pub(super) const fn is_after_test(access: Access) -> bool {
    matches!(access, Access::Store(_) | Access::Load(Field::Slot) | Access::LoadAcquire(Field::Slot))
}

/// Returns an access and its field in words.
pub(super) fn in_words(access: Access) -> String {
    let (way, field) = match access {
        Access::LoadAcquire(field) => ("load with acquire", field),
        Access::Load(field) => ("load", field),
        Access::Store(field) => ("store", field),
    };
    let field = match field {
        Field::LockWord => "lock word",
        Field::Word => "word",
        Field::PopLimit => "limit for pops",
        Field::PushLimit => "limit for pushes",
        Field::Slot => "slot",
    };
    format!("{way} the {field}")
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pop => "pop",
            Self::PopFrom => "pop from a given slot",
            Self::Push => "push",
            Self::Lock => "lock",
        })
    }
}

//! Threads, whichever pool they are of: what they wait by, and what signals and children made by `fork` find.
//!
//! `lock.rs` is the lock of zones and `reentrancy.rs` keeps signal handlers from waiting for it; `sync.rs` is what a
//! pool's own threads wait by, in `presence.rs` (where each of them is) and `wake.rs` (what there is to do);
//! `attributes.rs` is how they run. The threads themselves are in `pool/workers.rs`.

pub(crate) mod attributes;
pub(crate) mod lock;
pub(crate) mod presence;
pub(crate) mod reentrancy;
pub(crate) mod sync;
pub(crate) mod wake;
#[cfg(test)]
mod wake_tests;

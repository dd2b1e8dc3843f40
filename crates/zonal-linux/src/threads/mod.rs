//! Threads, independent of any one pool: locks and waiting, also in signal handlers and in children made by `fork`.
//!
//! `threads/lock.rs` is the lock of zones, and `threads/reentrancy.rs` prevents signal handlers from waiting for
//! it. A pool's own threads wait with `threads/sync.rs`: in `threads/presence.rs` (where each of them is) and
//! `threads/wake.rs` (wake-ups). `threads/attributes.rs` sets their signals and scheduling. The threads themselves
//! are in `pool/workers.rs`.

pub(crate) mod attributes;
pub(crate) mod lock;
pub(crate) mod presence;
pub(crate) mod reentrancy;
pub(crate) mod sync;
pub(crate) mod wake;
#[cfg(test)]
mod wake_tests;

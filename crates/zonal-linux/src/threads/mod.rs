//! Threads and locks that do not depend on any one pool, also for signal handlers and for children made by `fork`.
//!
//! `threads/lock.rs` is the lock of zones, and `threads/reentrancy.rs` prevents signal handlers from waiting for that
//! lock. `threads/presence.rs` records what each of a pool's own threads is doing, and `threads/wake.rs` wakes them;
//! both wait with `threads/sync.rs`. `threads/start.rs` starts threads, whose signals and scheduling `threads/attributes.rs` sets. What
//! they do is in `pool/workers.rs`.

mod attributes;
pub(crate) mod lock;
pub(crate) mod presence;
pub(crate) mod reentrancy;
pub(crate) mod start;
pub(crate) mod sync;
pub(crate) mod wake;
#[cfg(test)]
mod wake_tests;

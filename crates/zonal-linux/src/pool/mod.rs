//! Pools: the handle that programs hold, the steps that build a pool, and its threads.
//!
//! `pool/handle.rs` allocates and frees; `pool/observe.rs` reports a pool's state; `pool/change.rs` changes a
//! running pool. `pool/builder.rs` runs the steps that build a pool; `pool/core.rs` is the result, which
//! `pool/frames.rs` keeps alive; `pool/workers.rs` runs its threads. `pool/platform.rs` implements the allocator's
//! platform, using `pool/cpu_map.rs`, `pool/reclaimers.rs` and the crate's other folders.

// These four first, in the order in which rustdoc shows the methods of `Pool`.
mod builder;

mod handle;

mod observe;

mod change;

mod callback;
mod core;
mod cpu_map;
mod failure;
mod frames;
mod key;
mod platform;
mod prefault;
mod reclaimers;
mod request;
mod workers;

pub use self::core::PoolCore;
pub use builder::{PoolBuilder, Prefault};
pub use change::{ActError, OfflineError, OnlineMemoryError};
pub use cpu_map::ActingCpu;
pub use failure::AllocFailure;
pub use frames::{Frames, Lease};
pub use handle::Pool;
pub use observe::{Placement, ZoneRange};
pub use platform::LinuxPlatform;
pub use prefault::{OnProgress, Progress};
pub use reclaimers::Registration;
pub use request::{PoolPolicy, PoolRequest, PoolWeights};

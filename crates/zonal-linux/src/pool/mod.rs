//! Pools: the handle that programs hold, the steps that make one, and its threads.
//!
//! `handle.rs` allocates and frees; `observe.rs` is what a pool tells of itself, `change.rs` what can be changed while
//! it runs. `builder.rs` goes through the steps that make a pool; `core.rs` is the result, which `frames.rs` keep alive;
//! `workers.rs` are its threads. `platform.rs` is what the allocator sees of the process: `cpu_map.rs`, `reclaimers.rs`,
//! and the folders below this one.

mod builder;
mod callback;
mod change;
mod core;
mod cpu_map;
mod failure;
mod frames;
mod handle;
mod key;
mod observe;
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
pub use request::{PoolPolicy, PoolRequest};

//! The `Pool` type, the steps that build a pool, and the threads of a pool.
//!
//! The methods of `Pool` are in three files: `pool/handle.rs` allocates and frees, `pool/observe.rs` reports the state
//! of a pool, and `pool/change.rs` changes a running pool. `pool/builder.rs` runs the steps that build a pool. Their
//! result is the `PoolCore` of `pool/core.rs`; each block of `pool/frames.rs` holds a reference to it.
//! `pool/workers.rs` runs the threads. `pool/platform.rs` implements the platform that the allocator requires, using
//! `pool/cpu_map.rs`, `pool/reclaimers.rs` and the other folders of this crate.

// These five modules are declared first because rustdoc shows `Pool`'s methods in module order.
mod builder;

mod handle;

mod observe;

mod change;

mod shrink;

mod explain;
mod memory_file;
mod residency;
mod settings;
mod trim;

mod between;
mod callback;
#[cfg(test)]
mod conformance;
mod core;
mod core_ref;
mod cpu_map;
mod description;
mod emit;
mod entered;
mod failure;
mod frame_buffer;
mod frames;
mod joining;
mod keeping;
mod key;
mod listeners;
mod lives;
mod members;
mod observed;
mod owner;
mod platform;
mod prefault;
mod pressure;
mod probes;
mod recent;
mod reclaimers;
mod registry;
mod reports;
mod request;
mod roots;
mod shared_frames;
mod shared_options;
mod step_words;
mod table;
mod workers;

pub use self::core::PoolCore;
pub use self::core_ref::CoreRef;
pub use builder::{PoolBuilder, Prefault};
pub use change::{ActError, OfflineError, OnlineMemoryError};
pub use cpu_map::ActingCpu;
pub(crate) use explain::Recording;
pub use failure::AllocFailure;
pub use frame_buffer::FrameBuffer;
pub use frames::{Frames, Lease};
pub use handle::Pool;
pub use memory_file::MemoryFile;
pub use observe::{Placement, ZoneRange};
pub use owner::PoolOwner;
pub use platform::LinuxPlatform;
pub use prefault::{OnProgress, Progress};
pub(crate) use recent::RecentRequest;
pub use registry::Registration;
pub use request::{PoolPolicy, PoolRequest, PoolWeights};
pub use residency::NodeResidency;
pub use shared_frames::SharedFrames;
pub use shrink::{GrowError, ShrinkError};
pub use trim::TrimError;

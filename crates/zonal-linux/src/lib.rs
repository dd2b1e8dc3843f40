//! Pools of a Linux machine's real memory under the zonal page-frame allocator.
//!
//! ```
//! use zonal_linux::{Pool, PoolRequest};
//!
//! let pool = Pool::builder().size(64 << 20).build()?;
//! let mut page = pool.alloc(&PoolRequest::page())?;
//! page[..5].copy_from_slice(b"hello");
//! assert_eq!(pool.pfn_of(page.as_ptr()), Some(page.first()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Start reading at `pool.rs`; `builder.rs` lists the steps that make a pool, each a room of its own,
//! and `platform.rs` is what the allocator sees of the process. Unsafe code is where memory is
//! mapped (`mapping.rs`, `metadata.rs`), seen as bytes (`memory.rs`, `frames.rs`) or read behind the
//! language's back (`current_cpu.rs`, `lock.rs`), and nowhere else.
#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("zonal-linux makes pools of a 64-bit Linux machine's memory");

mod affinity;
mod builder;
mod callback;
mod change;
mod core;
mod cpu_map;
mod current_cpu;
mod error;
mod failure;
mod frames;
mod key;
mod limits;
mod live;
mod lock;
mod mapping;
mod memory;
mod metadata;
mod not_copied;
mod observe;
mod once;
mod origin;
mod plan;
mod platform;
mod pool;
mod prefault;
mod presence;
mod promised;
mod range_list;
mod reclaimers;
mod reentrancy;
mod resident;
mod sequences;
mod split;
mod sync;
mod thread_attributes;
mod topology;
mod wake;
#[cfg(test)]
mod wake_tests;
mod workers;

pub use builder::{PoolBuilder, Prefault};
pub use change::{ActError, OfflineError, OnlineMemoryError, PoolPolicy};
pub use core::PoolCore;
pub use cpu_map::ActingCpu;
pub use error::{Limit, PoolError, Warning};
pub use failure::AllocFailure;
pub use frames::{Frames, Lease};
pub use limits::available_bytes;
pub use lock::SleepingLock;
pub use memory::HugePages;
pub use observe::{Placement, ZoneRange};
pub use platform::LinuxPlatform;
pub use pool::{Pool, PoolRequest};
pub use prefault::{OnProgress, Progress};
pub use reclaimers::Registration;
pub use topology::{Topology, TopologyNode, ZoneShare};

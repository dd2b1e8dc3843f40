//! Pools of a Linux machine's memory, managed by the zonal page-frame allocator.
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
//! Start reading at `pool/handle.rs`. `pool/builder.rs` lists the steps that build a pool, and `pool/platform.rs`
//! implements the platform that the allocator runs on. Each folder uses only those after it: `pool`, `sequences`
//! (pagesets without atomic instructions), `threads`, `memory`, `topology`. `docs/unsafe.md` lists the files with
//! unsafe code: they map memory, expose it as bytes, or make system calls.
#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("zonal-linux makes pools of a 64-bit Linux machine's memory");

mod error;
mod memory;
mod pool;
mod sequences;
mod threads;
mod topology;

pub use error::{Limit, PoolError, Warning};
pub use memory::zones::HugePages;
pub use pool::{
    ActError, ActingCpu, AllocFailure, Frames, Lease, LinuxPlatform, OfflineError, OnProgress,
    OnlineMemoryError, Placement, Pool, PoolBuilder, PoolCore, PoolPolicy, PoolRequest, Prefault, Progress,
    Registration, ZoneRange,
};
pub use threads::lock::SleepingLock;
pub use topology::limits::available_bytes;
pub use topology::{Topology, TopologyNode, ZoneShare};

//! Pools of a Linux machine's memory with a page-frame allocator that knows NUMA nodes.
//!
//! A [`Pool`] maps a part of the machine's memory, binds it to the nodes it belongs to, and allocates blocks of frames
//! (pages) from it, on the node of the calling CPU if possible. Blocks are byte slices ([`Frames`]) or plain numbers.
//! Caches register a [`Reclaimer`], which the pool calls when frames run short. The allocator is the crate `zonal`,
//! whose types a pool needs are re-exported here.
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
//! # What a pool can do
//! - Serve single frames and naturally aligned blocks of 2, 4, 8, ... frames, up to 4 MiB by default.
//! - Choose nodes per request: [local](PoolRequest), [preferred](Pool::preferred), [bound](Pool::bind),
//!   [interleaved](Pool::interleave), [by weight](Pool::weighted_interleave).
//! - Use huge pages, transparent or of the kernel's reserve ([`HugePages`]), and prefault ([`Prefault`]).
//! - Keep caches as large as memory allows ([`Pool::register_reclaimer`]), with background reclaim.
//! - Return memory to the kernel and take it back while in use ([`Pool::offline_memory`]).
//! - Refuse frees of frames that are not allocated, without harm to the accounting.
//! - Emulate other machines' nodes ([`PoolBuilder::fake_nodes`], [`PoolBuilder::machine`]).
//! - Report its state, in the formats of Linux too ([`Pool::snapshot`]), and check it ([`Pool::verify`]).
//!
//! # What a pool cannot do
//! - Grow beyond the size it was built with: offline memory can return, but no more.
//! - Replace `malloc`: the smallest block is a frame. A pool is not a `GlobalAlloc`.
//! - Move, compact or swap frames. A pool whose frames are in use everywhere may have no large block although many
//!   frames are free.
//! - Share memory between processes.
//! - Resize a block, or allocate lengths that are not a power of two of frames.
//! - Protect its memory from other code in the process, or read a frame's contents after free: contents stay unless
//!   [`Hardening`] says otherwise.
//! - Run on systems other than 64-bit Linux.
//!
//! # Sizes
//! A block of order `n` has `2^n` frames and begins at a multiple of its length. 12 KiB therefore become a block of
//! 16 KiB ([`Pool::order_holding`]); for many frames that need not be contiguous, use [`Pool::alloc_bulk_raw`]. The
//! pool's size is rounded down to 2 MiB on each node.
//!
//! Ordinary requests leave a reserve, `watermarks.min`, for urgent ones and for reclaimers: by default the square root of
//! 16 times the pool's KiB, in KiB. A pool of 256 MiB has 65536 frames of 4 KiB and a reserve of 512 frames (2 MiB),
//! so it serves about 65000 frames (254 MiB), or 63 blocks of 4 MiB:
//!
//! ```
//! use zonal_linux::{Order, Pool, PoolRequest};
//!
//! let pool = Pool::builder().size(256 << 20).fake_nodes(1).build()?;
//! let count = |request| std::iter::from_fn(|| pool.alloc_raw(&request).ok()).count();
//! assert_eq!(count(PoolRequest::new(Order::DEFAULT_MAX)), 63); // 252 MiB
//! let pages = count(PoolRequest::page()); // in what is left
//! assert!((500..=512).contains(&pages), "{pages}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Metadata takes about 1.5 bytes for each frame, and the pool's threads a few pages.
//!
//! # Defaults
//! [`PoolBuilder`] lists its own. Those of [`Config`] follow Linux 6.12 where Linux has the setting:
//!
//! | setting | default | from |
//! |---|---|---|
//! | `page_bytes` | 4096 | the page size of most kernels; a kernel with larger pages refuses it and needs its own |
//! | `max_order` | 10: blocks of 4 MiB | `MAX_PAGE_ORDER` |
//! | `watermarks.min_free` | computed from the pool's size | `vm.min_free_kbytes` |
//! | `watermarks.scale_factor` | 10: 0.1 % of a zone between watermarks | `vm.watermark_scale_factor` |
//! | `watermarks.lowmem_reserve_ratio` | 256, 256, 32, 0 | `vm.lowmem_reserve_ratio` |
//! | `tuning` | [`PagesetTuning::Depth`] | Huang 2023; measured in `docs/performance.md` |
//! | `high_fraction` | 0: tuned | `vm.percpu_pagelist_high_fraction` |
//! | `stat_interval` | 1 second | `vm.stat_interval` |
//! | `zonelist_cache` | [`ZonelistCache::On`] | Jackson 2006, revised |
//! | `node_reclaim` | off | `vm.zone_reclaim_mode` |
//! | `reclaim_distance` | 30 | `RECLAIM_DISTANCE` |
//! | `min_unmapped_percent` | 1 | `vm.min_unmapped_ratio` |
//! | `invalid_free` | [`InvalidFree::Exact`] | ours: one atomic exchange per free |
//! | `hardening`, `faults` | off | |
//!
//! # Locks and reclaimers
//! A request that may wait calls reclaimers on the calling thread. **Do not make such a request while holding a lock
//! that a reclaimer takes**: the thread waits for itself, without a message, at the first shortage. Allocate first and
//! lock afterwards, or use [`no_wait`](zonal::Request::no_wait) under the lock. [`Pool::register_reclaimer`] lists
//! which calls are allowed under which lock.
//!
//! # Fork and signals
//! A child made by `fork` may read, write and drop its copies of frames; it may allocate only under the conditions of
//! [`Pool`](Pool#fork). A signal handler may call [`Pool::alloc_raw`] with a request that does not wait, and
//! [`Pool::free_raw`], [`Pool::alloc_bulk_raw`] and [`Pool::free_bulk_raw`], but nothing else, because the rest uses the
//! heap.

// For contributors: start reading at `pool/handle.rs`. `pool/builder.rs` lists the steps that build a pool, and
// `pool/platform.rs` implements the platform that the allocator runs on. Each folder uses only those after it: `pool`,
// `sequences` (pagesets without atomic instructions), `threads`, `memory`, `topology`. `docs/unsafe.md` lists the
// files with unsafe code: they map memory, expose it as bytes, or make system calls.

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
    OnlineMemoryError, Placement, Pool, PoolBuilder, PoolCore, PoolPolicy, PoolRequest, PoolWeights,
    Prefault, Progress, Registration, ZoneRange,
};
#[doc(hidden)]
pub use threads::lock::SleepingLock;
pub use topology::limits::available_bytes;
pub use topology::{Topology, TopologyNode, ZoneShare};

// What a pool's methods take and return.
pub use zonal::config::{
    Config, Faults, Hardening, InvalidFree, NodeReclaim, StatInterval, ZeroOn, ZonelistCache,
};
pub use zonal::error::{
    AllocError, ConfigError, FreeBulkError, FreeError, OnlineError, PolicyError, Shortage, Verdict,
    VerdictCounts, ZoneShortage, ZoneSpan,
};
pub use zonal::machine::{FrameRange, TopologyError};
pub use zonal::platform::reclaimer::{ReclaimReason, ReclaimRequest, Reclaimer};
pub use zonal::request::{Block, PageKind, Urgency};
pub use zonal::rules::fallback_order::{CpuPenalty, NodeLoad};
pub use zonal::rules::pageset_limits::PagesetLimits;
pub use zonal::rules::pageset_tuning::PagesetTuning;
pub use zonal::rules::stat_threshold::{CounterRules, FoldRule, PressureRule, ThresholdRule, TotalsRule};
pub use zonal::rules::watermarks::{MovableMin, WatermarkSettings, Watermarks};
pub use zonal::snapshot::{
    Accounting, Events, Locality, NodeSnapshot, PagesetSnapshot, Settings, Snapshot, ZoneSnapshot,
};
pub use zonal::units::{CpuId, NodeId, Order, PageCount, Pfn, ZoneId, ZoneKind};
pub use zonal::verify::{Counted, Fault, VerifyError};
pub use zonal::{Allocator, NodeMask};
pub use zonal_machine::MachineModel;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

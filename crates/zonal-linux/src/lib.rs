//! A NUMA-aware page-frame allocator over memory that a Linux process maps.
//!
//! A [`Pool`] maps memory, binds each part of it to a NUMA node, and allocates blocks of frames (pages) from the
//! mapping, on the node of the calling CPU if possible. The pool returns a block either as a byte slice ([`Frames`])
//! or as a frame number and an order ([`Block`]). A cache can register a [`Reclaimer`], which the pool calls when
//! frames run short. The allocator itself is the crate `zonal`; this crate re-exports the `zonal` types that a pool's
//! methods use.
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
//! - Choose nodes for each request: [local](PoolRequest), [preferred](Pool::preferred), [bound](Pool::bind),
//!   [interleaved](Pool::interleave), or [interleaved by weight](Pool::weighted_interleave).
//! - Use transparent huge pages, or explicit ones of 2 MiB or 1 GiB ([`HugePages`]), and populate memory before its first
//!   use ([`Prefault`]).
//! - Allow caches to grow until memory runs short, and shrink them from background threads
//!   ([`Pool::register_reclaimer`]).
//! - Return memory to the kernel while the pool is in use ([`Pool::shrink`], [`Pool::offline_memory`]), and obtain it
//!   again later ([`Pool::grow`], [`Pool::online_memory`]).
//! - Refuse to free frames that are not allocated; a refused free does not affect the accounting.
//! - Emulate the nodes of other machines ([`PoolBuilder::fake_nodes`], [`PoolBuilder::machine`]).
//! - Change settings by name ([`Pool::set_setting`]), from other programs too ([`Pool::publish`]), and return the memory
//!   of free frames ([`Pool::trim`]).
//! - Explain which zones a request tries, and why each of them does not serve ([`Pool::explain`]).
//! - Report where the kernel has put its memory, page by page ([`Pool::residency`]).
//! - Report its state in its own formats and in those of Linux ([`Pool::snapshot`]), and check the consistency of its
//!   state ([`Pool::verify`]).
//!
//! # What a pool cannot do
//! - Grow beyond the [largest size](PoolBuilder::max_size) that it was built with.
//! - Replace `malloc`: the smallest block is a frame. A pool is not a `GlobalAlloc`. The library `zonal-malloc` gives the
//!   memory of a pool to mimalloc, which replaces `malloc`.
//! - Move, compact or swap frames. If allocated frames are scattered over the whole pool, large requests can fail
//!   although many frames are free.
//! - Allocate in several processes. Other processes can map the memory of a pool ([`PoolBuilder::shared_memory`]), but
//!   only the one that built the pool allocates from it.
//! - Resize a block. A larger one must be allocated and the contents copied.
//! - Protect its memory from other code in the process, or erase data when a block is freed. The next owner of the
//!   block finds the old data, unless the request is for zeroed frames or [`Hardening`] overwrites it.
//! - Run on systems other than 64-bit Linux.
//!
//! # Sizes
//! A block of order `n` has `2^n` frames and begins at a multiple of its length. [`Pool::alloc_bytes`]
//! allocates any other size: a buffer of 12 KiB has three frames. [`Pool::alloc_contiguous`] allocates more than the
//! largest block, and [`Pool::alloc_bulk_raw`] many frames that need not be adjacent. The pool size is rounded down to
//! a multiple of 2 MiB on each node.
//!
//! Ordinary requests cannot use the reserve, `watermarks.min`, which is for urgent requests and for reclaimers. By
//! default, the reserve in KiB is the square root of 16 times the pool size in KiB. A 256 MiB pool has 65536 frames of
//! 4 KiB and a reserve of 512 frames (2 MiB). Ordinary requests can therefore allocate about 65000 frames (254 MiB), or
//! 63 blocks of 4 MiB:
//!
//! ```
//! use zonal_linux::{Order, Pool, PoolRequest};
//!
//! let pool = Pool::builder().size(256 << 20).fake_nodes(1).build()?;
//! let count = |request| std::iter::from_fn(|| pool.alloc_raw(&request).ok()).count();
//! assert_eq!(count(PoolRequest::new(Order::DEFAULT_MAX)), 63); // 252 MiB
//! let pages = count(PoolRequest::page()); // from the rest
//! assert!((500..=512).contains(&pages), "{pages}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Metadata occupies less than 1.5 bytes for each frame on nodes with at least 2 GiB and 512 MiB for each CPU, and
//! at most 1.65 from 512 MiB and 64 MiB for each CPU on. On smaller nodes it is more: 2.3 for 48 MiB and two
//! CPUs. The threads of the pool use a few pages.
//!
//! # Defaults
//! The documentation of [`PoolBuilder`] lists its options' defaults. The defaults of [`Pool::default_config`] are those
//! in Linux 6.12 where Linux has the same setting, except for the distance between watermarks:
//!
//! | setting | default | from |
//! |---|---|---|
//! | `page_bytes` | 4096 | the page size of most kernels; if the kernel's pages are larger, set their size |
//! | `max_order` | 10: blocks of 4 MiB | `MAX_PAGE_ORDER` |
//! | `watermarks.min_free` | computed from the pool's size | `vm.min_free_kbytes` |
//! | `watermarks.scale_factor` | 100 to 500: 10 MiB between watermarks, within 1 % and 5 % of a zone | measured in `docs/performance.md`; 10 in Linux (`vm.watermark_scale_factor`) and in [`Config::default`] |
//! | `watermarks.lowmem_reserve_ratio` | 256, 256, 32, 0 | `vm.lowmem_reserve_ratio` |
//! | `tuning` | [`PagesetTuning::Depth`] | Huang 2023; measured in `docs/performance.md` |
//! | `high_fraction` | 0: tuned | `vm.percpu_pagelist_high_fraction` |
//! | `stat_interval` | 1 second | `vm.stat_interval` |
//! | `zonelist_cache` | [`ZonelistCache::On`] | Jackson 2006, revised |
//! | `node_reclaim` | off | `vm.zone_reclaim_mode` |
//! | `reclaim_distance` | 30 | `RECLAIM_DISTANCE` |
//! | `min_unmapped_percent` | 1 | `vm.min_unmapped_ratio` |
//! | `invalid_free` | [`InvalidFree::Exact`] | specific to zonal; costs one atomic exchange per free |
//! | `hardening`, `faults` | off | |
//!
//! # Locks and reclaimers
//! A request that may wait can call reclaimers on the calling thread. **Do not make such a request while holding a lock
//! that a reclaimer acquires**: when memory first runs short, the thread deadlocks with itself, without any message.
//! Either allocate before you acquire the lock, or make only requests with [`no_wait`](zonal::Request::no_wait) while
//! you hold it. [`Pool::register_reclaimer`] lists the calls that are allowed while such a lock is held.
//!
//! # Events and probes
//! Subscribers of the crate `tracing` receive events with the target `zonal` (feature `tracing`, on by default): how pools are built and changed, memory
//! pressure, refused requests, retired frames. Static probes of the provider `zonal` show each refill, drain, reclaim,
//! refusal and retired frame to bpftrace and perf. `docs/observing.md` lists both, and the calls that emit events.
//!
//! # Fork and signals
//! A child process made by `fork` may read, write and drop its copies of frames. It may allocate only under the
//! conditions that [`Pool`](Pool#fork) lists.
//!
//! A signal handler may call [`Pool::alloc_raw`] and [`Pool::alloc_bulk_raw`] with requests that do not wait, and may
//! call [`Pool::free_raw`] and [`Pool::free_bulk_raw`]. It must not call other methods, because they use the heap.
//! The calls need up to 10 KiB of stack, more than usual alternate stacks have.

// For contributors: start with `pool/handle.rs`. `pool/builder.rs` lists the steps that build a pool, and
// `pool/platform.rs` implements the platform that the allocator runs on. The folders are layers, from the top: `pool`,
// `sequences` (access to pagesets without atomic instructions), `threads`, `memory`, `topology`. A folder uses only the
// folders below it. `docs/unsafe.md` lists the files with unsafe code; these files map memory, expose memory as bytes,
// or make system calls.

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("zonal-linux makes pools of a 64-bit Linux machine's memory");

mod error;
mod memory;
// Without subscribers, nothing uses what events state, and events differ in nothing else.
#[cfg_attr(not(feature = "tracing"), expect(unused_variables, clippy::match_same_arms))]
mod pool;
mod publish;
mod sequences;
mod shared_name;
mod threads;
mod topology;
mod whole_words;

pub use error::{Limit, PoolError, SharedError, Warning};
pub use memory::huge_pages::HugePages;
pub use memory::residency::{Backing, PagePlace, PageRun, Residency};
pub use pool::{
    ActError, ActingCpu, AllocFailure, CoreRef, FrameBuffer, Frames, GrowError, Lease, LinuxPlatform,
    MemoryFile, NodeResidency, OfflineError, OnProgress, OnlineMemoryError, Placement, Pool, PoolBuilder,
    PoolCore, PoolOwner, PoolPolicy, PoolRequest, PoolWeights, Prefault, Progress, Registration,
    SharedFrames, ShrinkError, TrimError, ZoneRange,
};
pub use shared_name::SharedName;
#[doc(hidden)]
pub use threads::lock::SleepingLock;
pub use topology::limits::available_bytes;
pub use topology::{Topology, TopologyNode, ZoneShare};

// Types that appear in the signatures of `Pool`'s methods.
pub use publish::{PROTOCOL_VERSION, Publication, PublishError, publisher_has_ended};
pub use zonal::config::{
    Config, Faults, Hardening, InvalidFree, NodeReclaim, OwnedBlocks, StatInterval, ZeroOn, ZonelistCache,
};
pub use zonal::error::{
    AllocError, ConfigError, FreeBulkError, FreeError, OnlineError, PolicyError, Shortage, SplitError,
    UsedFrames, UsedState, Verdict, VerdictCounts, ZoneShortage, ZoneSpan,
};
pub use zonal::explain::{Exclusion, Outcome, ReclaimStep, Step, ZoneName};
pub use zonal::machine::{FrameRange, TopologyError};
pub use zonal::platform::pressure::{PressureEvent, PressureKind, StallShares};
pub use zonal::platform::reclaimer::{ReclaimReason, ReclaimRequest, Reclaimer};
pub use zonal::request::{Block, PageKind, Urgency};
pub use zonal::rules::fallback_order::{CpuPenalty, NodeLoad};
pub use zonal::rules::pageset_limits::PagesetLimits;
pub use zonal::rules::pageset_tuning::PagesetTuning;
pub use zonal::rules::stat_threshold::{CounterRules, FoldRule, PressureRule, ThresholdRule, TotalsRule};
pub use zonal::rules::watermarks::{MovableMin, WatermarkSettings, Watermarks};
pub use zonal::settings::{Access, Setting, SettingError, SettingInfo, SettingValue, SettingValues};
pub use zonal::snapshot::{
    Accounting, Events, Locality, NodeSnapshot, PagesetSnapshot, Snapshot, ZoneSnapshot,
};
pub use zonal::units::{CpuId, NodeId, Order, PageCount, Pfn, ZoneId, ZoneKind};
pub use zonal::verify::{Counted, Fault, VerifyError};
pub use zonal::{Allocator, FrameRun, NodeMask};
pub use zonal_model::MachineModel;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

//! The structures of the interface. Each begins with its size, so that a program that was built for another version is refused.

use std::ffi::{c_char, c_void};

/// A pool. A handle stays valid to pass after the pool was closed, and is then refused.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(non_camel_case_types)]
pub struct zonal_pool {
    /// Number of the pool. Zero is no pool.
    pub id: u64,
}

/// Which huge pages back a pool: as the kernel likes.
pub const ZONAL_HUGE_PAGES_TRANSPARENT: u32 = 0;
/// Which huge pages back a pool: none.
pub const ZONAL_HUGE_PAGES_NEVER: u32 = 1;
/// Which huge pages back a pool: reserved ones of 2 MiB.
pub const ZONAL_HUGE_PAGES_2M: u32 = 2;
/// Which huge pages back a pool: reserved ones of 1 GiB.
pub const ZONAL_HUGE_PAGES_1G: u32 = 3;

/// Flag of a pool: provide all memory while the pool is built.
pub const ZONAL_POOL_PREFAULT: u32 = 1;
/// Flag of a pool: fail without the huge pages that were asked for.
pub const ZONAL_POOL_REQUIRE_HUGE_PAGES: u32 = 2;
/// Flag of a pool: fail if the memory cannot be bound to its nodes.
pub const ZONAL_POOL_REQUIRE_BINDING: u32 = 4;
/// Flag of a pool: memory in files that other processes can map.
pub const ZONAL_POOL_SHARED_MEMORY: u32 = 8;

/// Flag of a pool: overwrite freed pages with a pattern, and check it when they are allocated again.
pub const ZONAL_POOL_POISON: u32 = 16;
/// Flag of a pool: fill every block with zeros when it is allocated.
pub const ZONAL_POOL_ZEROED: u32 = 32;
/// Flag of a pool: several processes share it, in a file without a path; the others join it with `zonal_pool_join_fd`.
pub const ZONAL_POOL_SHARED_BY_DESCRIPTOR: u32 = 64;

/// Flag of a request: do not wait for memory.
pub const ZONAL_REQUEST_NO_WAIT: u32 = 1;
/// Flag of a request: use the node of the calling CPU only.
pub const ZONAL_REQUEST_THIS_NODE: u32 = 2;
/// Flag of a request: fill the block with zeros.
pub const ZONAL_REQUEST_ZEROED: u32 = 4;

/// Nodes of a request: start at the calling CPU's node.
pub const ZONAL_POLICY_LOCAL: u32 = 0;
/// Nodes of a request: start at the first of `nodes`, and use others if it is full.
pub const ZONAL_POLICY_PREFERRED: u32 = 1;
/// Nodes of a request: use only `nodes`.
pub const ZONAL_POLICY_BIND: u32 = 2;
/// Nodes of a created policy: each request starts at the next of `nodes`.
pub const ZONAL_POLICY_INTERLEAVE: u32 = 3;
/// Nodes of a created policy: as many requests in turn start at each of `nodes` as its weight says.
pub const ZONAL_POLICY_WEIGHTED_INTERLEAVE: u32 = 4;
/// Nodes of a created policy: use `nodes` in their order, and others if they are full.
pub const ZONAL_POLICY_PREFERRED_MANY: u32 = 5;

/// Flag of closing: close the pool although blocks are allocated. Their memory is unmapped.
pub const ZONAL_CLOSE_WITH_BLOCKS: u32 = 1;

/// Called while memory is provided. Several threads may call it. A result other than 0 stops the build. It must return: an
/// exception or `longjmp` must not leave it.
// SAFETY: `zonal_pool_build` states what the function must do.
#[allow(non_camel_case_types)]
pub type zonal_progress = Option<unsafe extern "C" fn(context: *mut c_void, done: u64, total: u64) -> i32>;

/// Options of a pool. Zero in every field but the first is the default.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct zonal_pool_options {
    /// `sizeof(zonal_pool_options)`.
    pub struct_size: usize,
    /// Bytes of the pool. Default: 1 GiB, or half of the available memory.
    pub size: u64,
    /// Bytes to which the pool may grow. Default: `size`.
    pub max_size: u64,
    /// Numbers of the nodes to use. Default: all.
    pub nodes: *const u16,
    /// Number of entries in `nodes`.
    pub nodes_len: usize,
    /// Number of emulated nodes, for tests. Default: the nodes of the machine.
    pub fake_nodes: u32,
    /// One of `ZONAL_HUGE_PAGES_*`.
    pub huge_pages: u32,
    /// `ZONAL_POOL_*`, or-ed.
    pub flags: u32,
    /// Number of threads for `ZONAL_POOL_PREFAULT`. Default: the CPUs that the program may use, at most 16.
    pub prefault_threads: u32,
    /// Bytes of a page: a power of two, at least the kernel's page. Default: 4096.
    pub page_bytes: u32,
    /// Pages that the quarantine of each node delays after they were freed. Default: none.
    pub quarantine_pages: u32,
    /// Bytes of the largest block that is aligned to its size: a power of two, 1024 to 262144 pages. Default: 1024 pages.
    pub block_bytes_max: u64,
    /// Settings by name, as `name=value` in lines or separated by semicolons; `zonal_pool_setting` has the names. Or null.
    pub settings: *const c_char,
    /// Called with the progress of `ZONAL_POOL_PREFAULT`, or null.
    pub progress: zonal_progress,
    /// First argument of `progress`.
    pub progress_context: *mut c_void,
    /// Path of a new file in a memory file system, such as `/dev/shm` or hugetlbfs, in which several processes share the pool, or null.
    /// The others join it with `zonal_pool_join`.
    pub shared_path: *const c_char,
    /// Number of processes that can share a shared pool at once, at most 64. Default: 8.
    pub processes: u32,
    /// Reserved.
    pub reserved: u32,
    /// Name under which this process takes part in a shared pool, so that its blocks outlive it, or null: see
    /// `zonal_pool_join_as`.
    pub process_name: *const c_char,
}

/// A request for a block. Zero in every field but the first is the default: a page near the calling CPU.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct zonal_request {
    /// `sizeof(zonal_request)`.
    pub struct_size: usize,
    /// Number of bytes, rounded up to whole pages. Default: one page.
    pub bytes: usize,
    /// Alignment of the block in bytes: a power of two up to the largest block. Default: a page, or `bytes` if that is a
    /// power of two up to the largest block.
    pub alignment: usize,
    /// `ZONAL_REQUEST_*`, or-ed.
    pub flags: u32,
    /// One of `ZONAL_POLICY_*`.
    pub policy: u32,
    /// Numbers of the policy's nodes.
    pub nodes: *const u16,
    /// Number of entries in `nodes`.
    pub nodes_len: usize,
    /// A policy of `zonal_policy_create`, instead of `policy` and `nodes`. Zero is none.
    pub policy_handle: zonal_policy,
}

/// A policy of requests. A handle stays valid to pass after the policy was destroyed, and is then refused.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(non_camel_case_types)]
pub struct zonal_policy {
    /// Number of the policy. Zero is no policy.
    pub id: u64,
}

/// Options of a policy.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct zonal_policy_options {
    /// `sizeof(zonal_policy_options)`.
    pub struct_size: usize,
    /// One of `ZONAL_POLICY_*`.
    pub policy: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Numbers of the nodes.
    pub nodes: *const u16,
    /// Number of entries in `nodes`.
    pub nodes_len: usize,
    /// A weight for each of `nodes`, for `ZONAL_POLICY_WEIGHTED_INTERLEAVE`. A node with weight 0 is left out.
    pub weights: *const u8,
}

/// A block of memory that was allocated.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct zonal_block {
    /// `sizeof(zonal_block)`, which the caller sets.
    pub struct_size: usize,
    /// The memory, aligned as the request says.
    pub address: *mut c_void,
    /// Number of bytes, which are whole pages.
    pub bytes: usize,
    /// Number of the block's first page in the pool.
    pub frame: u64,
    /// Node of the memory.
    pub node: u16,
    /// Reserved.
    pub reserved: [u16; 3],
}

/// The pages of a pool. `managed` is the sum of the next four.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct zonal_accounting {
    /// `sizeof(zonal_accounting)`, which the caller sets.
    pub struct_size: usize,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Pages that the pool manages.
    pub managed: u64,
    /// Free pages.
    pub free: u64,
    /// Free pages in the caches of CPUs.
    pub in_pagesets: u64,
    /// Pages of blocks that the program has.
    pub allocated: u64,
    /// Pages of freed blocks that are not free yet or never will be: those in quarantine, and those that were found damaged.
    pub unavailable: u64,
}

/// A place in the memory of a pool.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct zonal_location {
    /// `sizeof(zonal_location)`, which the caller sets.
    pub struct_size: usize,
    /// Address of the page's first byte.
    pub address: *mut c_void,
    /// Number of the page in the pool.
    pub frame: u64,
    /// Offset of the page in `file`.
    pub file_offset: u64,
    /// Descriptor of the file that holds the page, or -1: only pools with `ZONAL_POOL_SHARED_MEMORY` have files. The pool
    /// owns the descriptor; duplicate it to use it after the pool was closed.
    pub file: i32,
    /// Node of the memory.
    pub node: u16,
    /// Reserved.
    pub reserved: u16,
}

/// The state of a zone: the memory of a node, or the movable part of it. Counts are in pages.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct zonal_zone {
    /// `sizeof(zonal_zone)`, which the caller sets.
    pub struct_size: usize,
    /// Node of the zone.
    pub node: u16,
    /// Reserved.
    pub reserved: [u16; 3],
    /// Address of its first byte.
    pub address: *mut c_void,
    /// Number of its first page in the pool.
    pub first_frame: u64,
    /// Number of pages from the first to the last.
    pub spanned: u64,
    /// Pages that the pool manages.
    pub managed: u64,
    /// Free pages.
    pub free: u64,
    /// Free pages in the caches of CPUs.
    pub in_pagesets: u64,
    /// Watermark `min`: ordinary requests leave this many pages free.
    pub watermark_min: u64,
    /// Watermark `low`: background reclaim begins below it.
    pub watermark_low: u64,
    /// Watermark `high`: background reclaim ends at it.
    pub watermark_high: u64,
    /// Blocks that were served here and should have been: `numa_hit`.
    pub hits: u64,
    /// Blocks that were served here but were meant for another node: `numa_miss`.
    pub misses: u64,
    /// Blocks that were meant for this node but served by another: `numa_foreign`.
    pub foreign: u64,
}

/// Where the kernel has put a pool's memory on a node, in bytes. `bytes` is the sum of the next four.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct zonal_residency {
    /// `sizeof(zonal_residency)`, which the caller sets.
    pub struct_size: usize,
    /// Bytes that the pool has mapped for the node, including memory that is offline.
    pub bytes: u64,
    /// Bytes that are in memory on the node.
    pub on_node: u64,
    /// Bytes that are in memory on other nodes.
    pub misplaced: u64,
    /// Bytes that are not in memory yet.
    pub absent: u64,
    /// Bytes whose place the kernel does not say.
    pub unknown: u64,
}

/// A process that takes part in a shared pool.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct zonal_owner {
    /// `sizeof(zonal_owner)`, which the caller sets.
    pub struct_size: usize,
    /// Number of the process in the pool, from 1.
    pub process: u32,
    /// Id of the process, in its own namespace.
    pub pid: u32,
    /// Number of processes that have had the number `process`.
    pub epoch: u64,
    /// Pages that it has allocated or taken over. The number may be out of date.
    pub held: u64,
    /// 1 for the calling process, else 0.
    pub is_this: u32,
    /// 1 for a process that lives, else 0.
    pub is_alive: u32,
    /// Name of a process whose blocks outlive it, with a zero after it; empty for others.
    pub name: [c_char; 40],
}

/// A function that is called with a block. It must return: an exception or `longjmp` must not leave it.
// SAFETY: `zonal_pool_for_each_held` states what the function must do.
#[allow(non_camel_case_types)]
pub type zonal_on_block = Option<unsafe extern "C" fn(context: *mut c_void, block: *const zonal_block)>;

/// Text of a snapshot: the state of the pool as JSON.
pub const ZONAL_SNAPSHOT_JSON: u32 = 0;
/// Text of a snapshot: zones in the format of `/proc/zoneinfo`.
pub const ZONAL_SNAPSHOT_ZONEINFO: u32 = 1;
/// Text of a snapshot: free blocks by order in the format of `/proc/buddyinfo`.
pub const ZONAL_SNAPSHOT_BUDDYINFO: u32 = 2;
/// Text of a snapshot: counters in the format of `/proc/vmstat`.
pub const ZONAL_SNAPSHOT_VMSTAT: u32 = 3;
/// Text of a snapshot: the fallback order of each node, as Linux prints it when it boots.
pub const ZONAL_SNAPSHOT_FALLBACK_LISTS: u32 = 4;

/// Why a reclaimer is called: a near node's memory is preferred to free memory of far ones. It must be quick.
pub const ZONAL_RECLAIM_NODE: u32 = 0;
/// Why a reclaimer is called: a request cannot be served otherwise, and waits.
pub const ZONAL_RECLAIM_DIRECT: u32 = 1;
/// Why a reclaimer is called: free memory is below the watermark `low`; no request waits.
pub const ZONAL_RECLAIM_BACKGROUND: u32 = 2;
/// Why a reclaimer is called: a range of pages is needed as a whole, to allocate it or to return it to the kernel.
pub const ZONAL_RECLAIM_RANGE: u32 = 3;
/// Why a reclaimer is called: `zonal_pool_reclaim`.
pub const ZONAL_RECLAIM_SHRINK: u32 = 4;

/// Flag of a request to a reclaimer: contents may be written to storage.
pub const ZONAL_RECLAIM_MAY_WRITE: u32 = 1;
/// Flag of a request to a reclaimer: pages that are mapped somewhere may be unmapped.
pub const ZONAL_RECLAIM_MAY_UNMAP: u32 = 2;

/// What a reclaimer should free.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct zonal_reclaim_request {
    /// `sizeof(zonal_reclaim_request)` of the library.
    pub struct_size: usize,
    /// One of `ZONAL_RECLAIM_NODE` to `ZONAL_RECLAIM_SHRINK`.
    pub reason: u32,
    /// `ZONAL_RECLAIM_MAY_*`, or-ed.
    pub flags: u32,
    /// Node whose pages are wanted.
    pub node: u16,
    /// Reserved.
    pub reserved: [u16; 3],
    /// Number of pages wanted.
    pub pages: u64,
    /// Bytes of the block that is needed. Pages that do not form such a block help less.
    pub block_bytes: u64,
    /// First page of the range that is wanted, if `range_pages` is not 0.
    pub range_frame: u64,
    /// Number of pages in the only range that is wanted, or 0 if any page of the node helps.
    pub range_pages: u64,
}

/// A function of a reclaimer. It returns a number of pages, and must return: an exception or `longjmp` must not leave it.
// SAFETY: `zonal_reclaimer_register` states what the function must do.
#[allow(non_camel_case_types)]
pub type zonal_reclaim =
    Option<unsafe extern "C" fn(context: *mut c_void, request: *const zonal_reclaim_request) -> u64>;

/// Something that can free pages of a pool when memory is short, such as a cache.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct zonal_reclaimer {
    /// `sizeof(zonal_reclaimer)`.
    pub struct_size: usize,
    /// Returns how many pages `reclaim` could free for the request.
    pub count: zonal_reclaim,
    /// Frees pages for the request with `zonal_free`, and returns how many.
    pub reclaim: zonal_reclaim,
    /// First argument of both.
    pub context: *mut c_void,
}

/// A registered reclaimer or callback. A handle stays valid to pass after it was unregistered, and is then refused.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(non_camel_case_types)]
pub struct zonal_registration {
    /// Number of the registration. Zero is none.
    pub id: u64,
}

/// Kind of a memory pressure event: a request found a zone of the node below its watermark `low`.
pub const ZONAL_PRESSURE_BELOW_LOW: u32 = 0;
/// Kind of a memory pressure event: all zones of the node are above their watermark `high` again.
pub const ZONAL_PRESSURE_ABOVE_HIGH: u32 = 1;
/// Kind of a memory pressure event: reclaim begins to stall requests that prefer the node.
pub const ZONAL_PRESSURE_STALLING: u32 = 2;
/// Kind of a memory pressure event: a request that prefers the node is about to fail.
pub const ZONAL_PRESSURE_FAILING: u32 = 3;
/// Kind of a memory pressure event: one that a later version of the library added.
pub const ZONAL_PRESSURE_OTHER: u32 = 4;

/// An event of memory pressure, with the state of the node when the callback is called. Counts are in pages.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct zonal_pressure_event {
    /// `sizeof(zonal_pressure_event)` of the library.
    pub struct_size: usize,
    /// One of `ZONAL_PRESSURE_*`.
    pub kind: u32,
    /// Node whose memory is short.
    pub node: u16,
    /// Reserved.
    pub reserved: u16,
    /// Free pages of the node.
    pub free: u64,
    /// Sum of its zones' `low` watermarks.
    pub low: u64,
    /// Sum of its zones' `high` watermarks.
    pub high: u64,
    /// Share of the last 10, 60 and 300 seconds in which reclaim stalled requests, in hundredths of a percent.
    pub stalled: [u16; 3],
    /// Reserved.
    pub reserved_2: u16,
}

/// A callback for events of memory pressure. It must return: an exception or `longjmp` must not leave it.
// SAFETY: `zonal_pressure_register` states what the function must do.
#[allow(non_camel_case_types)]
pub type zonal_on_pressure =
    Option<unsafe extern "C" fn(context: *mut c_void, event: *const zonal_pressure_event)>;

/// A function that runs while the threads of a pool pause. `in_reclaimers` is the number of those that do not, because they
/// are in a reclaimer.
// SAFETY: `zonal_pool_pause_threads` states what the function must do.
#[allow(non_camel_case_types)]
pub type zonal_while_paused = Option<unsafe extern "C" fn(context: *mut c_void, in_reclaimers: usize)>;

impl Default for zonal_pool_options {
    fn default() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            size: 0,
            max_size: 0,
            nodes: std::ptr::null(),
            nodes_len: 0,
            fake_nodes: 0,
            huge_pages: 0,
            flags: 0,
            prefault_threads: 0,
            page_bytes: 0,
            quarantine_pages: 0,
            block_bytes_max: 0,
            settings: std::ptr::null(),
            progress: None,
            progress_context: std::ptr::null_mut(),
            shared_path: std::ptr::null(),
            processes: 0,
            reserved: 0,
            process_name: std::ptr::null(),
        }
    }
}

impl zonal_request {
    /// A request for a page near the calling CPU.
    pub(crate) const PAGE: Self = Self {
        struct_size: size_of::<Self>(),
        bytes: 0,
        alignment: 0,
        flags: 0,
        policy: ZONAL_POLICY_LOCAL,
        nodes: std::ptr::null(),
        nodes_len: 0,
        policy_handle: zonal_policy { id: 0 },
    };
}

impl Default for zonal_request {
    fn default() -> Self {
        Self::PAGE
    }
}

impl Default for zonal_block {
    fn default() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            address: std::ptr::null_mut(),
            bytes: 0,
            frame: 0,
            node: 0,
            reserved: [0; 3],
        }
    }
}

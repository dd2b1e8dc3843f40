//! The structures of the interface. Each begins with its size, so that a program that was built for another version is refused.

use std::ffi::c_void;

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
    /// Number of entries of `nodes`.
    pub nodes_len: usize,
    /// Number of emulated nodes, for tests. Default: the nodes of the machine.
    pub fake_nodes: u32,
    /// One of `ZONAL_HUGE_PAGES_*`.
    pub huge_pages: u32,
    /// `ZONAL_POOL_*`, or-ed.
    pub flags: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Called with the progress of `ZONAL_POOL_PREFAULT`, or null.
    pub progress: zonal_progress,
    /// First argument of `progress`.
    pub progress_context: *mut c_void,
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
    /// `ZONAL_REQUEST_*`, or-ed.
    pub flags: u32,
    /// One of `ZONAL_POLICY_*`.
    pub policy: u32,
    /// Numbers of the nodes of the policy.
    pub nodes: *const u16,
    /// Number of entries of `nodes`.
    pub nodes_len: usize,
}

/// A block of memory that was allocated.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct zonal_block {
    /// `sizeof(zonal_block)`, which the caller sets.
    pub struct_size: usize,
    /// The memory, aligned to a page. If `bytes` is a power of two of at most 4 MiB, it is aligned to `bytes`.
    pub address: *mut c_void,
    /// Number of bytes, which are whole pages.
    pub bytes: usize,
    /// Number of the first page of the block in the pool.
    pub frame: u64,
    /// Node of the memory.
    pub node: u16,
    /// Reserved.
    pub reserved: [u16; 3],
}

/// The pages of a pool. `managed` is the sum of the other three.
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
    /// Allocated pages.
    pub allocated: u64,
}

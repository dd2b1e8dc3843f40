//! The memory of a pool, and the system calls on it.
//!
//! `memory/plan.rs` determines the sizes of zones, using `memory/split.rs`. `memory/zones.rs` maps the zones and
//! converts between frames and addresses, and `memory/metadata.rs` maps the metadata of the allocator. Both use
//! `memory/mapping.rs`, which makes the system calls. `memory/huge_pages.rs` has the kinds of huge pages, and
//! `memory/shared_file.rs` creates files that other processes can map. `memory/committed.rs` counts the memory of all
//! pools in a process. `memory/origin.rs` and `memory/not_copied.rs` handle children made by `fork`, and
//! `memory/range_list.rs` is a list that such children can read. No file in this folder depends on the allocator or on
//! the threads of a pool.

pub(crate) mod committed;
pub(crate) mod huge_pages;
pub(crate) mod mapping;
pub(crate) mod metadata;
mod not_copied;
pub(crate) mod origin;
pub(crate) mod page_sizes;
pub(crate) mod plan;
pub(crate) mod pool_file;
pub(crate) mod pool_socket;
pub(crate) mod pool_zones;
pub(crate) mod range_list;
pub(crate) mod residency;
pub(crate) mod shared_file;
mod split;
pub(crate) mod zones;

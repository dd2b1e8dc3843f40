//! The memory of a pool, and what the kernel is asked to do with it.
//!
//! `plan.rs` (with `split.rs`) says how large zones are, `zones.rs` maps them and translates between frames and
//! addresses, `metadata.rs` maps the allocator's own state; both do so by `mapping.rs`, the one file that maps and
//! unmaps. `origin.rs`, `not_copied.rs`, `promised.rs` and `range_list.rs` are about children made by `fork`, and about
//! what all pools of a process have together. Nothing here knows of allocators or threads.

pub(crate) mod mapping;
pub(crate) mod metadata;
mod not_copied;
pub(crate) mod origin;
pub(crate) mod page_sizes;
pub(crate) mod plan;
pub(crate) mod promised;
mod range_list;
mod split;
pub(crate) mod zones;

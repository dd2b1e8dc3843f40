//! The memory of a pool, and the system calls on it.
//!
//! `memory/plan.rs` (with `memory/split.rs`) decides how large zones are, `memory/zones.rs` maps them and converts
//! between frames and addresses, `memory/metadata.rs` maps the allocator's own state. Both use `memory/mapping.rs`,
//! the only file that maps and unmaps. `memory/origin.rs`, `memory/not_copied.rs`, `memory/committed.rs` and
//! `memory/range_list.rs` handle children made by `fork`, and what all pools of a process share. Nothing here
//! depends on allocators or threads.

pub(crate) mod committed;
pub(crate) mod mapping;
pub(crate) mod metadata;
mod not_copied;
pub(crate) mod origin;
pub(crate) mod page_sizes;
pub(crate) mod plan;
mod range_list;
mod split;
pub(crate) mod zones;

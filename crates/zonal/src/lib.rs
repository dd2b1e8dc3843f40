//! zonal: a NUMA-aware page-frame allocator.
#![no_std]
#![deny(unsafe_code)]
#[cfg(test)]
extern crate std;

mod alloc;
mod allocator;
mod buddy;
mod buddy_ranges;
mod buddy_shape;
#[cfg(test)]
mod buddy_tests;
mod buddy_verify;
mod buddy_words;
#[allow(unsafe_code)] // builds cells in the caller's buffers
mod carve;
pub mod config;
mod counters;
pub mod error;
mod events;
pub mod fallback;
mod find_first;
mod frame_table;
mod free;
pub mod layout;
mod lists;
mod lock;
pub mod machine;
mod node;
mod node_mask;
mod online;
mod pageset;
pub mod pageset_limits;
pub mod pageset_tuning;
#[allow(unsafe_code)] // only `ZeroedCells::promise`
pub mod platform;
pub mod policy;
mod quarantine;
mod reach;
pub mod reclaim;
mod refill;
pub mod request;
mod scan;
mod settings;
mod slow_path;
pub mod snapshot;
#[cfg(test)]
pub(crate) mod testing;
pub mod threshold;
mod tick;
pub mod units;
mod verify;
pub mod watermarks;
mod zone;
mod zonelist;
mod zonelist_cache;

pub use allocator::Allocator;
pub use carve::Buffer;
pub use config::Config;
pub use layout::Layout;
pub use machine::Machine;
pub use node_mask::NodeMask;
pub use platform::Platform;
pub use policy::Policy;
pub use request::{Block, Request};

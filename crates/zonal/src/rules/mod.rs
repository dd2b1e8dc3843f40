//! The policy rules of Linux kernels: pure functions over plain values, without atomics, locks or a platform.
//!
//! The allocator applies these rules, machine files use them to predict values, and the simulator compares them. Each
//! file contains the rules of one subject and cites their source.

pub mod fallback_order;
pub mod pageset_limits;
pub mod pageset_tuning;
pub(crate) mod sort;
pub mod stat_threshold;
pub mod watermarks;
pub mod zonelist_cache;

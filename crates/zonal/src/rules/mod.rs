//! The rules of Linux kernels as pure arithmetic over plain values, without cells, locks or a platform.
//!
//! The allocator applies them, machine files use them for predictions, and the simulator compares them. Each file
//! contains one rule and cites its source.

pub mod fallback_order;
pub mod pageset_limits;
pub mod pageset_tuning;
pub mod stat_threshold;
pub mod watermarks;

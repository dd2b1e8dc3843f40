//! Rules of kernels as pure arithmetic over plain values, without cells, locks or a platform.
//!
//! The allocator applies them, machine files predict with them, and the simulator compares them. Each file is one
//! rule and cites where it comes from.

pub mod fallback_order;
pub mod pageset_limits;
pub mod pageset_tuning;
pub mod stat_threshold;
pub mod watermarks;

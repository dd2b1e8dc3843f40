//! zonal: a NUMA-aware page-frame allocator.
#![no_std]
#![deny(unsafe_code)]
#[cfg(test)]
extern crate std;

mod counters;
pub mod fallback;
mod lock;
pub mod machine;
pub mod pageset_limits;
pub mod pageset_tuning;
#[allow(unsafe_code)] // only `ZeroedCells::promise`
pub mod platform;
pub mod reclaim;
pub mod request;
pub mod threshold;
pub mod units;
pub mod watermarks;

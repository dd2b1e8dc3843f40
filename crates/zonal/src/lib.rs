//! zonal: a NUMA-aware page-frame allocator.
#![no_std]
#![deny(unsafe_code)]
#[cfg(test)]
extern crate std;

mod lock;
pub mod machine;
#[allow(unsafe_code)] // only `ZeroedCells::promise`
pub mod platform;
pub mod reclaim;
pub mod request;
pub mod units;

//! zonal: a NUMA-aware page-frame allocator.
#![no_std]
#![deny(unsafe_code)]
#[cfg(test)]
extern crate std;

#[allow(dead_code)] // zone.rs and pageset.rs are the users
mod counters;
mod lock;
pub mod machine;
#[allow(dead_code)] // pageset.rs is the user of the cell forms
pub mod pageset_tuning;
#[allow(unsafe_code)] // only `ZeroedCells::promise`
pub mod platform;
pub mod reclaim;
pub mod request;
pub mod units;

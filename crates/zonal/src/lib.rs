//! zonal: a NUMA-aware page-frame allocator.
#![no_std]
#![deny(unsafe_code)]
#[cfg(test)]
extern crate std;

#[allow(dead_code)] // until zones use it
mod buddy;
#[allow(dead_code)] // until zones use it
mod buddy_ranges;
#[allow(dead_code)] // until zones use it
mod buddy_shape;
#[cfg(test)]
mod buddy_tests;
#[cfg(test)]
mod buddy_timing;
#[allow(dead_code)] // until zones use it
mod buddy_verify;
#[allow(dead_code)] // until zones use it
mod buddy_words;
#[allow(dead_code)] // until zones use it
mod find_first;
#[allow(dead_code)] // until zones use it
mod lock;
pub mod machine;
#[allow(unsafe_code)] // only `ZeroedCells::promise`
pub mod platform;
pub mod reclaim;
pub mod request;
#[cfg(test)]
pub(crate) mod testing;
pub mod units;

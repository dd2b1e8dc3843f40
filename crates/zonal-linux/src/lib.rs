//! Pools.

pub mod workload;

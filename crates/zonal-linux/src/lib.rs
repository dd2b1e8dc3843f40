//! Pools of this machine's memory.
#![allow(dead_code, unused)]
mod cpu_map;
mod current_cpu;
mod error;
mod key;
mod limits;
mod live;
mod lock;
mod mapping;
mod memory;
mod plan;
mod prefault;
mod reclaimers;
mod split;
mod topology;
mod wake;

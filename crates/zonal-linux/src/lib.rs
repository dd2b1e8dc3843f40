//! Pools of this machine's memory.
mod cpu_map;
mod current_cpu;
mod error;
mod key;
mod limits;
mod live;
mod lock;
mod mapping;
mod reclaimers;
mod split;
mod topology;
mod wake;

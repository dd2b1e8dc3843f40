//! CPUs and memory that come and go.

mod cpus_and_memory;
mod zone_parts;

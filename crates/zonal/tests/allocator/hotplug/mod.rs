//! Tests of CPUs and memory that go online and offline.

mod cpus_and_memory;
mod zone_parts;

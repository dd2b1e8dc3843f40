//! Tests of CPUs and memory that go online and offline.

mod cpus_and_memory;
mod fence_borders;
mod fences;
mod leaving_memory;
mod retired_frames;
mod sections;
mod zone_parts;

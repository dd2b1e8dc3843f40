//! Tests of starting an allocator and of the cost of its metadata.

mod absent_memory;
mod parts;
mod start;
mod start_large;

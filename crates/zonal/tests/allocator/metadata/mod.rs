//! Tests of starting an allocator and what its metadata costs.

mod absent_memory;
mod parts;
mod start;
mod start_large;

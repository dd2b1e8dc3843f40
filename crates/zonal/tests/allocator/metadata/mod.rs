//! Starting an allocator, and the cost of its metadata.

mod absent_memory;
mod parts;
mod start;
mod start_large;

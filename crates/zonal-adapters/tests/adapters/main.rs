//! Tests of the adapters through the code of the other projects.
//!
//! `common.rs` has allocators whose frames are memory of the test.

mod common;

mod containers;
mod guests;
mod kernels;
mod page_tables;

//! Tests of the adapters through the other projects' code.
//!
//! `common.rs` has allocators whose frames are memory of the test.

mod common;

mod containers;
mod guests;
mod kernels;
mod page_tables;

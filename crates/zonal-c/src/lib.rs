//! The C interface of zonal.
//!
//! `include/zonal.h` declares it, and `include/zonal.hpp` wraps it for C++. A test generates the header from these sources
//! and compares them.
//!
//! - `status.rs`: status codes, and the message of the last failed call;
//! - `types.rs`: the structures, each of which begins with its size;
//! - `calls.rs` and `handle.rs`: handles of pools, which are checked in every call;
//! - `pool.rs`: building, closing and observing pools;
//! - `blocks.rs`: allocation and free;
//! - `change.rs`: changes of size and settings.
//!
//! Every function catches panics, so that no unwinding leaves the library. `cargo xtask install-c` builds and installs the
//! library.
#![allow(unreachable_pub)] // the public items are reached by their symbols, not by their paths

mod arguments;
mod blocks;
mod callbacks;
mod calls;
mod change;
mod handle;
mod policy;
mod pool;
mod request;
mod state;
mod status;
mod table;
pub mod types;

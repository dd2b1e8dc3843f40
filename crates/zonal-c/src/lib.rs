//! The C interface of zonal.
//!
//! `include/zonal.h` declares it, and `include/zonal.hpp` wraps it for C++. A test generates the header from these sources
//! and compares them.
//!
//! - `status.rs`: status codes, and the message of the last failed call;
//! - `types.rs`: the structures, each of which begins with its size;
//! - `arguments.rs` and `request.rs`: checks of what callers pass;
//! - `calls.rs` and `handle.rs`: handles of pools, which are checked in every call;
//! - `table.rs`: handles of policies and registrations;
//! - `pool.rs`, `change.rs` and `state.rs`: building, closing, changing and observing pools;
//! - `processes.rs`, `kept.rs`: pools that processes share;
//! - `blocks.rs` and `policy.rs`: allocation and free, and where blocks are;
//! - `callbacks.rs`: what a pool calls when memory is short.
//!
//! Every function catches panics, so that no unwinding leaves the library. `cargo xtask install-c` builds and installs the
//! library.
#![allow(unreachable_pub)] // the public items are reached by their symbols, not by their paths

mod arguments;
pub mod blocks;
pub mod callbacks;
mod calls;
pub mod change;
mod handle;
pub mod kept;
pub mod policy;
pub mod pool;
pub mod processes;
mod request;
pub mod state;
pub mod status;
mod table;
pub mod types;

//! `libzonal_malloc.so` replaces `malloc` in an unchanged program (`LD_PRELOAD`). It is mimalloc 3, whose memory comes
//! from a zonal pool: on chosen nodes, with huge pages, populated before use. `docs/malloc.md` is the manual.
//!
//! ```text
//! start      the steps before `main`: options, pool, arenas, report at exit
//! |- options   environment variables, checked before anything is built
//! |- limits      what the limits of the process leave for a pool
//! |- arenas    the pool's memory, given to mimalloc in pieces of up to 16 GiB
//! |- nodes     the node of each thread
//! `- report    what is placed where, measured at exit
//! exports    the functions that programs call
//! mimalloc   the functions of mimalloc
//! ```

// Tests of this crate's code do not start the library.
#![cfg_attr(test, allow(dead_code))]

mod arenas;
mod errno;
// In a test program, these would replace the allocator of the tests themselves.
#[cfg(not(test))]
mod exports;
mod limits;
mod mimalloc;
mod nodes;
mod options;
mod report;
mod start;

//! Fuzzes calls of the C interface, compared with a model.
//!
//! To run it, with cargo-fuzz and a nightly compiler, from the root of the repository:
//!
//! ```text
//! mkdir -p fuzz/corpus/c_interface
//! cargo +nightly fuzz run c_interface fuzz/corpus/c_interface -- -timeout=60 -max_len=8192
//! ```
//!
//! A finding is written to `fuzz/artifacts`. `cargo test -p zonal-c --test random_calls` makes the same calls from random
//! bytes.
#![no_main]

#[path = "../../crates/zonal-c/tests/calls/mod.rs"]
mod calls;

libfuzzer_sys::fuzz_target!(|data: &[u8]| calls::run(data));

//! Fuzzes traces.
//!
//! To run it, with cargo-fuzz and a nightly compiler, from the root of the repository:
//!
//! ```text
//! mkdir -p fuzz/corpus/trace_file
//! cargo +nightly fuzz run trace_file fuzz/corpus/trace_file \
//!     crates/zonal-verify/corpus/trace_file -- -timeout=20
//! ```
//!
//! New inputs are written to the first folder; the second has those of the repository. A finding is written
//! to `fuzz/artifacts`. To keep it, add it to the second folder, whose files
//! `cargo test -p zonal-verify --test corpus` replays.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| zonal_verify::targets::trace_file::target(data));

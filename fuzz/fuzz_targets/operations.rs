//! Fuzzes operations on a small machine, compared with the naive model.
//!
//! To run it, with cargo-fuzz and a nightly compiler, from the root of the repository:
//!
//! ```text
//! mkdir -p fuzz/corpus/operations
//! cargo +nightly fuzz run operations fuzz/corpus/operations \
//!     crates/zonal-verify/corpus/operations -- -timeout=20 -use_value_profile=1
//! ```
//!
//! New inputs are written to the first folder; the second has those of the repository. A finding is written
//! to `fuzz/artifacts`. To keep it, add it to the second folder, whose files
//! `cargo test -p zonal-verify --test corpus` replays.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| zonal_verify::targets::operations::target(data));

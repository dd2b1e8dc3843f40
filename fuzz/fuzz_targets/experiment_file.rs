//! Fuzzes experiment files.
//!
//! To run it, with cargo-fuzz and a nightly compiler, from the root of the repository:
//!
//! ```text
//! mkdir -p fuzz/corpus/experiment_file
//! cargo +nightly fuzz run experiment_file fuzz/corpus/experiment_file \
//!     crates/zonal-verify/corpus/experiment_file -- -timeout=20 -dict=fuzz/dictionaries/experiment_file.dict
//! ```
//!
//! New inputs are written to the first folder; the second has those of the repository. A finding is written
//! to `fuzz/artifacts`. To keep it, add it to the second folder, whose files
//! `cargo test -p zonal-verify --test corpus` replays. Each input is written to files, so a `TMPDIR` in
//! memory is faster.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| zonal_verify::targets::experiment_file::target(data));

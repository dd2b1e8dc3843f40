//! Fuzzes machine files.
//!
//! To run it, with cargo-fuzz and a nightly compiler, from the root of the repository:
//!
//! ```text
//! mkdir -p fuzz/corpus/machine_file
//! cargo +nightly fuzz run machine_file fuzz/corpus/machine_file \
//!     crates/zonal-verify/corpus/machine_file -- -timeout=20 -dict=fuzz/dictionaries/machine_file.dict
//! ```
//!
//! New inputs are written to the first folder; the second has those of the repository. A finding is written
//! to `fuzz/artifacts`. To keep it, add it to the second folder, whose files
//! `cargo test -p zonal-verify --test corpus` replays.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| zonal_verify::targets::machine_file::target(data));

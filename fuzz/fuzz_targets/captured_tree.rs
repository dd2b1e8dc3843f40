//! Fuzzes trees of `/proc` and `/sys` files.
//!
//! To run it, with cargo-fuzz and a nightly compiler, from the root of the repository:
//!
//! ```text
//! mkdir -p fuzz/corpus/captured_tree
//! cargo +nightly fuzz run captured_tree fuzz/corpus/captured_tree \
//!     crates/zonal-verify/corpus/captured_tree -- -timeout=20 -dict=fuzz/dictionaries/captured_tree.dict
//! ```
//!
//! New inputs are written to the first folder; the second has those of the repository. A finding is written
//! to `fuzz/artifacts`. To keep it, add it to the second folder, whose files
//! `cargo test -p zonal-verify --test corpus` replays. Each input is written to files, so a `TMPDIR` in
//! memory is faster.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| zonal_verify::targets::captured_tree::target(data));

//! Trees of `/proc` and `/sys` files.
//!
//! To run it, with cargo-fuzz and a nightly compiler, from the root of the repository:
//!
//! ```text
//! mkdir -p fuzz/corpus/captured_tree
//! cargo +nightly fuzz run captured_tree fuzz/corpus/captured_tree \
//!     crates/zonal-verify/corpus/captured_tree -- -timeout=20 -dict=fuzz/dictionaries/captured_tree.dict
//! ```
//!
//! New inputs go to the first folder, the second has those that came with the repository. A finding is
//! written to `fuzz/artifacts`; what is kept of it belongs into the second folder, whose files
//! `cargo test -p zonal-verify --test corpus` replays.
//! Each input is written to files: a `TMPDIR` in memory makes that quick.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| zonal_verify::targets::captured_tree::target(data));

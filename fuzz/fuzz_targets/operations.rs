//! Operations on a small machine, against the naive model.
//!
//! To run it, with cargo-fuzz and a nightly compiler, from the root of the repository:
//!
//! ```text
//! mkdir -p fuzz/corpus/operations
//! cargo +nightly fuzz run operations fuzz/corpus/operations \
//!     crates/zonal-verify/corpus/operations -- -timeout=20 -use_value_profile=1
//! ```
//!
//! New inputs go to the first folder, the second has those that came with the repository. A finding is
//! written to `fuzz/artifacts`; what is kept of it belongs into the second folder, whose files
//! `cargo test -p zonal-verify --test corpus` replays.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| zonal_verify::targets::operations::target(data));

//! Fuzzes kernel logs with reports of failed requests.
//!
//! To run it, with cargo-fuzz and a nightly compiler, from the root of the repository:
//!
//! ```text
//! mkdir -p fuzz/corpus/kernel_log
//! cargo +nightly fuzz run kernel_log fuzz/corpus/kernel_log \
//!     crates/zonal-verify/corpus/kernel_log -- -timeout=20 -dict=fuzz/dictionaries/kernel_log.dict
//! ```
//!
//! New inputs are written to the first folder; the second has those of the repository. A finding is written
//! to `fuzz/artifacts`. To keep it, add it to the second folder, whose files
//! `cargo test -p zonal-verify --test corpus` replays.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| zonal_verify::targets::kernel_log::target(data));

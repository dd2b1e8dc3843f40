//! Checks the assembled instructions of restartable sequences against the tables of accesses that the core keeps
//! next to `Head`, and that loom and shuttle explore.
//!
//! Every inlined copy in this program is checked, and every copy in the library of another architecture, if
//! `ZONAL_LIBRARY` names one (`cargo xtask test` builds it). A *sequence* is what one descriptor describes to the
//! kernel. Neighbours: `found.rs` finds sequences, `decode.rs` and the files of the architectures decode their
//! instructions, `trace.rs` determines what they access.

mod decode;
mod found;
mod trace;

#[path = "../common/mod.rs"]
mod common;

use std::collections::BTreeMap;

use found::Found;
use trace::Kind;
use zonal::units::Order;
use zonal_linux::{Pool, PoolRequest};

/// Checks all copies against the tables; returns how many of each kind there are.
fn check(all: &[Found]) -> BTreeMap<Kind, usize> {
    let mut counts = BTreeMap::new();
    for found in all {
        let kind = trace::check(found).unwrap_or_else(|fault| panic!("{fault}, in {found}"));
        *counts.entry(kind).or_insert(0) += 1;
    }
    counts
}

#[test]
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn the_sequences_of_this_program_access_memory_in_the_order_of_the_tables() {
    // Makes sure that this program has copies too, not only the library.
    let pool = Pool::builder().size(16 << 20).build().unwrap();
    let block = pool.alloc_raw(&PoolRequest::page()).unwrap();
    // SAFETY: just allocated, and freed once.
    unsafe { pool.free_raw(block.first, Order::PAGE) }.unwrap();
    let counts = check(&found::in_this_program(common::sequences()));
    eprintln!("{counts:?}");
    assert!(Kind::ALL.iter().all(|kind| counts.contains_key(kind)), "some kind is missing: {counts:?}");
}

#[test]
#[ignore = "needs a library in ZONAL_LIBRARY; `cargo xtask test` builds one for aarch64"]
fn the_sequences_of_a_library_access_memory_in_the_order_of_the_tables() {
    let path = std::env::var_os("ZONAL_LIBRARY").expect("a library is named");
    let library = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let counts = check(&found::in_library(&library));
    eprintln!("{}: {counts:?}", path.display());
    assert!(Kind::ALL.iter().all(|kind| counts.contains_key(kind)), "some kind is missing: {counts:?}");
}

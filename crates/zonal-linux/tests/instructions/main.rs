//! Checks the assembled instructions of restartable sequences against the access tables in the core. The tables are
//! next to `Head`; loom and shuttle explore the same tables.
//!
//! A *sequence* is the code that one descriptor describes to the kernel. The test checks every inlined copy in this
//! program. If `ZONAL_LIBRARY` names a library for another architecture, a second test checks every copy in that
//! library (`cargo xtask test` builds it). Related files: `found.rs` finds sequences, `decode.rs` and the files of
//! the architectures decode their instructions, and `trace.rs` determines the memory that they access.

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

/// Checks all copies against the tables, and returns the copies of each kind.
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
    // These calls make sure that the linker includes copies in this program.
    let pool = Pool::builder().size(16 << 20).build().unwrap();
    let block = pool.alloc_raw(&PoolRequest::page()).unwrap();
    // SAFETY: the block was just allocated, and is freed once.
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

//! The instructions of restartable sequences, as they were assembled, against the tables of accesses that
//! the core keeps beside `Head` and that loom and shuttle go through.
//!
//! Every inlined copy in this program is looked at; and every copy in the library of another architecture, when
//! `ZONAL_LIBRARY` names one (`cargo xtask test` builds it). Vocabulary: a *sequence* is what one descriptor
//! tells the kernel. Neighbours: `found.rs` finds sequences, `decode.rs` and the files of architectures
//! read their instructions, `trace.rs` says what they access.

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

/// Holds all copies against the tables; gives how many of each kind there are.
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
    // So that there are copies in this program too, not only in the library.
    let pool = Pool::builder().size(16 << 20).build().unwrap();
    let block = pool.alloc_raw(&PoolRequest::page()).unwrap();
    // SAFETY: just allocated, freed once.
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

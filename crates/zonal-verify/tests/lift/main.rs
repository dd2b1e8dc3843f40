//! Checks that the machine code of restartable sequences satisfies the contract, and that broken sequences do not.
//!
//! This program has the sequences of a pool. Those for each processor are also compiled from their source
//! file, as written and with small changes that break the contract. Related files: `compiled.rs` compiles them, and
//! `x86_64.rs` and `aarch64.rs` list the changes.

mod aarch64;
mod compiled;
mod x86_64;

use std::collections::BTreeMap;

use compiled::{Assembly, Change, FUNCTIONS, compile, is_installed, link_with_lld};
use zonal_linux::{Order, Pool, PoolRequest};
use zonal_testing::skipped;
use zonal_verify::lift::{Kind, check, sequences};

#[test]
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn sequences_of_a_program_with_a_pool_satisfy_the_contract() {
    // These calls make sure that the linker includes sequences of all kinds in this program.
    let pool = Pool::builder().size(16 << 20).build().expect("there is memory for a small pool");
    let block = pool.alloc_raw(&PoolRequest::page()).expect("a new pool has free pages");
    // SAFETY: the block was just allocated, and is freed once.
    unsafe { pool.free_raw(block.first, Order::PAGE) }.expect("the block is allocated");
    let counts =
        check(&std::env::current_exe().expect("the path of the test")).expect("the contract is satisfied");
    println!("{counts}");
    assert!(counts.has_all_kinds(), "{counts}");
}

#[test]
fn sequences_for_x86_64_satisfy_the_contract_unless_they_are_changed() {
    compare(&x86_64::ASSEMBLY);
}

#[test]
fn sequences_for_aarch64_satisfy_the_contract_unless_they_are_changed() {
    compare(&aarch64::ASSEMBLY);
}

#[test]
fn sequences_for_aarch64_that_lld_relaxes_satisfy_the_contract() {
    /// The instruction `nop`.
    const NOP: u32 = 0xd503_201f;
    let assembly = Assembly { changes: &[], ..aarch64::ASSEMBLY };
    if !is_installed(assembly.target) {
        skipped!("target {0} not installed (rustup target add {0})", assembly.target);
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let object = compile(&assembly, folder.path());
    let Some(library) = link_with_lld(&object) else {
        skipped!("the toolchain has no rust-lld");
        return;
    };
    let [before, after] = [&object, &library].map(|file| {
        let data = std::fs::read(file).expect("the file was written");
        data.as_chunks().0.iter().filter(|word| u32::from_le_bytes(**word) == NOP).count()
    });
    assert!(before < after, "lld has replaced nothing: {before} nop in the object, {after} in the library");
    let counts = check(&library).expect("the contract is satisfied");
    assert!(counts.has_all_kinds(), "{counts}");
}

/// Checks the sequences as written, and each change to them.
fn compare(assembly: &Assembly) {
    if !is_installed(assembly.target) {
        skipped!("target {0} not installed (rustup target add {0})", assembly.target);
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let object = compile(assembly, folder.path());
    let sequences = sequences(&object).expect("rustc writes valid objects");
    let lift = |function: String| {
        let mut found = sequences.iter().filter(|sequence| sequence.function() == function);
        let sequence = found.next().unwrap_or_else(|| panic!("no sequence in {function}"));
        assert!(found.next().is_none(), "several sequences in {function}");
        sequence.lift().and_then(|lifted| lifted.kind())
    };
    let written: BTreeMap<Kind, _> = FUNCTIONS
        .map(|function| (lift(function.symbol(None)).expect("the contract is satisfied"), function.name))
        .into();
    assert!(Kind::ALL.iter().all(|kind| written.contains_key(kind)), "{written:?}");
    let mut wrong = Vec::new();
    for (number, Change { what, of, says, .. }) in assembly.changes.iter().enumerate() {
        let function =
            FUNCTIONS.iter().find(|function| function.name == *of).expect("the function is listed");
        match (lift(function.symbol(Some(number))), says) {
            (Ok(_), None) => {}
            (Err(fault), Some(says)) if says.iter().all(|part| fault.to_string().contains(part)) => {
                println!("{}: {of}, {what}: {fault}", assembly.target);
            }
            (found, _) => wrong.push(format!(
                "{of}, {what}: {}",
                found.map_or_else(|fault| fault.to_string(), |kind| format!("accepted as a {kind}"))
            )),
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", assembly.target, wrong.join("\n"));
}

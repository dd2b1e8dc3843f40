//! Replaces the file of this name in `zonal-linux` with loom's types. Time does not pass in a model, so a thread that
//! is not notified waits for ever.
#![allow(dead_code, unused_imports)] // each test file uses a part

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LockResult};

pub(crate) use loom::sync::atomic::{AtomicBool, Ordering};
pub(crate) use loom::sync::{Condvar, Mutex};

pub(crate) fn held<G>(locked: LockResult<G>) -> G {
    locked.unwrap_or_else(|_| panic!("a thread failed"))
}

/// Explores the interleavings of `scenario` with up to four preemptions, or all of them if `ZONAL_INTERLEAVINGS` is
/// set.
pub(crate) fn check(name: &str, scenario: fn()) {
    let is_bounded = std::env::var_os("ZONAL_INTERLEAVINGS").is_none();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = is_bounded.then_some(4);
    let tried = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&tried);
    builder.check(move || {
        count.fetch_add(1, Relaxed); // relaxed: threads of a model run one at a time
        scenario();
    });
    let extent = if is_bounded { "up to four preemptions" } else { "all" };
    println!("{name}: {} interleavings, {extent}", tried.load(Relaxed));
}

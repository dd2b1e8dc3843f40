//! Builds a pool under a limit of the address space that is raised step by step. Every part that needs addresses
//! fails once, each time with a reason and without a leak, until the pool can be built.
//!
//! The test starts itself again as a child, because the limit applies to a whole process.

use std::collections::BTreeSet;
use std::process::Command;

use zonal_linux::{Pool, PoolError, PoolRequest};
use zonal_testing::eventually;

/// Environment variable that is set only in the child.
const CHILD: &str = "ZONAL_TEST_LIMITED_CHILD";
const POOL_BYTES: u64 = 60 << 20;
/// Number of nodes, large enough that the stacks of the threads exceed the addresses that are mapped temporarily to
/// align a zone.
const NODES: usize = 30;
const STEP: u64 = 1 << 20;
/// More bytes than such a pool and its threads' stacks need.
const MOST: u64 = 256 << 20;

/// Returns how many bytes of this process's address space are in use.
fn used() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096
}

fn limit_addresses(bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the limit is valid and outlives the call.
    let failed = unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) };
    assert_eq!(failed, 0, "{}", std::io::Error::last_os_error());
}

/// Enlarges the heap permanently, because the program would abort if the heap ran out.
fn fill_heap() {
    const ROOM: libc::c_int = 16 << 20;
    for (parameter, value) in
        [(libc::M_ARENA_MAX, 1), (libc::M_TRIM_THRESHOLD, libc::c_int::MAX), (libc::M_TOP_PAD, ROOM)]
    {
        // SAFETY: the call sets a parameter of the C library's heap.
        assert_eq!(unsafe { libc::mallopt(parameter, value) }, 1);
    }
    drop(std::hint::black_box(vec![1_u8; 100_000]));
}

fn build() -> Result<Pool, PoolError> {
    Pool::builder().size(POOL_BYTES).fake_nodes(NODES).build()
}

fn be_the_child() {
    fill_heap();
    drop(build().expect("without a limit")); // causes the mappings that stay permanently, such as cached stacks
    let start = used();
    let (mut reasons, mut failures) = (BTreeSet::new(), 0);
    let pool = loop {
        limit_addresses(start - start % 4096 + failures * STEP);
        let built = build();
        limit_addresses(libc::RLIM_INFINITY);
        match built {
            Ok(pool) => break pool,
            Err(PoolError::Map { purpose, source, .. }) => {
                assert_eq!(source.raw_os_error(), Some(libc::ENOMEM));
                reasons.insert(purpose);
            }
            Err(PoolError::Thread(_)) => drop(reasons.insert("a thread".into())),
            Err(other) => panic!("{other}"),
        }
        failures += 1;
        assert!(failures * STEP < MOST, "it never works: {reasons:?}");
        // The threads of a pool end by themselves, and only then are their stacks unmapped.
        eventually(&format!("{start} bytes again after {failures} failures"), || used() <= start);
    };
    println!("{failures} failures, because of {reasons:?}");
    for expected in ["a thread", "node 0 Normal", "node 29 Normal"] {
        assert!(reasons.contains(expected), "{expected} did not fail: {reasons:?}");
    }
    drop(pool.alloc(&PoolRequest::page()).unwrap());
    assert!(pool.verify().unwrap().balance());
}

#[test]
fn every_lack_of_addresses_is_an_error_and_leaks_nothing() {
    if std::env::var_os(CHILD).is_some() {
        return be_the_child();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "every_lack_of_addresses_is_an_error_and_leaks_nothing", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    println!("{text}");
    assert!(output.status.success(), "{text}");
}

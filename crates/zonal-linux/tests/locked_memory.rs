//! Tests a pool in a program that locks all its memory. This file has only one test, because locks apply to the process.

use zonal_linux::{Config, Hardening, Pool, PoolRequest};

const MIB: u64 = 1 << 20;

#[test]
fn offline_memory_is_not_resident_in_a_program_that_locks_its_memory() {
    // SAFETY: the call changes no contents of memory.
    let locked = unsafe { libc::mlockall(libc::MCL_FUTURE) } == 0;
    let hardening = Hardening { poison: Some(0xdead_beef), ..Hardening::default() };
    let config = Config { hardening, ..Config::default() };
    let built = Pool::builder().size(16 * MIB).max_size(1 << 30).config(config).fake_nodes(1).build();
    let Some(pool) = built.ok().filter(|_| locked) else {
        // SAFETY: as above.
        unsafe { libc::munlockall() };
        zonal_testing::skipped!("this process may not lock 1 GiB");
        return;
    };
    let absent = || pool.residency().unwrap()[0].pages.absent;
    assert_eq!(absent(), (1 << 30) - 16 * MIB);
    assert_eq!(pool.grow(16 * MIB).unwrap(), 16 * MIB);
    assert_eq!(absent(), (1 << 30) - 32 * MIB, "what came online is locked");
    let mut pages: Vec<_> = (0..6000).map(|_| pool.alloc(&PoolRequest::page()).unwrap()).collect();
    pages.iter_mut().for_each(|page| page.fill(1));
    drop(pages);
    pool.verify().unwrap();
}

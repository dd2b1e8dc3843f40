//! Tests of pools that reserve more addresses than they have memory, and of requirements that replace warnings.

use std::fs;

use zonal_linux::{
    GrowError, HugePages, PageCount, Pool, PoolError, PoolRequest, Prefault, Warning, available_bytes,
};

const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

fn resident_mib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

/// One test, because others in this process would use memory meanwhile.
#[test]
fn a_terabyte_of_addresses_uses_the_memory_that_is_online() {
    let before = resident_mib();
    let builder = Pool::builder().size(64 * MIB).max_size(TIB).fake_nodes(2).huge_pages(HugePages::Never);
    let pool = builder.clone().build().unwrap();
    assert_eq!(pool.frames().get() * 4096, TIB);
    let accounting = pool.accounting();
    assert_eq!((accounting.managed.get() * 4096, accounting.free), (64 * MIB, accounting.managed));
    let used = resident_mib().saturating_sub(before);
    println!("a pool of 64 MiB that can grow to 1 TiB: {used} MiB are resident");
    assert!(used < 64, "{used} MiB are resident, although no page is in use");

    // It grows in both nodes, and its pages work.
    let grown = pool.grow(128 * MIB).unwrap();
    assert!((128 * MIB..256 * MIB).contains(&grown), "{grown}");
    assert!(pool.zones().all(|zone| zone.managed.get() * 4096 >= 64 * MIB));
    let mut pages: Vec<_> = (0..40_000).map(|_| pool.alloc(&PoolRequest::page()).unwrap()).collect();
    pages.iter_mut().enumerate().for_each(|(at, page)| page.fill(at as u8));
    assert!(pages.iter().enumerate().all(|(at, page)| page[4095] == at as u8));
    drop(pages);

    // What is taken off comes back first, and what cannot come is refused.
    assert_eq!(pool.shrink(grown).unwrap(), grown);
    assert!(pool.accounting().managed.get() * 4096 <= 64 * MIB);
    let error = pool.grow(TIB).unwrap_err();
    assert!(matches!(error, GrowError::TooLarge { asked: TIB, max: TIB, .. }), "{error}");
    let beyond = available_bytes().unwrap() + 64 * MIB;
    let error = pool.grow(beyond).unwrap_err();
    assert!(matches!(error, GrowError::NotAvailable { asked, .. } if asked == beyond), "{error}");
    pool.drain_pagesets();
    assert_eq!(pool.verify().unwrap().allocated, PageCount::ZERO);
    drop(pool);

    // Only what is online is prefaulted.
    let pool = builder.prefault(Prefault::AtOnce).build().unwrap();
    assert!(resident_mib() < before + 256);
    drop(pool);
}

#[test]
fn largest_sizes_that_make_no_sense_are_refused() {
    let error = Pool::builder().size(64 * MIB).max_size(32 * MIB).build().unwrap_err();
    assert!(
        matches!(error, PoolError::MaxSize { asked, max } if (asked, max) == (64 * MIB, 32 * MIB)),
        "{error}"
    );
    let huge = Pool::builder().size(64 * MIB).max_size(TIB).huge_pages(HugePages::Explicit);
    assert!(matches!(huge.build(), Err(PoolError::ReservedHugePages)));
}

#[test]
fn what_is_required_is_an_error_instead_of_a_warning() {
    // No machine has so many huge pages in reserve.
    let builder = Pool::builder().size(64 * MIB).huge_pages(HugePages::Explicit).fake_nodes(1);
    let pool = builder.clone().build().unwrap();
    if pool.warnings().is_empty() {
        zonal_testing::skipped!("this machine has 32 huge pages in reserve");
        return;
    }
    let error = builder.require_huge_pages().build().unwrap_err();
    let PoolError::Required(Warning::NoExplicitHugePages { needed, .. }) = &error else { panic!("{error}") };
    assert_eq!(*needed, 32);
    assert!(error.to_string().contains("vm.nr_hugepages"), "{error}");
    Pool::builder().size(16 * MIB).fake_nodes(2).require_binding().build().unwrap();
}

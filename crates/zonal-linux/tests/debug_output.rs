//! Checks the output of a pool's `Debug` implementation. This test imports nothing but `zonal_linux`.

use zonal_linux::{Accounting, Pool, PoolRequest};

#[test]
fn debug_output_of_a_pool_is_one_short_line() {
    let pool = Pool::builder().size(64 << 20).fake_nodes(2).build().unwrap();
    let page = pool.alloc(&PoolRequest::page()).unwrap();
    let accounting: Accounting = pool.accounting();
    assert_eq!(accounting.allocated.get(), 1);
    assert_eq!(format!("{pool:?}"), format!("Pool(64 MiB, nodes 0-1, {accounting:#})"));
    assert_eq!(format!("{pool:#?}"), format!("{pool:?}"));
    assert!(format!("{accounting}").ends_with("+ 1 allocated (balanced)"), "{accounting}");
    drop(page);
}

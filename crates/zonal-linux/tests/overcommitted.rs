//! Pools each of which fits into memory, but not all of them together. This file has only one test, because a pool's
//! warning depends on all pools of its process.

use zonal_linux::{Pool, Warning, available_bytes};
use zonal_testing::skipped;

fn is_overcommitted(pool: &Pool) -> bool {
    let warned = pool.warnings().iter().find(|one| matches!(one, Warning::Overcommitted { .. }));
    warned.inspect(|warning| {
        let Warning::Overcommitted { committed, available, .. } = warning else { unreachable!() };
        assert!(committed > available, "{warning}");
        assert!(warning.to_string().starts_with("the pools of this process may use "), "{warning}");
    });
    warned.is_some()
}

#[test]
fn overcommitted_pools_warn() {
    let most = available_bytes().unwrap() / 10 * 6;
    let pool = || Pool::builder().size(most).build().unwrap();
    let first = pool();
    assert!(!is_overcommitted(&first));
    let second = pool();
    assert!(is_overcommitted(&second));
    let frames = second.alloc(&zonal_linux::PoolRequest::page()).unwrap();
    drop((first, second));
    // Frames keep the memory of their pool allocated.
    assert!(is_overcommitted(&pool()));
    drop(frames);
    assert!(!is_overcommitted(&pool()));

    // Memory that is offline does not count, and memory that has come online does.
    let grows = Pool::builder().size(64 << 20).max_size(1 << 40).build().unwrap();
    assert!(!is_overcommitted(&pool()));
    let grown = grows.grow(most).unwrap();
    assert!(is_overcommitted(&pool()));
    grows.shrink(grown).unwrap();
    assert!(!is_overcommitted(&pool()));
    drop(grows);

    if available_bytes().unwrap() < 4 << 30 {
        return skipped!("this machine has less than 4 GiB for a heap beside pools");
    }
    // Memory that the process uses for other purposes is not available to pools.
    let heap = vec![1_u8; 1 << 30];
    let half = available_bytes().unwrap() / 2;
    let pools = [half, half + (512 << 20)].map(|bytes| Pool::builder().size(bytes).build().unwrap());
    assert!(is_overcommitted(&pools[1]));
    drop((pools, std::hint::black_box(heap)));
}

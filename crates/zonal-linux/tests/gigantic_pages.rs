//! Tests of 1 GiB blocks, and of pools on explicit 1 GiB pages. If the kernel has none, pools use smaller pages, and
//! warn.

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};

use zonal_linux::{
    Config, HugePages, Order, PageCount, Pool, PoolBuilder, PoolError, PoolRequest, Warning, available_bytes,
};
use zonal_testing::skipped;

#[path = "common/reserve.rs"]
mod reserve;

use reserve::{Files, Reserve};

const GIB: u64 = 1 << 30;

fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Order of 1 GiB blocks.
fn gib() -> Order {
    order(18)
}

fn order(order: u8) -> Order {
    Order::new(order).unwrap()
}

fn pool(gib_of_pool: u64) -> PoolBuilder<'static> {
    let config = Config { max_order: gib(), ..Config::default() };
    Pool::builder().size(gib_of_pool * GIB).fake_nodes(1).config(config)
}

fn free() -> u64 {
    fs::read_to_string(Files::gigantic().free).map_or(0, |text| text.trim().parse().unwrap())
}

/// Allocates a block, writes to it, splits it, and frees it.
fn use_a_block(pool: &Pool, order: Order) {
    let mut block = pool.alloc(&PoolRequest::new(order)).unwrap();
    let last = block.len() - 1;
    assert_eq!((block.len() as u64, block.as_ptr().addr() % block.len()), (order.pages().get() * 4096, 0));
    for at in [0, 1, 99 << 21, last] {
        block[at] = at as u8 | 1;
    }
    for at in [0, 1, 99 << 21, last] {
        assert_eq!(block[at], at as u8 | 1);
    }
    assert_eq!(pool.verify().unwrap().allocated, order.pages());
    drop(block);
    // Single frames of another such block are freed one by one, and the block is whole again.
    let raw = pool.alloc_raw(&PoolRequest::new(order)).unwrap();
    // SAFETY: the block was allocated above, and only this test uses it.
    unsafe { pool.split_frames_raw(raw.first, order.pages(), Order::PAGE) }.unwrap();
    for at in 0..order.pages().get() {
        // SAFETY: the frame is a part of the block, and only this test uses it.
        unsafe { pool.free_raw(raw.first.plus(PageCount::new(at)), Order::PAGE) }.unwrap();
    }
    pool.drain_pagesets();
    drop(pool.alloc(&PoolRequest::new(order)).unwrap());
}

#[test]
fn ordinary_memory_has_blocks_of_a_gibibyte() {
    let _alone = alone();
    if available_bytes().is_ok_and(|bytes| bytes < 3 * GIB) {
        return skipped!("less than 3 GiB are available");
    }
    let pool = pool(2).huge_pages(HugePages::Never).build().unwrap();
    use_a_block(&pool, gib());
    assert_eq!(pool.verify().unwrap().allocated, PageCount::ZERO);
}

#[test]
fn gigantic_pages_back_a_pool_and_return_to_the_reserve() {
    let _alone = alone();
    let raised = Reserve::locked(Files::gigantic()).and_then(|mut reserve| {
        reserve.raise(2).or_else(|_| reserve.raise(1))?;
        Ok(reserve)
    });
    let _reserve = match raised {
        Ok(reserve) => reserve,
        Err(why) => return skipped!("pages of 1 GiB: {why}"),
    };
    // The watermark `min` is in one of the pages, so a block of 1 GiB needs two.
    let (before, pages) = (free(), free().min(2));
    let order = if pages == 2 { gib() } else { order(17) };
    for shared in [false, true] {
        let builder = pool(pages).huge_pages(HugePages::Explicit1G).require_huge_pages();
        let pool = if shared { builder.shared_memory() } else { builder }.build().unwrap();
        assert_eq!((pool.warnings(), free()), (&[][..], before - pages), "shared: {shared}");
        use_a_block(&pool, order);
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
        assert!(smaps.lines().any(|line| line == "KernelPageSize:  1048576 kB"), "shared: {shared}");
        // A page leaves as a whole, and comes back.
        assert_eq!(pool.shrink(1).unwrap(), GIB);
        assert_eq!(free(), before - pages + 1);
        assert_eq!(pool.grow(GIB).unwrap(), GIB);
        assert_eq!(free(), before - pages);
        use_a_block(&pool, order);
        drop(pool);
        assert_eq!(free(), before, "shared: {shared}");
    }
}

#[test]
fn missing_gigantic_pages_are_warned_of_step_by_step() {
    let _alone = alone();
    let _reserve = match Reserve::locked(Files::gigantic()) {
        Ok(reserve) => reserve,
        Err(why) => return skipped!("the reserve of 1 GiB pages: {why}"),
    };
    let pages = free() + 2;
    if available_bytes().is_ok_and(|bytes| bytes < 2 * pages * GIB) {
        return skipped!("the machine is too small to exceed its reserve of {} GiB", free());
    }
    let builder = pool(pages).huge_pages(HugePages::Explicit1G);
    let working = builder.clone().build().unwrap();
    let [Warning::NoExplicitHugePages { bytes: GIB, needed, .. }, rest @ ..] = working.warnings() else {
        panic!("{:?}", working.warnings())
    };
    assert_eq!(*needed, pages);
    let text = working.warnings()[0].to_string();
    assert!(text.contains(&format!("{pages} huge pages of 1 GiB requested")), "{text}");
    assert!(text.ends_with(&format!("hugepages-1048576kB/nr_hugepages to {pages} or more")), "{text}");
    if let [second, ..] = rest {
        assert!(second.to_string().contains("huge pages of 2 MiB requested"), "{second}");
    }
    use_a_block(&working, gib());
    let error = builder.require_huge_pages().build().unwrap_err();
    assert!(matches!(error, PoolError::Required(Warning::NoExplicitHugePages { bytes: GIB, .. })), "{error}");
}

#[test]
fn pools_smaller_than_a_gigantic_page_are_refused() {
    let builder = |nodes| Pool::builder().size(GIB - 1).fake_nodes(nodes).huge_pages(HugePages::Explicit1G);
    for nodes in [1, 3] {
        let error = builder(nodes).build().unwrap_err();
        let PoolError::TooSmall { needed, .. } = error else { panic!("{error}") };
        assert_eq!(needed, nodes as u64 * GIB);
    }
}

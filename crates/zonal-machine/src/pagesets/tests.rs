//! Steps of pagesets computed by hand, for each generation of kernels.
//!
//! Related files: `mod.rs` is tested here.

use super::*;

const HUGE: Order = match Order::new(9) {
    Some(order) => order,
    None => Order::PAGE,
};

const fn pages(count: u64) -> PageCount {
    PageCount::new(count)
}

fn order(order: u8) -> Order {
    Order::new(order).unwrap()
}

fn list(of: u8) -> PagesetList {
    PagesetList { order: order(of), mobility: Mobility::Movable }
}

/// A pageset of a kernel with batch 63.
fn pageset(major: u16, minor: u16, count: u64, limits: (u64, u64)) -> KernelPageset {
    let start = PagesetStart {
        count: pages(count),
        high: pages(limits.0),
        batch: pages(63),
        limits: HighLimits::new(pages(limits.0), pages(limits.1)),
    };
    KernelPageset::new(PagesetKernel::of(KernelVersion::new(major, minor)), &start)
}

fn alloc(pageset: &mut KernelPageset, of: u8) -> Option<u64> {
    pageset.alloc(list(of), ZonePressure::NONE).map(|moved| moved.pages.get())
}

fn free(pageset: &mut KernelPageset, of: u8) -> Option<u64> {
    pageset.free(list(of), ZonePressure::NONE).map(|moved| moved.pages.get())
}

/// Returns how many frames the first drains move.
fn drains(pageset: &mut KernelPageset, frees: usize) -> Vec<u64> {
    (0..frees).filter_map(|_| free(pageset, 0)).collect()
}

/// Returns how many frames the first refills move.
fn refills(pageset: &mut KernelPageset, allocs: usize) -> Vec<u64> {
    (0..allocs).filter_map(|_| alloc(pageset, 0)).collect()
}

#[test]
fn linux_5_10_moves_one_batch() {
    let mut one = pageset(5, 10, 0, (378, 378));
    assert_eq!(refills(&mut one, 190), [63, 63, 63, 63]);
    assert_eq!(one.count(), pages(4 * 63 - 190));
    // 62 frames are left; the 316th free makes 378.
    assert_eq!(drains(&mut one, 315), Vec::<u64>::new());
    assert_eq!(drains(&mut one, 1 + 63 + 63), [63, 63, 63]);
    assert_eq!(one.tick(), None);
}

#[test]
fn linux_6_1_doubles_drains_until_an_allocation() {
    let mut one = pageset(6, 1, 0, (1000, 1000));
    assert_eq!(drains(&mut one, 999), Vec::<u64>::new());
    assert_eq!(drains(&mut one, 1 + 63 + 126 + 252 + 504), [63, 126, 252, 504, 937]);
    // An allocation halves the number of doublings, here from 4 to 2.
    assert_eq!(alloc(&mut one, 0), None);
    let left = 1000 - one.count().get();
    assert_eq!(drains(&mut one, left as usize), [252]);
    // They end at 32 batches, even where `high` would allow more.
    let mut large = pageset(6, 1, 0, (9000, 9000));
    assert_eq!(drains(&mut large, 9000 + 63 * 95)[..], [63, 126, 252, 504, 1008, 2016, 2016, 2016]);
}

#[test]
fn reclaimed_zones_hold_four_batches() {
    let reclaimed = ZonePressure { level: ZoneLevel::Above, reclaim: Reclaim::Active };
    for (minor, small) in [(1, 252), (18, 252)] {
        let mut one = pageset(6, minor, 0, (1000, 5000));
        let drained: Vec<_> = (0..260).map(|_| one.free(list(0), reclaimed)).collect();
        let first = drained.iter().position(Option::is_some).unwrap();
        assert_eq!(first + 1, small, "6.{minor}");
    }
    let mut old = pageset(5, 10, 0, (378, 378));
    let first = (0..400).position(|_| old.free(list(0), reclaimed).is_some()).unwrap();
    assert_eq!(first + 1, 378);
}

#[test]
fn linux_6_18_doubles_refills_and_drains_what_was_freed() {
    let mut one = pageset(6, 18, 0, (10_000, 300_000));
    assert_eq!(
        refills(&mut one, 63 + 126 + 252 + 504 + 1008 + 2016 + 1),
        [63, 126, 252, 504, 1008, 2016, 2016]
    );
    // Each refill raised `high` by its size.
    assert_eq!(one.high(), pages(10_000 + 63 + 126 + 252 + 504 + 1008 + 2016 + 2016));
    let left = one.high().get() - one.count().get();
    // 2016 frames freed in a row are remembered at most.
    assert_eq!(drains(&mut one, left as usize), [2016]);
    assert_eq!(one.count(), pages(15_985 - 2016));
}

#[test]
fn refills_of_larger_blocks_have_two_blocks_at_least() {
    let mut one = pageset(6, 18, 0, (10_000, 300_000));
    assert_eq!(alloc(&mut one, 3), Some(56));
    assert_eq!(alloc(&mut one, 9), Some(1024));
    assert_eq!(one.in_list(list(9)), pages(512));
    let old = PagesetKernel::of(KernelVersion::new(5, 13));
    assert_eq!(old.list(order(1), Mobility::Movable, HUGE), None);
    let newer = PagesetKernel::of(KernelVersion::new(5, 14));
    assert_eq!(newer.list(order(3), Mobility::Unmovable, HUGE).map(|list| list.order), Some(order(3)));
    assert_eq!(newer.list(order(4), Mobility::Movable, HUGE), None);
    let of = |minor| PagesetKernel::of(KernelVersion::new(6, minor)).list(HUGE, Mobility::Reclaimable, HUGE);
    assert_eq!(of(9).map(|list| list.mobility), Some(Mobility::Movable));
    assert_eq!(of(10).map(|list| list.mobility), Some(Mobility::Unmovable));
}

#[test]
fn zones_with_few_free_frames_keep_pagesets_small() {
    let below = ZonePressure { level: ZoneLevel::Below, reclaim: Reclaim::Idle };
    let mut one = pageset(6, 18, 5000, (1000, 9000));
    one.follow_no_drain();
    assert_eq!(one.high(), pages(5001));
    let drained = one.free(list(0), below).unwrap();
    assert_eq!((drained.pages, one.high()), (pages(63), pages(5001 - 63)));
    // No refill raises `high` either.
    assert_eq!(one.alloc(list(3), below).map(|moved| moved.pages), Some(pages(56)));
    assert_eq!(one.high(), pages(4938));
}

#[test]
fn ticks_lower_high_and_drain_the_surplus() {
    let mut one = pageset(6, 18, 6000, (1000, 9000));
    one.follow_no_drain();
    // 6001 less an eighth is 5251, but at most 2016 frames are drained.
    assert_eq!(one.tick().map(|moved| moved.pages.get()), Some(6000 - 5251));
    assert_eq!(one.high(), pages(5251));
    let mut old = pageset(6, 6, 6000, (1000, 1000));
    assert_eq!(old.tick(), None);
}

#[test]
fn ticks_drain_a_batch_at_a_time() {
    // 12 blocks of 512 frames are 5144 above `high`, which are 82 batches. Each takes a block while there is one.
    let mut one = pageset(6, 12, 0, (1000, 9000));
    one.lists.add(list(HUGE.get()), 12);
    assert_eq!(one.tick(), Some(Moved { blocks: 12, pages: pages(6144) }));
}

#[test]
fn larger_blocks_are_drained_early() {
    // 6.1: any drain since the last allocation, and everything goes.
    let mut one = pageset(6, 1, 0, (1000, 1000));
    assert_eq!(drains(&mut one, 1000), [63]);
    assert_eq!(free(&mut one, 1), Some(937 + 2));
    // 6.12: the second block in a row after a batch. 6.18: half of the lower limit counts too.
    for (minor, wanted) in [(12, Some(70 + 2 + 2)), (18, None)] {
        let mut one = pageset(6, minor, 0, (1000, 9000));
        assert_eq!(drains(&mut one, 70), Vec::<u64>::new());
        assert_eq!(free(&mut one, 1), None);
        assert_eq!(free(&mut one, 1), wanted, "6.{minor}");
        assert_eq!(drains(&mut one, 500), Vec::<u64>::new());
        assert_eq!((free(&mut one, 1), free(&mut one, 1).is_some()), (None, true), "6.{minor}");
    }
}

#[test]
fn drains_begin_with_the_freed_list_since_5_18() {
    let unmovable = PagesetList { order: Order::PAGE, mobility: Mobility::Unmovable };
    for (minor, left) in [(18, 200 - 63), (17, 200 - 5), (13, 200 - 21)] {
        let mut one = pageset(5, minor, 0, (300, 300));
        (0..100).for_each(|_| assert_eq!(one.free(unmovable, ZonePressure::NONE), None));
        (0..199).for_each(|_| assert_eq!(free(&mut one, 0), None));
        assert_eq!(free(&mut one, 0), Some(63));
        assert_eq!(one.in_list(list(0)), pages(left), "5.{minor}");
    }
}

#[test]
fn frames_at_the_start_are_found_by_what_follows() {
    let mut followed = pageset(6, 18, 500, (1000, 9000));
    let unmovable = PagesetList { order: Order::PAGE, mobility: Mobility::Unmovable };
    (0..40).for_each(|_| followed.follow_alloc(unmovable));
    (0..100).for_each(|_| followed.follow_alloc(list(0)));
    let refilled = Moved { blocks: 63, pages: pages(63) };
    followed.follow_refill(list(0), refilled, ZonePressure::NONE);
    assert_eq!(followed.count(), pages(500 - 140 + 63));
    let mut one = pageset(6, 18, 500, (1000, 9000));
    one.know(&followed.found());
    assert_eq!(
        (one.in_list(unmovable), one.in_list(list(0)), one.count()),
        (pages(40), pages(100), pages(500))
    );
    // What nothing was seen of is in no list that requests use.
    assert_eq!(refills(&mut one, 101), [63]);
    // Without that refill, all the rest is movable.
    let mut followed = pageset(6, 18, 500, (1000, 9000));
    followed.follow_alloc(unmovable);
    let mut one = pageset(6, 18, 500, (1000, 9000));
    one.know(&followed.found());
    assert_eq!((one.in_list(unmovable), one.in_list(list(0))), (pages(1), pages(499)));
}

#[test]
fn figures_of_no_kernel_are_lowered() {
    let start = PagesetStart {
        count: pages(u64::MAX),
        high: pages(u64::MAX),
        batch: pages(u64::MAX),
        limits: HighLimits::new(pages(1), pages(u64::MAX)),
    };
    for version in [(5, 10), (6, 1), (6, 18)] {
        let kernel = PagesetKernel::of(KernelVersion::new(version.0, version.1));
        let mut one = KernelPageset::new(kernel, &start);
        for of in [0, 1, 3, 9] {
            free(&mut one, of);
            alloc(&mut one, of);
        }
        one.tick();
        assert!(one.count() <= PagesetStart::MAX.plus(PagesetStart::MAX));
    }
}

/// The frames of a tick leave as if each batch was drained alone, also if they are more than a machine has.
#[test]
fn batches_of_a_list_leave_at_once() {
    let mut seed = 1_u64;
    let mut next = |most: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % (most + 1)
    };
    let kernel = PagesetKernel::of(KernelVersion::NEWEST);
    for case in 0..2000 {
        let mut at_once = Lists::of_unknown(pages(next(300)), kernel.orders);
        for order in [0, 1, 2, 3, HUGE.get()] {
            at_once.add(list(order), next(40) * next(1));
        }
        let mut each = at_once.clone();
        let (size, batch) = (pages(next(2000)), pages(1 + next(70)));
        let (mut left, mut moved) = (size, Moved::default());
        while left > PageCount::ZERO {
            moved = moved.plus(each.drain(left.min(batch), None, kernel.drain_order));
            left = left.saturating_minus(batch);
        }
        let found = at_once.drain_in_batches(size, batch);
        assert_eq!((found, at_once), (moved, each), "case {case}");
    }
    let mut most = Lists::of_unknown(PagesetStart::MAX, kernel.orders);
    let moved = most.drain_in_batches(PagesetStart::MAX, pages(1));
    assert_eq!(moved.pages, PagesetStart::MAX);
}

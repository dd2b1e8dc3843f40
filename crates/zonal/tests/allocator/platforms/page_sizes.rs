//! Tests of kernels with 16 KiB and 64 KiB pages, as on aarch64. Limits that count bytes follow the page size.
//!
//! The expected values are computed by hand from the rules of Linux.

use crate::common::scenarios::all_free;
use crate::common::{Plan, Random, World, order, repeats, run_on};
use zonal::config::Config;
use zonal::request::{Block, Request};
use zonal::units::{Order, PageCount, ZoneKind};

const KIB_16: u32 = 16 << 10;
const KIB_64: u32 = 64 << 10;

fn config(page_bytes: u32) -> Config {
    Config { page_bytes, ..Config::default() }
}

/// Builds one node of 4 CPUs, with `normal` MiB and `movable` MiB.
fn build(page_bytes: u32, normal: u64, movable: u64) -> World {
    let frames = |mib: u64| (mib << 20) / u64::from(page_bytes);
    let mut plan = Plan::even(1, 4, frames(normal));
    let start = plan.zones[0].2 + frames(normal).next_multiple_of(4096);
    if movable != 0 {
        plan.zones.push((0, ZoneKind::Movable, start, frames(movable), vec![(start, frames(movable))]));
    }
    run_on(0);
    plan.build(&config(page_bytes))
}

/// Returns a zone's values: min, low, high, batch, high_min, threshold.
fn values(world: &World, at: usize) -> [u64; 6] {
    let zone = world.allocator.zones().nth(at).unwrap();
    let [min, low, high] = [zone.watermarks.min, zone.watermarks.low, zone.watermarks.high];
    let limits = zone.pageset_limits;
    [min, low, high, limits.batch, limits.high_min, PageCount::new(zone.stat_threshold.into())]
        .map(PageCount::get)
}

#[test]
fn limits_of_4_gib_in_pages_of_each_size() {
    // min_free is 8192 KiB: the square root of 16 * 4194304. The threshold counts units of 128 MiB.
    assert_eq!(values(&build(4 << 10, 4096, 0), 0), [2048, 3096, 4144, 63, 774, 42]);
    assert_eq!(values(&build(KIB_16, 4096, 0), 0), [512, 774, 1036, 15, 193, 42]);
    assert_eq!(values(&build(KIB_64, 4096, 0), 0), [128, 193, 258, 3, 48, 42]);
}

#[test]
fn the_least_and_the_largest_reserve_are_in_kib() {
    // At least 128 KiB, and at most 256 MiB, in frames.
    for (page_bytes, least, largest) in [(4 << 10, 32, 65_536), (KIB_16, 8, 16_384), (KIB_64, 2, 4096)] {
        assert_eq!(values(&build(page_bytes, 1, 0), 0)[0], least, "1 MiB in pages of {page_bytes} bytes");
        let frames = (5 << 40) / u64::from(page_bytes);
        let zones = [(ZoneKind::Normal, PageCount::new(frames))];
        let basis = config(page_bytes).watermarks.basis(zones.into_iter(), page_bytes);
        assert_eq!(basis.min_free().get(), largest, "5 TiB in pages of {page_bytes} bytes");
    }
}

#[test]
fn small_zones_have_batches_of_at_least_a_page() {
    // The lower limit of `high` is a quarter of `low`, of 1280 KiB where pages allow it, or 4 batches.
    for (page_bytes, least) in [(KIB_16, 20), (KIB_64, 5), (1 << 20, 4), (2 << 20, 4), (4 << 20, 4)] {
        let world = build(page_bytes, 64, 0);
        let [.., batch, high_min, _] = values(&world, 0);
        assert_eq!((batch, high_min), (1, least), "pages of {page_bytes} bytes");
        let block = world.allocator.alloc(&Request::page()).unwrap();
        world.free([block]);
        all_free(&world);
    }
}

#[test]
fn movable_zones_have_their_own_minimum_in_pages() {
    // Of the movable zone: 1/1024 of its pages, within 32..=128, and a gap from its share of the others' reserve.
    let world = build(KIB_64, 4096, 4096);
    assert_eq!(values(&world, 0)[..3], [128, 193, 258]);
    assert_eq!(values(&world, 1)[..3], [64, 129, 194]);
    assert_eq!(values(&build(KIB_16, 4096, 4096), 1)[..3], [128, 390, 652]);
    assert_eq!(values(&build(KIB_64, 4096, 1024), 1)[..3], [32, 48, 64]);
}

#[test]
fn blocks_of_2_mib_are_of_order_7_and_5_and_are_cached() {
    for (page_bytes, huge) in [(4 << 10, 9), (KIB_16, 7), (KIB_64, 5)] {
        assert_eq!(config(page_bytes).huge_order(), order(huge));
        let world = build(page_bytes, 4096, 0);
        let cached = |order: Order| {
            world.allocator.drain_pagesets();
            let block = world.allocator.alloc(&Request::new(order)).unwrap();
            world.free([block]);
            world.allocator.accounting().in_pagesets >= order.pages()
        };
        assert!(cached(order(huge)), "blocks of 2 MiB, pages of {page_bytes} bytes");
        assert!(!cached(order(huge + 1)), "blocks of 4 MiB, pages of {page_bytes} bytes");
        all_free(&world);
    }
}

#[test]
fn min_free_is_reported_in_kib() {
    for page_bytes in [4 << 10, KIB_16, KIB_64] {
        let world = build(page_bytes, 4096, 0);
        let (mut min_free, mut free) = (None, None);
        let done: Result<(), ()> = world.allocator.snapshot().files(|name, contents| {
            let text = contents.to_string();
            match name.to_string().as_str() {
                "proc/sys/vm/min_free_kbytes" => min_free = Some(text),
                "proc/meminfo" => free = Some(text),
                _ => {}
            }
            Ok(())
        });
        done.unwrap();
        assert_eq!(min_free.unwrap(), "8192\n");
        let free = free.unwrap();
        assert!(free.contains("4194304 kB"), "{free}");
    }
}

#[test]
fn histories_are_exact_in_pages_of_any_size() {
    for page_bytes in [KIB_16, KIB_64, 2 << 20] {
        let world = build(page_bytes, 4096, 1024);
        let (mut random, mut held) = (Random(page_bytes.into()), Vec::<Block>::new());
        for at in 0..repeats(8000, 20_000) {
            run_on(random.below(4) as u32);
            if at % 500 == 0 {
                world.controls.advance_ms(1000);
                world.allocator.tick();
            }
            let request = Request::new(order(random.pick(&[0, 0, 0, 0, 1, 2, 3, 5, 7, 9, 10])));
            match world.allocator.alloc(&request).ok().filter(|_| random.below(100) < 52) {
                Some(block) => {
                    assert!(block.first.is_aligned_to(block.order));
                    held.push(block);
                }
                None if held.is_empty() => {}
                None => world.free([held.swap_remove(random.below(held.len() as u64) as usize)]),
            }
        }
        world.check();
    }
}

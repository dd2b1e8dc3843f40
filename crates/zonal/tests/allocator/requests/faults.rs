//! Tests of injected failures: exactly the configured requests are refused, and a refusal changes no state.

use std::num::NonZeroU64;

use crate::common::scenarios::{Scripted, one_cpu, pages, with_min};
use crate::common::{Plan, Random, World, order, run_on, stress_rounds};
use zonal::config::Faults;
use zonal::error::{AllocError, FreeBulkError};
use zonal::request::Block;
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::units::{Pfn, ZoneKind};
use zonal::{Config, Request};
use zonal_testing::Ledger;

const FRAMES: u64 = 1 << 14;

fn every(nth: u64) -> Faults {
    Faults::EveryNth(NonZeroU64::new(nth).unwrap())
}

fn random(seed: u64, one_in: u64) -> Faults {
    Faults::Random { seed, one_in: NonZeroU64::new(one_in).unwrap() }
}

fn build(faults: Faults) -> World {
    run_on(0);
    Plan::even(2, 2, FRAMES).build(&Config { faults, ..Config::default() })
}

/// Returns the numbers of the refused requests among `count` requests for pages.
fn refused(faults: Faults, count: u64) -> Vec<u64> {
    let world = build(faults);
    let refused = (1..=count).filter(|_| world.allocator.alloc(&Request::page()).is_err()).collect();
    world.check();
    refused
}

#[test]
fn every_nth_request_of_any_kind_is_refused_and_changes_nothing() {
    for nth in [1, 2, 3, 7] {
        let world = build(every(nth));
        let (a, mut held) = (&world.allocator, Vec::new());
        for number in 1..=110_u64 {
            run_on(number as u32 % 5); // one of these CPUs is unknown
            let wanted = order((number % 11) as u8);
            let plain = Request::new(wanted);
            let request = [plain, plain.no_wait(), plain.this_node()][number as usize % 3];
            let before = a.verify().unwrap();
            match a.alloc(&request) {
                Ok(block) => {
                    assert_ne!(number % nth, 0, "request {number} should have been refused");
                    held.push(block);
                }
                Err(AllocError::OutOfMemory(shortage)) => {
                    assert_eq!(number % nth, 0, "request {number} was refused");
                    let zones = if number % 3 == 2 { 1 } else { 2 };
                    assert_eq!((shortage.order, shortage.zones), (wanted, zones));
                    assert!(zones == 1 || shortage.free == before.free);
                    assert_eq!(a.verify().unwrap(), before);
                }
                Err(other) => panic!("{other}"),
            }
        }
        let events = a.events();
        assert_eq!((events.failures, events.direct_stalls, events.background_wakes), (110 / nth, 0, 0));
        world.free(held);
        a.drain_pagesets();
        let accounting = a.verify().unwrap();
        assert_eq!(accounting.free, accounting.managed);
    }
}

#[test]
fn random_refusals_depend_on_the_seed_and_the_request_number() {
    let first = refused(random(1, 10), 10_000);
    assert!((900..1100).contains(&first.len()), "{} of 10000, one in 10 asked for", first.len());
    assert_eq!(first, refused(random(1, 10), 10_000));
    assert_ne!(first, refused(random(2, 10), 10_000));
    assert_eq!(refused(random(3, 1), 100).len(), 100);
    assert!(refused(Faults::None, 10_000).is_empty());
}

#[test]
fn bulk_requests_are_cut_short_by_refusals() {
    let world = build(every(40));
    let mut frames = [Pfn::new(0); 100];
    let mut came = Vec::new();
    for _ in 0..3 {
        let count = world.allocator.alloc_bulk(&Request::page(), &mut frames).unwrap_or(0);
        came.push(count);
        let beyond = world.allocator.free_bulk(&frames);
        let error = beyond.expect_err("not all frames came");
        assert!(matches!(error, FreeBulkError { freed, .. } if freed == count));
        world.check();
    }
    assert_eq!(came, [39, 39, 39], "each frame is a request");
}

#[test]
fn requests_of_reclaimers_are_refused_too() {
    let config = Config { faults: every(2), ..with_min(400) };
    let world = one_cpu(&[4096], ZoneKind::Normal).build(&config).leak();
    run_on(0);
    let mut held = Vec::new();
    for _ in 0..8000 {
        held.extend(world.allocator.alloc(&Request::page().no_wait()));
    }
    let needy = Scripted::new(1000, |_, _| {
        let got = [0; 2].map(|_| world.allocator.alloc(&Request::page()));
        assert!(got[0].is_err() && got[1].is_ok(), "{got:?}");
        world.free(got.into_iter().flatten());
        0
    });
    world.controls.set_reclaimer(needy.clone());
    // This request itself has an odd number, so it is not refused by the injection.
    assert!(world.allocator.alloc(&Request::page()).is_err());
    assert_eq!(needy.calls(), 16);
    world.free(held);
    world.check();
}

/// Runs one thread of a history, which allocates and frees, and handles refusals. Returns the number of refusals.
fn work(world: &World, owners: &Ledger, name: u32, seed: u64) -> u64 {
    let (mut random, mut held, mut refusals) = (Random(seed), Vec::<Block>::new(), 0);
    for _ in 0..3000 {
        run_on(random.below(5) as u32);
        let frames = |block: &Block| (block.first.get(), block.order.pages().get());
        if held.len() < 40 && !random.once_in(3) {
            match world.allocator.alloc(&Request::new(order(random.pick(&[0, 0, 0, 0, 1, 3, 5, 9])))) {
                Ok(block) => {
                    let (first, count) = frames(&block);
                    owners.assign(first, count, name);
                    held.push(block);
                }
                Err(_) => refusals += 1,
            }
        } else if !held.is_empty() {
            let block = held.swap_remove(random.below(held.len() as u64) as usize);
            let (first, count) = frames(&block);
            owners.release(first, count, name);
            world.free([block]);
        }
    }
    held.into_iter().for_each(|block| {
        owners.release(block.first.get(), block.order.pages().get(), name);
        world.free([block]);
    });
    refusals
}

#[test]
fn histories_with_refusals_stay_exact() {
    for round in stress_rounds() {
        for (at, tuning) in [
            PagesetTuning::Depth,
            PagesetTuning::DepthPublished,
            PagesetTuning::Stepwise,
            PagesetTuning::Fixed,
        ]
        .into_iter()
        .enumerate()
        {
            let seed = 3 * round + at as u64;
            let config = Config { tuning, faults: random(seed, 4), ..Config::default() };
            let world = Plan::even(2, 2, 1 << 15).build(&config);
            let owners = Ledger::new(0..4 << 15);
            let refusals: u64 = std::thread::scope(|scope| {
                let threads = [1, 2, 3].map(|name: u32| {
                    let (world, owners) = (&world, &owners);
                    scope.spawn(move || work(world, owners, name, seed ^ u64::from(name) << 32))
                });
                threads.map(|thread| thread.join().unwrap()).iter().sum()
            });
            world.allocator.drain_pagesets();
            let accounting = world.allocator.verify().unwrap();
            assert_eq!(
                (accounting.free, accounting.allocated),
                (accounting.managed, pages(0)),
                "seed {seed}"
            );
            assert_eq!((world.allocator.events().failures, owners.owned().next()), (refusals, None));
            assert!(refusals > 500, "{refusals} with seed {seed}");
        }
    }
}

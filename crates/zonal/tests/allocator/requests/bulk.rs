//! Tests that a bulk call yields the same frames, accounting and errors as one call for each frame.

use std::collections::BTreeSet;

use crate::common::{Plan, World, order, run_on};
use zonal::config::{Hardening, InvalidFree};
use zonal::error::{AllocError, FreeBulkError, FreeError};
use zonal::request::PageKind;
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::snapshot::PagesetSnapshot;
use zonal::units::{Order, PageCount, Pfn};
use zonal::{Config, Request};

const TUNINGS: [PagesetTuning; 4] =
    [PagesetTuning::Depth, PagesetTuning::DepthPublished, PagesetTuning::Stepwise, PagesetTuning::Fixed];

/// Allocates in bulks of all sizes until no frame is left, then frees everything in bulk, and repeats both steps once.
#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn everything_is_allocated_and_freed_in_bulk() {
    let exact = Config { invalid_free: InvalidFree::Exact, ..Config::default() };
    let quarantine = Hardening { quarantine: PageCount::new(64), ..Hardening::default() };
    let hardened = Config { hardening: quarantine, ..Config::default() };
    let tuned = TUNINGS.map(|tuning| Config { tuning, ..Config::default() });
    for config in tuned.into_iter().chain([exact, hardened]) {
        let world = Plan::even(2, 2, 8192).build(&config);
        let a = &world.allocator;
        let mut taken = 0;
        for cpu in [0, 3] {
            run_on(cpu);
            let (mut held, mut distinct) = (Vec::new(), BTreeSet::new());
            for size in (1..).map(|round: usize| 1 + round * 37 % 700) {
                let mut frames = vec![Pfn::new(0); size];
                let Ok(came) = a.alloc_bulk(&Request::page().kind(PageKind::Cache), &mut frames) else {
                    break;
                };
                frames.truncate(came);
                assert!(frames.iter().all(|&frame| distinct.insert(frame)), "a frame came twice");
                held.extend(frames);
            }
            assert!(held.len() > 16_000, "{}", held.len());
            let accounting = a.verify().unwrap();
            assert!(accounting.balance());
            assert_eq!(accounting.allocated, PageCount::new(held.len() as u64));
            taken += held.len() as u64;
            assert_eq!(a.locality().hit + a.locality().miss, taken);
            run_on(3 - cpu);
            for frames in held.chunks(333) {
                a.free_bulk(frames).unwrap();
            }
            a.drain_pagesets();
            assert_eq!(a.verify().unwrap().allocated, PageCount::ZERO);
        }
    }
}

#[test]
fn a_bulk_free_stops_at_an_invalid_frame() {
    let world = Plan::even(1, 1, 8192).build(&Config::default());
    let a = &world.allocator;
    run_on(0);
    let mut frames = [Pfn::new(0); 100];
    assert_eq!(a.alloc_bulk(&Request::page(), &mut frames), Ok(100));
    let twice = frames[10];
    let mut wrong = frames;
    wrong[60] = twice;
    let error = FreeBulkError { freed: 60, error: FreeError::NotAllocated(twice) };
    assert_eq!(a.free_bulk(&wrong), Err(error));
    assert!(error.to_string().contains("60") && error.to_string().contains(&twice.to_string()));
    assert_eq!(a.verify().unwrap().allocated, PageCount::new(40));
    a.free_bulk(&frames[60..]).unwrap();
    assert_eq!(a.verify().unwrap().allocated, PageCount::ZERO);
    assert_eq!(a.free_bulk(&[]), Ok(()));
    assert_eq!(a.alloc_bulk(&Request::page(), &mut []), Ok(0));
    assert_eq!(a.alloc_bulk(&Request::new(order(1)), &mut frames), Err(AllocError::NotSingle(order(1))));
}

/// A bulk free of a whole word in which one frame is not allocated frees exactly the frames before it.
#[test]
fn a_bulk_free_of_a_word_stops_at_a_frame_that_is_not_allocated() {
    for invalid_free in [InvalidFree::Exact, InvalidFree::Checked] {
        for bad in [0, 1, 7, 8, 37, 63] {
            let world = Plan::even(1, 1, 8192).build(&Config { invalid_free, ..Config::default() });
            let a = &world.allocator;
            run_on(0);
            let mut frames = [Pfn::new(0); 512];
            assert_eq!(a.alloc_bulk(&Request::page(), &mut frames), Ok(512));
            frames.sort_unstable();
            let start = frames.iter().position(|frame| frame.get().is_multiple_of(64)).unwrap();
            let word = &frames[start..start + 64];
            assert_eq!(word[63].get() - word[0].get(), 63);
            a.free(word[bad], Order::PAGE).unwrap();
            let error = FreeBulkError { freed: bad, error: FreeError::NotAllocated(word[bad]) };
            assert_eq!(a.free_bulk(word), Err(error), "{invalid_free:?} {bad}");
            assert_eq!(a.verify().unwrap().allocated.get(), 511 - bad as u64);
            word[bad + 1..].iter().for_each(|&frame| a.free(frame, Order::PAGE).unwrap());
        }
    }
}

/// The stepwise rule counts each allocation and free of a bulk call, so batches grow and shrink as without bulk
/// calls.
#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn bulk_calls_are_single_steps_of_the_stepwise_rule() {
    let config = Config { tuning: PagesetTuning::Stepwise, ..Config::default() };
    let [in_bulk, one_by_one] = [(), ()].map(|()| Plan::even(1, 1, 1 << 16).build(&config));
    run_on(0);
    // A bulk call moves more frames under one hold of the lock.
    let pageset = |world: &World| PagesetSnapshot {
        longest_hold: PageCount::ZERO,
        ..world.allocator.pagesets().next().unwrap()
    };
    let mut frames = vec![Pfn::new(0); 1500];
    for size in (0..40).map(|round: usize| 1 + round * 379 % 1500) {
        let frames = &mut frames[..size];
        assert_eq!(in_bulk.allocator.alloc_bulk(&Request::page(), frames), Ok(size));
        in_bulk.allocator.free_bulk(frames).unwrap();
        frames.fill_with(|| one_by_one.allocator.alloc(&Request::page()).unwrap().first);
        frames.iter().for_each(|&frame| one_by_one.allocator.free(frame, Order::PAGE).unwrap());
        assert_eq!(pageset(&in_bulk), pageset(&one_by_one), "after {size} frames");
    }
    let refills = pageset(&in_bulk).refills;
    assert!(refills > 15, "{refills}");
}

/// The depth rule counts each bulk call as a run.
#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn bulk_calls_raise_high() {
    let world = Plan::even(1, 1, 1 << 18).build(&Config::default());
    let a = &world.allocator;
    run_on(0);
    let mut frames = vec![Pfn::new(0); 6000];
    for _ in 0..12 {
        world.controls.advance_ms(1100);
        assert_eq!(a.alloc_bulk(&Request::page(), &mut frames), Ok(6000));
        a.free_bulk(&frames).unwrap();
    }
    let high = a.pagesets().next().unwrap().high.get();
    assert!((5800..=6001).contains(&high), "{high}");
    assert!(a.verify().unwrap().balance());
}

//! Tests of basic requests and frees.

use crate::common::{Plan, order, run_on};
use zonal::error::{AllocError, FreeError};
use zonal::units::{Order, PageCount};
use zonal::{Config, Request};

#[test]
fn every_order_is_allocated_and_freed() {
    let world = Plan::even(1, 2, 1 << 16).build(&Config::default());
    let a = &world.allocator;
    let before = a.verify().unwrap();
    assert_eq!(before.free, PageCount::new(1 << 16));
    let mut blocks = Vec::new();
    for order in 0..=10 {
        for cpu in 0..2 {
            run_on(cpu);
            let order = Order::new(order).unwrap();
            let block = a.alloc(&Request::new(order)).unwrap();
            assert!(block.first.is_aligned_to(order));
            blocks.push(block);
            a.verify().unwrap();
        }
    }
    let allocated: u64 = blocks.iter().map(|block| block.order.pages().get()).sum();
    assert_eq!(a.verify().unwrap().allocated, PageCount::new(allocated));
    for block in blocks {
        a.free(block.first, block.order).unwrap();
        assert_eq!(a.free(block.first, block.order), Err(FreeError::NotAllocated(block.first)));
        a.verify().unwrap();
    }
    a.drain_pagesets();
    assert_eq!(a.verify().unwrap(), before);
    assert!(before.balance());
}

#[test]
fn exhaustion_fails_with_figures_and_freeing_brings_all_back() {
    run_on(0);
    let world = Plan::even(1, 1, 8192).build(&Config::default());
    let a = &world.allocator;
    let mut held = Vec::new();
    let error = loop {
        match a.alloc(&Request::page()) {
            Ok(block) => held.push(block),
            Err(error) => break error,
        }
    };
    let AllocError::OutOfMemory(shortage) = error else { panic!("{error}") };
    let drift = u64::from(a.zones().next().unwrap().stat_threshold);
    let over = shortage.free.get().abs_diff(shortage.min.get());
    assert!(over <= drift, "normal requests stop at min, give or take one CPU's drift: {shortage}");
    assert_eq!(a.verify().unwrap().allocated, PageCount::new(held.len() as u64));
    for _ in 0..100 {
        assert!(a.alloc(&Request::page()).is_err());
    }
    for block in held.drain(..) {
        a.free(block.first, block.order).unwrap();
    }
    a.drain_pagesets();
    let accounting = a.verify().unwrap();
    assert_eq!(accounting.free, accounting.managed);
}

#[test]
fn orders_above_the_maximum_are_refused() {
    run_on(0);
    let world = Plan::even(1, 1, 8192).build(&Config::default());
    for o in (11..=18).map(order) {
        let error = AllocError::OrderTooLarge { order: o, max: Order::DEFAULT_MAX };
        assert_eq!(world.allocator.alloc(&Request::new(o)), Err(error));
        assert!(error.to_string().contains(&o.to_string()));
    }
}

/// A thread that moves between an allocation and a free brings a frame of another CPU's word. After a while both CPUs
/// use frames of different words again, so their states are not on one cache line.
#[test]
fn a_frame_from_another_cpu_does_not_stay_on_top() {
    let world = Plan::even(1, 2, 1 << 16).build(&Config::default());
    let a = &world.allocator;
    let word_used_on = |cpu, pairs| {
        run_on(cpu);
        let mut word = None;
        for _ in 0..pairs {
            let block = a.alloc(&Request::page()).unwrap();
            word = Some(block.first.get() / 64);
            a.free(block.first, block.order).unwrap();
        }
        word
    };
    let words = [0, 1].map(|cpu| word_used_on(cpu, 1));
    assert_ne!(words[0], words[1]);
    run_on(0);
    let moved = a.alloc(&Request::page()).unwrap();
    run_on(1);
    a.free(moved.first, moved.order).unwrap();
    assert_eq!([0, 1].map(|cpu| word_used_on(cpu, 1)), [words[0]; 2]);
    for pairs in [1000, 1, 200, 1000] {
        assert_eq!([0, 1].map(|cpu| word_used_on(cpu, pairs)), words, "after {pairs} pairs");
    }
    a.verify().unwrap();
}

//! Scenarios of processes that share an allocator, of which process 1 dies while others go on.
//!
//! It dies before one of its writes; which one, the runner chooses. What it holds then is given back, by another process as soon
//! as that knows of the death, or at the end. No frame may be lost or be in use twice. Related files: `cells.rs` makes processes
//! die; `mortal` in the sources of this crate has longer histories, but runs one process at a time.

use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use zonal::layout::{BufferRequest, Place};
use zonal::request::Urgency;
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::units::{Order, PageCount, Pfn};
use zonal::{Allocator, Buffer, Config, Request};

use crate::interleavings::cells::{Death, Table, die, has_died};
use crate::interleavings::checker::Checker;
use crate::interleavings::model::{Buffers, Model, NoReclaimer};
use crate::interleavings::ways::Way;
use crate::interleavings::world::{config, with_machine};

/// Each process has one CPU, that of its number minus 1.
const PROCESSES: u8 = 3;
const DOOMED: u8 = 1;
const FRAMES: u64 = 256;

/// Processes, and what those that live have allocated.
pub(crate) struct Processes<C: Checker> {
    allocators: Vec<ManuallyDrop<Allocator<'static, Model<C>>>>,
    /// Dropped after the allocators.
    _buffers: Buffers,
    /// First frame and order of each block, and the process that has it.
    blocks: Mutex<BTreeMap<u64, (Order, u8)>>,
}

// SAFETY: checkers run all threads of a model on one operating-system thread.
unsafe impl<C: Checker> Send for Processes<C> {}
// SAFETY: as above, all threads of a model run on one operating-system thread.
unsafe impl<C: Checker> Sync for Processes<C> {}

type Work<C> = Box<dyn FnOnce(&Processes<C>) + Send>;

impl<C: Checker> Processes<C> {
    fn new() -> Arc<Self> {
        C::table(Table::clear);
        let config = Config { processes: PROCESSES, tuning: PagesetTuning::Fixed, ..config(0) };
        let mut buffers = Buffers::default();
        let mut firsts = Vec::new();
        let allocators = with_machine(&[(&[0, 1, 2], FRAMES)], |machine| {
            (1..=PROCESSES)
                .map(|process| {
                    let mut seen = 0;
                    let mut supply = |request: BufferRequest| {
                        let is_shared = request.place != Place::Local;
                        let first = if is_shared { firsts.get(seen).copied() } else { None };
                        let (bytes, first) = buffers.add::<C>(request.bytes, first);
                        if is_shared {
                            firsts.resize(firsts.len().max(seen + 1), first);
                            seen += 1;
                        }
                        // SAFETY: the bytes are zero and stay so; the cells for which they stand are those of all processes.
                        Some(unsafe { Buffer::of_process(bytes) })
                    };
                    let platform = Model::new(Box::new(NoReclaimer), Way::Locks).of_process(process);
                    C::set_cpu(u32::from(process) - 1);
                    let begin = if process == 1 { Allocator::new } else { Allocator::join };
                    let allocator = begin(platform, machine, &config, &mut supply).expect("a valid machine");
                    ManuallyDrop::new(allocator)
                })
                .collect()
        });
        Arc::new(Self { allocators, _buffers: buffers, blocks: Mutex::default() })
    }

    fn allocator(&self, process: u8) -> &Allocator<'static, Model<C>> {
        &self.allocators[usize::from(process) - 1]
    }

    fn alloc(&self, process: u8, order: u8) -> Pfn {
        let request = Request::new(Order::new(order).expect("it is small"));
        let block = self.allocator(process).alloc(&request).expect("there is memory");
        self.own(process, block.first, block.order);
        block.first
    }

    fn own(&self, process: u8, first: Pfn, order: Order) {
        let mut blocks = self.blocks.lock().expect("no thread failed");
        let end = first.get() + order.pages().get();
        if let Some((&at, &(its, by))) = blocks.range(..end).next_back() {
            assert!(
                at + its.pages().get() <= first.get(),
                "{first} is process {process}'s and process {by}'s"
            );
        }
        blocks.insert(first.get(), (order, process));
    }

    /// Frees a block for `process`, which need not have allocated it; returns whether it was allocated.
    fn free(&self, process: u8, first: Pfn) -> bool {
        let (order, _) = self.blocks.lock().expect("no thread failed").remove(&first.get()).expect("a block");
        self.allocator(process).free(first, order).is_ok()
    }

    fn alloc_and_free(&self, process: u8, order: u8) {
        let first = self.alloc(process, order);
        assert!(self.free(process, first));
    }

    /// Recovers process 1, if it is known to have died.
    fn recover_if_dead(&self, by: u8) {
        if has_died::<C>(0) {
            self.allocator(by).recover(DOOMED);
        }
    }

    /// Runs the work of process 1, which may die, and at once that of processes 2 and 3.
    fn at_once(self: &Arc<Self>, doomed: impl FnOnce(&Self), others: Vec<Work<C>>) {
        C::table(Table::doom);
        C::table(Table::go_live);
        let spawn = |(at, work): (usize, Work<C>)| {
            let world = Arc::clone(self);
            C::spawn(at as u32 + 1, move || work(&world))
        };
        let threads: Vec<_> = others.into_iter().enumerate().map(spawn).collect();
        C::set_cpu(0);
        if let Err(why) = catch_unwind(AssertUnwindSafe(|| doomed(self))) {
            if !why.is::<Death>() {
                resume_unwind(why);
            }
            self.blocks.lock().expect("no thread failed").retain(|_, &mut (_, process)| process != DOOMED);
            die::<C>();
        }
        threads.into_iter().for_each(C::join);
        C::table(Table::settle);
    }

    /// Checks that exactly the blocks of those that live are allocated, and `in_doubt` perhaps, and that every frame can be
    /// allocated when these are freed.
    fn check(&self, in_doubt: Option<Pfn>) {
        C::set_cpu(1);
        self.recover_if_dead(2);
        let allocator = self.allocator(2);
        let mut held = BTreeMap::new();
        allocator.for_each_held(|_, range| _ = held.insert(range.start.get(), range.count));
        let mut blocks = self.blocks.lock().expect("no thread failed");
        blocks.keys().for_each(|first| assert!(held.contains_key(first), "the block at {first} is lost"));
        for (&first, count) in &held {
            let order = Order::new(count.get().ilog2() as u8).expect("it is small");
            let is_right = blocks.get(&first).is_some_and(|&(its, _)| its == order);
            assert!(
                is_right || in_doubt.is_some_and(|frame| frame.get() == first),
                "{first}: {count} frames are held"
            );
            assert_eq!(allocator.free(Pfn::new(first), order), Ok(()));
        }
        blocks.clear();
        drop(blocks);
        let accounting = allocator.verify().unwrap_or_else(|fault| panic!("{fault}"));
        assert!(accounting.balance() && accounting.allocated.get() == 0, "{accounting:?}");
        for process in 1..=PROCESSES {
            C::set_cpu(u32::from(process) - 1);
            self.allocator(process).drain_pagesets();
        }
        C::set_cpu(1);
        let all = Request::page().urgency(Urgency::Reserve);
        let mut count = 0;
        while let Ok(block) = allocator.alloc(&all) {
            self.own(2, block.first, block.order);
            count += 1;
        }
        assert_eq!(count, FRAMES, "frames are lost");
        allocator.verify().unwrap_or_else(|fault| panic!("{fault}"));
    }
}

impl<C: Checker> Drop for Processes<C> {
    fn drop(&mut self) {
        for allocator in &mut self.allocators {
            // SAFETY: the allocator is dropped once, and is not used afterwards.
            unsafe { ManuallyDrop::drop(allocator) };
        }
    }
}

/// A process dies while it refills its pageset and drains it, and another one meets the locks that it held.
pub(crate) fn death_in_refill<C: Checker>() {
    let world = Processes::<C>::new();
    let other: Work<C> = Box::new(|world| {
        world.alloc_and_free(2, 0);
        world.recover_if_dead(2);
    });
    let doomed = |world: &Processes<C>| {
        world.alloc_and_free(1, 0);
        world.allocator(1).drain_pagesets();
    };
    world.at_once(doomed, vec![other]);
    world.check(None);
}

/// A process dies while it splits a large block and merges it, and another one allocates from the same area.
pub(crate) fn death_in_split_and_merge<C: Checker>() {
    let world = Processes::<C>::new();
    let other: Work<C> = Box::new(|world| {
        world.alloc(2, 5);
        world.recover_if_dead(2);
    });
    world.at_once(|world| world.alloc_and_free(1, 5), vec![other]);
    world.check(None);
}

/// A process dies while it frees a block of another one, which goes on.
pub(crate) fn death_in_free_for_another<C: Checker>() {
    let world = Processes::<C>::new();
    C::set_cpu(1);
    let block = world.alloc(2, 2);
    let other: Work<C> = Box::new(|world| world.alloc_and_free(2, 0));
    world.at_once(move |world| assert!(world.free(1, block)), vec![other]);
    world.check(Some(block));
}

/// A process dies while another one frees a block of it.
pub(crate) fn death_against_free_for_it<C: Checker>() {
    let world = Processes::<C>::new();
    C::set_cpu(0);
    let block = world.alloc(1, 2);
    let other: Work<C> = Box::new(move |world| {
        // Afterwards it may have been given back.
        let order = Order::new(2).expect("it is small");
        let is_freed = world.allocator(2).free(block, order).is_ok();
        assert!(is_freed || has_died::<C>(0));
        world.blocks.lock().expect("no thread failed").remove(&block.get());
        world.recover_if_dead(2);
    });
    world.at_once(|world| world.alloc_and_free(1, 0), vec![other]);
    world.check(None);
}

/// What a dead process held is given back while another process frees a block of it.
pub(crate) fn recovery_against_free_for_the_dead<C: Checker>() {
    let world = Processes::<C>::new();
    C::set_cpu(0);
    let block = world.alloc(1, 2);
    let recovers: Work<C> = Box::new(|world| world.recover_if_dead(2));
    let frees: Work<C> = Box::new(move |world| {
        let order = Order::new(2).expect("it is small");
        let is_freed = world.allocator(3).free(block, order).is_ok();
        assert!(is_freed || has_died::<C>(0));
        world.blocks.lock().expect("no thread failed").remove(&block.get());
    });
    world.at_once(|world| world.alloc_and_free(1, 0), vec![recovers, frees]);
    world.check(None);
}

/// Two processes free a block of a third at once, which may die meanwhile; one of them does.
pub(crate) fn frees_of_a_block_at_once<C: Checker>() {
    frees_at_once::<C>(4, |allocator, first| {
        allocator.free(first, Order::new(2).expect("it is small")).is_ok()
    });
}

/// As [`frees_of_a_block_at_once`], for a run.
pub(crate) fn frees_of_a_run_at_once<C: Checker>() {
    frees_at_once::<C>(3, |allocator, first| allocator.free_frames(first, PageCount::new(3)).is_ok());
}

fn frees_at_once<C: Checker>(count: u64, free: fn(&Allocator<'static, Model<C>>, Pfn) -> bool) {
    let world = Processes::<C>::new();
    C::set_cpu(0);
    let run =
        world.allocator(1).alloc_frames(&Request::page(), PageCount::new(count)).expect("there is memory");
    let freed = Arc::new(AtomicU32::new(0));
    let frees = |process| -> Work<C> {
        let freed = Arc::clone(&freed);
        Box::new(move |world| {
            let is_freed = free(world.allocator(process), run.range.start);
            freed.fetch_add(is_freed.into(), Relaxed); // relaxed: the threads are joined
        })
    };
    world.at_once(|world| world.alloc_and_free(1, 0), vec![frees(2), frees(3)]);
    assert_eq!(freed.load(Relaxed), 1, "{run:?}");
    world.check(None);
}

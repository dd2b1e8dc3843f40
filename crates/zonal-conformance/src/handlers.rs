//! The scenario of handlers that interrupt a call of the allocator at each of its accesses.

use core::cell::Cell;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

use zonal::error::{AllocError, FreeError};
use zonal::units::{Order, PageCount};
use zonal::{Allocator, Platform, Request};

use crate::duel::Kit;
use crate::harness::{Event, Harness};
use crate::report::{Stop, hold};
use crate::rule::Rule;
use crate::world::{Text, World, frames_of};

/// A call is interrupted at each of its first accesses, up to this number, and at fewer and fewer of the others.
const DENSE: u32 = 32;
/// Lanes of the interrupted call and of the handler.
const CALL: usize = 0;
const HANDLER: usize = 1;

/// A call that is interrupted, and its name.
type Interrupted<H> = (&'static str, for<'w> fn(&World<'w, H>));

/// Returns the calls. Each holds a lock at some of its accesses.
fn calls<H: Harness>() -> [Interrupted<H>; 4] {
    [
        ("a refill and a drain", |world| {
            (0..30).for_each(|_| _ = world.alloc(CALL, &Request::page()));
            world.call(Allocator::drain_pagesets);
        }),
        ("a large block", |world| {
            world.alloc(CALL, &Request::new(Order::new(5).expect("a small order")));
            world.free(CALL);
        }),
        ("a run", |world| {
            let run =
                world.call(|allocator| allocator.alloc_frames(&Request::page().no_wait(), PageCount::new(7)));
            if let Ok(run) = run
                && let Err(error) =
                    world.call(|allocator| allocator.free_frames(run.range.start, run.range.count))
            {
                world.note.write(format_args!("a free of an allocated run was refused: {error}"));
            }
        }),
        ("a fence and a tick", |world| {
            _ = world.call(|allocator| allocator.fence(frames_of(1)).is_ok());
            world.call(Allocator::tick);
        }),
    ]
}

impl<H: Harness> Kit<'_, H> {
    pub(crate) fn handlers(&mut self) -> Result<(), Stop> {
        self.harness.handlers()?;
        self.harness.watch(&mut || {}, &|_| {})?;
        for (what, call) in calls::<H>() {
            let mut at = 1;
            loop {
                self.harness.begin(Rule::ReentryIsSeen);
                self.counts.forced += 1;
                let cpu = self.cpu(0)?;
                let world = self.world()?;
                let was_called = AtomicBool::new(false);
                world.on(cpu, || {
                    let orders = [0, 1, 0, 3].map(|order| Order::new(order).expect("a small order"));
                    orders.iter().for_each(|&order| _ = world.alloc(HANDLER, &Request::new(order)));
                    if interrupt(&world, at, call) {
                        was_called.store(true, Relaxed); // relaxed: read after the job
                    }
                    world.call(Allocator::tick); // finishes the frees that were deferred
                });
                let found = world.check();
                let found = found.map(|found| {
                    Text::new(format_args!("{what}, interrupted at access {at}: {}", found.as_str()))
                });
                hold(Rule::ReentryIsSeen, found)?;
                if !was_called.into_inner() {
                    break;
                }
                at += 1 + at / DENSE;
            }
        }
        Ok(())
    }
}

/// Makes a call, which a handler interrupts before its access number `at`. Returns whether the call had so many.
fn interrupt<H: Harness>(world: &World<'_, H>, at: u32, call: for<'w> fn(&World<'w, H>)) -> bool {
    let (accesses, locks, is_in_handler) = (Cell::new(0), Cell::new(0_u32), Cell::new(false));
    let hook = |event| {
        if is_in_handler.get() {
            return;
        }
        match event {
            Event::Access => {
                accesses.set(accesses.get() + 1);
                if accesses.get() == at {
                    is_in_handler.set(true);
                    handle(world, locks.get() > 0);
                    is_in_handler.set(false);
                }
            }
            Event::Locks => locks.set(locks.get() + 1),
            Event::Unlocks => locks.set(locks.get() - 1),
            Event::Waits(_) => {}
        }
    };
    world.harness.watch(&mut || call(world), &hook).expect("it was supported before");
    accesses.get() >= at
}

/// Frees what the handler holds and allocates a frame. It must not wait for a lock of the call it interrupted.
fn handle<H: Harness>(world: &World<'_, H>, has_locks: bool) {
    if has_locks && !world.allocator.platform().is_reentered() {
        // A call of the allocator would wait for ever.
        return world
            .note
            .write(format_args!("a handler interrupted the holder of a lock, and did not see it"));
    }
    while let Some((first, order)) = world.take(HANDLER) {
        world.disown(first, order);
        match world.allocator.free(first, order) {
            Ok(()) => {}
            Err(FreeError::Reentered(_)) => return world.keep(HANDLER, first, order),
            Err(error) => {
                return world.note.write(format_args!("a handler's free was refused: {error}"));
            }
        }
    }
    match world.allocator.alloc(&Request::page().no_wait()) {
        Ok(block) => world.keep(HANDLER, block.first, block.order),
        Err(AllocError::Reentered | AllocError::OutOfMemory(_)) => {}
        Err(error) => world.note.write(format_args!("a handler's request failed: {error}")),
    }
}

//! Threads of a simulated machine: each has a stack of its own, and all run on one host thread.
//!
//! A fiber runs until it calls [`suspend`] or ends, and goes on from there when it is resumed.
//! Neighbours: `engine.rs` decides who runs next. One of the few places with unsafe code.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::ptr;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

/// Bytes of a fiber's stack: address space, of which only what is used becomes memory.
const STACK_BYTES: usize = 256 << 10;

type Pause = Yielder<(), ()>;

thread_local! {
    /// The way out of the fiber that runs on this host thread.
    static RUNNING: Cell<*const Pause> = const { Cell::new(ptr::null()) };
}

/// Whether a fiber goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    Suspended,
    Ended,
}

/// A computation that can be suspended. It may borrow what lives as long as `'a`.
pub(crate) struct Fiber<'a> {
    coroutine: Coroutine<(), (), ()>,
    borrows: PhantomData<&'a mut &'a ()>,
}

impl<'a> Fiber<'a> {
    /// A fiber that will do `work` once it is resumed.
    ///
    /// # Errors
    /// When the host has no address space for its stack.
    pub(crate) fn new(work: impl FnOnce() + 'a) -> io::Result<Self> {
        let stack = DefaultStack::new(STACK_BYTES)?;
        let work: Box<dyn FnOnce() + 'a> = Box::new(work);
        // SAFETY: only the lifetime changes. The closure runs or is dropped while the fiber lives,
        // which `borrows` keeps within 'a: dropping a coroutine unwinds its stack. One that is
        // leaked never runs again.
        let work: Box<dyn FnOnce()> = unsafe { std::mem::transmute(work) };
        let coroutine = Coroutine::with_stack(stack, move |pause: &Pause, ()| {
            RUNNING.set(pause);
            work();
        });
        Ok(Self { coroutine, borrows: PhantomData })
    }

    /// Runs the fiber until it is suspended or ends. A panic in it goes on in the caller.
    pub(crate) fn resume(&mut self) -> Progress {
        match self.coroutine.resume(()) {
            CoroutineResult::Yield(()) => Progress::Suspended,
            CoroutineResult::Return(()) => {
                RUNNING.set(ptr::null());
                Progress::Ended
            }
        }
    }
}

/// Suspends the fiber that runs now.
///
/// # Panics
/// When the caller is no fiber.
pub(crate) fn suspend() {
    let pause = RUNNING.replace(ptr::null());
    assert!(!pause.is_null(), "only a simulated thread can be suspended");
    // SAFETY: set by this fiber before it ran or when it was resumed last; the reference lives on its
    // stack as long as the fiber does.
    unsafe { &*pause }.suspend(());
    RUNNING.set(pause);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn fibers_take_turns_and_borrow() {
        let log = RefCell::new(Vec::new());
        let speaker = |name: char| {
            let log = &log;
            move || {
                for turn in 0..3 {
                    log.borrow_mut().push((name, turn));
                    suspend();
                }
            }
        };
        let mut fibers = [Fiber::new(speaker('a')).unwrap(), Fiber::new(speaker('b')).unwrap()];
        for _ in 0..3 {
            for fiber in &mut fibers {
                assert_eq!(fiber.resume(), Progress::Suspended);
            }
        }
        assert!(fibers.iter_mut().all(|fiber| fiber.resume() == Progress::Ended));
        drop(fibers);
        let expected: Vec<_> = (0..3).flat_map(|turn| [('a', turn), ('b', turn)]).collect();
        assert_eq!(log.into_inner(), expected);
    }

    #[test]
    fn dropping_a_suspended_fiber_runs_its_destructors() {
        struct Note<'a>(&'a Cell<u32>);
        impl Drop for Note<'_> {
            fn drop(&mut self) {
                self.0.set(self.0.get() + 1);
            }
        }
        let dropped = Cell::new(0);
        let mut fiber = Fiber::new(|| {
            let _note = Note(&dropped);
            suspend();
        })
        .unwrap();
        assert_eq!(fiber.resume(), Progress::Suspended);
        drop(fiber);
        assert_eq!(dropped.get(), 1);
    }

    #[test]
    #[should_panic(expected = "broken")]
    fn a_panic_goes_on_in_the_caller() {
        Fiber::new(|| panic!("broken")).unwrap().resume();
    }
}

//! Fibers, which execute the threads of a simulated machine. Each fiber has its own stack, and all fibers run on one
//! host thread.
//!
//! A fiber runs until it calls [`suspend`] or ends. When it is resumed, it continues after that call. This module is
//! one of the few with unsafe code. Related files: `sim/engine.rs` schedules fibers.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::ptr;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

/// Size of a fiber's stack, in bytes of address space. Only the pages that the fiber touches use memory.
const STACK_BYTES: usize = 256 << 10;

type Pause = Yielder<(), ()>;

thread_local! {
    /// Handle of this host thread's running fiber. The fiber uses the handle to suspend itself.
    static RUNNING: Cell<*const Pause> = const { Cell::new(ptr::null()) };
}

/// Whether a fiber has more work to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    Suspended,
    Ended,
}

/// A computation that can be suspended. It may borrow data that is valid for `'a`.
pub(crate) struct Fiber<'a> {
    coroutine: Coroutine<(), (), ()>,
    borrows: PhantomData<&'a mut &'a ()>,
}

impl<'a> Fiber<'a> {
    /// Creates a fiber that runs `work` when it is first resumed.
    ///
    /// # Errors
    /// Returns an error if the host has no address space for the fiber's stack.
    pub(crate) fn new(work: impl FnOnce() + 'a) -> io::Result<Self> {
        let stack = DefaultStack::new(STACK_BYTES)?;
        let work: Box<dyn FnOnce() + 'a> = Box::new(work);
        // SAFETY: the transmute changes only the lifetime. The closure runs or is dropped while the fiber exists,
        // because dropping a coroutine unwinds its stack, and `borrows` limits the fiber to `'a`. A leaked fiber
        // never runs again.
        let work: Box<dyn FnOnce()> = unsafe { std::mem::transmute(work) };
        let coroutine = Coroutine::with_stack(stack, move |pause: &Pause, ()| {
            RUNNING.set(pause);
            work();
        });
        Ok(Self { coroutine, borrows: PhantomData })
    }

    /// Runs the fiber until it is suspended or ends. A panic in the fiber propagates to the caller.
    pub(crate) fn resume(&mut self) -> Progress {
        // The caller may itself be a fiber.
        let caller = RUNNING.replace(ptr::null());
        let result = self.coroutine.resume(());
        RUNNING.set(caller);
        match result {
            CoroutineResult::Yield(()) => Progress::Suspended,
            CoroutineResult::Return(()) => Progress::Ended,
        }
    }
}

/// Suspends the running fiber.
///
/// # Panics
/// Panics if the caller is not a fiber.
pub(crate) fn suspend() {
    let pause = RUNNING.replace(ptr::null());
    assert!(!pause.is_null(), "only a simulated thread can be suspended");
    // SAFETY: this fiber set the pointer when it started or was last resumed. The pointer refers to a value on the
    // fiber's own stack, which exists as long as the fiber.
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
    fn a_fiber_resumes_others_and_is_suspended_itself() {
        let log = RefCell::new(Vec::new());
        let mut outer = Fiber::new(|| {
            let mut inner = Fiber::new(|| {
                suspend();
                log.borrow_mut().push("inner");
            })
            .unwrap();
            assert_eq!(inner.resume(), Progress::Suspended);
            suspend();
            assert_eq!(inner.resume(), Progress::Ended);
            suspend();
            log.borrow_mut().push("outer");
        })
        .unwrap();
        assert_eq!([outer.resume(), outer.resume()], [Progress::Suspended; 2]);
        assert_eq!(outer.resume(), Progress::Ended);
        drop(outer);
        assert_eq!(log.into_inner(), ["inner", "outer"]);
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

//! Starts the threads of pools.
//!
//! They receive no signals of the program, and run with the default scheduling. They begin without Rust's standard library, so
//! that a child made by `fork` can start them: the library locks a list of threads while one begins or ends, and a child
//! whose parent was at it would wait forever. The C library frees its locks in a child. Related files:
//! `pool/workers.rs`, `pool/prefault.rs` and `publish/mod.rs` start threads.

use std::ffi::c_void;
use std::io;
use std::mem::{self, MaybeUninit};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use crate::threads::attributes::{SignalsBlocked, reset_scheduling, take_own_signals};

/// Bytes of a thread's stack, beside the least that the system needs; the standard library's default.
const STACK_BYTES: usize = 2 << 20;
/// Bytes of a thread's name, with the zero at its end. Source: Linux `prctl(2)`, `PR_SET_NAME`.
const NAME_BYTES: usize = 16;

/// What a thread does.
type Work = Box<dyn FnOnce() + Send>;

/// A thread of a pool. It goes on if this is dropped.
#[derive(Debug)]
pub(crate) struct Thread {
    /// The thread's `pthread_t`, which is a number or a pointer.
    id: usize,
}

impl Thread {
    /// Starts a thread with a name, which is cut after 15 bytes. If `work` panics, the thread ends.
    ///
    /// # Errors
    /// Returns an error if the system refuses the thread, or to block signals.
    pub(crate) fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let mut name_bytes = [0; NAME_BYTES];
        name_bytes.iter_mut().zip(name.bytes().take(NAME_BYTES - 1)).for_each(|(to, byte)| *to = byte);
        let work: Box<Work> = Box::new(Box::new(move || {
            // SAFETY: the name ends with a zero.
            unsafe { libc::prctl(libc::PR_SET_NAME, name_bytes.as_ptr()) };
            take_own_signals();
            reset_scheduling();
            work();
        }));
        // A new thread inherits the blocked signals of the thread that starts it.
        let _blocked = SignalsBlocked::begin()?;
        let (attributes, mut id) = (Attributes::new()?, MaybeUninit::<libc::pthread_t>::uninit());
        let work = Box::into_raw(work);
        // SAFETY: the attributes are initialised, and `run` takes the box.
        match unsafe { libc::pthread_create(id.as_mut_ptr(), &raw const attributes.0, run, work.cast()) } {
            0 => {
                // SAFETY: the call has written it.
                let id = unsafe { id.assume_init() };
                Ok(Self { id: id as usize })
            }
            refused => {
                // SAFETY: no thread has taken the box.
                drop(unsafe { Box::from_raw(work) });
                Err(io::Error::from_raw_os_error(refused))
            }
        }
    }

    /// Waits until the thread has ended.
    pub(crate) fn join(self) {
        let this = mem::ManuallyDrop::new(self);
        // SAFETY: the thread is not detached, and is joined once.
        unsafe { libc::pthread_join(this.id as libc::pthread_t, ptr::null_mut()) };
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // SAFETY: the thread is not detached, and is not joined.
        unsafe { libc::pthread_detach(self.id as libc::pthread_t) };
    }
}

extern "C" fn run(work: *mut c_void) -> *mut c_void {
    // SAFETY: `Thread::start` has given the box to this thread.
    let work = unsafe { Box::from_raw(work.cast::<Work>()) };
    // The panic has been reported. A payload may panic again when it is dropped.
    mem::forget(catch_unwind(AssertUnwindSafe(work)));
    ptr::null_mut()
}

/// Calls `work` on the calling thread and on as many others as can be started, at most `helpers`; returns when all calls
/// have returned.
pub(crate) fn with_helpers(name: &str, helpers: usize, work: &(dyn Fn() + Sync)) {
    struct Helpers(Vec<Thread>);

    impl Drop for Helpers {
        fn drop(&mut self) {
            self.0.drain(..).for_each(Thread::join);
        }
    }

    // SAFETY: the threads are joined before this function returns, or unwinds.
    let shared = unsafe { mem::transmute::<&(dyn Fn() + Sync), &'static (dyn Fn() + Sync)>(work) };
    let mut started = Helpers(Vec::new());
    started.0.extend((0..helpers).map_while(|_| Thread::start(name, shared).ok()));
    work();
}

/// Attributes of a thread to be started.
struct Attributes(libc::pthread_attr_t);

impl Attributes {
    fn new() -> io::Result<Self> {
        let mut attributes = MaybeUninit::uninit();
        // SAFETY: the call writes the attributes.
        match unsafe { libc::pthread_attr_init(attributes.as_mut_ptr()) } {
            0 => {}
            refused => return Err(io::Error::from_raw_os_error(refused)),
        }
        // SAFETY: as above.
        let mut this = Self(unsafe { attributes.assume_init() });
        // The minimum has room for the program's thread locals.
        // SAFETY: the call accesses no memory.
        let minimum = unsafe { libc::sysconf(libc::_SC_THREAD_STACK_MIN) };
        let bytes = STACK_BYTES + usize::try_from(minimum).unwrap_or(0);
        // SAFETY: the attributes are initialised. A size that the system refuses leaves its default.
        unsafe { libc::pthread_attr_setstacksize(&raw mut this.0, bytes) };
        Ok(this)
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: the attributes are initialised, and not used any more.
        unsafe { libc::pthread_attr_destroy(&raw mut self.0) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_thread_has_its_name_and_may_panic() {
        let name = || std::fs::read_to_string("/proc/thread-self/comm").unwrap();
        let (send, receive) = std::sync::mpsc::channel();
        let thread = Thread::start("zonal-with-a-long-name", move || {
            send.send(name()).unwrap();
            panic!("the thread that starts it goes on");
        });
        thread.unwrap().join();
        assert_eq!(receive.recv().unwrap(), "zonal-with-a-lo\n");
    }

    #[test]
    fn all_helpers_have_returned() {
        let calls = AtomicUsize::new(0);
        with_helpers("zonal-help", 3, &|| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            calls.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(calls.into_inner(), 4);
    }
}

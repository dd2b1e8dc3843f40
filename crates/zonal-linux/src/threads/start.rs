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

use crate::memory::origin::Origin;
use crate::threads::attributes::{SignalsBlocked, reset_scheduling, take_own_signals};

/// Bytes of a thread's stack, beside the least that the system needs; the standard library's default.
const STACK_BYTES: usize = 2 << 20;
/// Bytes of a thread's name, with the zero at its end. Source: Linux `prctl(2)`, `PR_SET_NAME`.
const NAME_BYTES: usize = 16;

/// A function of the GNU C library.
type LeastStack = extern "C" fn(&libc::pthread_attr_t) -> usize;
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
        // SAFETY: the thread is not detached, and is joined once.
        if unsafe { libc::pthread_join(self.id as libc::pthread_t, ptr::null_mut()) } == 0 {
            mem::forget(self);
        } // else it is the calling thread, which is detached
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
/// have returned. `work` must catch panics: one on a helper ends only that helper.
pub(crate) fn with_helpers(name: &str, helpers: usize, work: &(dyn Fn() + Sync)) {
    struct Helpers {
        threads: Vec<Thread>,
        origin: Origin,
    }

    impl Drop for Helpers {
        fn drop(&mut self) {
            // A child that `work` has made by `fork` does not have them.
            let end = if self.origin.is_here() { Thread::join } else { mem::forget::<Thread> };
            self.threads.drain(..).for_each(end);
        }
    }

    // SAFETY: the threads are joined before this function returns, or unwinds, except in a child, which does not have them.
    let shared = unsafe { mem::transmute::<&(dyn Fn() + Sync), &'static (dyn Fn() + Sync)>(work) };
    let mut started = Helpers { threads: Vec::new(), origin: Origin::here() };
    started.threads.extend((0..helpers).map_while(|_| Thread::start(name, shared).ok()));
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
        // SAFETY: the attributes are initialised. A size that the system refuses leaves its default.
        unsafe { libc::pthread_attr_setstacksize(&raw mut this.0, STACK_BYTES + least_stack(&this.0)) };
        Ok(this)
    }
}

/// Returns the bytes of a stack that the GNU C library needs for itself, above all for the program's thread locals; 0 elsewhere.
///
/// `sysconf(_SC_THREAD_STACK_MIN)` does not count thread locals.
fn least_stack(attributes: &libc::pthread_attr_t) -> usize {
    // SAFETY: the name ends with a zero.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__pthread_get_minstack".as_ptr()) };
    // SAFETY: it is null, or this function, which has this signature and reads the attributes.
    let least = unsafe { mem::transmute::<*mut c_void, Option<LeastStack>>(found) };
    least.map_or(0, |least| least(attributes))
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

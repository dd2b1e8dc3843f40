//! Whether this process is a child of the one that built a pool.

use std::sync::Once;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Number of forks between the process that loaded the package and this one.
static GENERATION: AtomicU64 = AtomicU64::new(0);

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Relaxed); // relaxed: a child has one thread
}

/// The process that an object was created in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process(u64);

impl Process {
    /// Returns the calling process.
    pub(crate) fn current() -> Self {
        static REGISTERED: Once = Once::new();
        REGISTERED.call_once(|| {
            // SAFETY: the function only changes an atomic, which is allowed in a child. If it cannot be registered, which
            // happens only without memory, children are not recognized.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
        Self(GENERATION.load(Relaxed)) // relaxed: changes only in a child, before its code runs
    }

    /// Whether the calling process is this one.
    #[inline]
    pub(crate) fn is_current(self) -> bool {
        self.0 == GENERATION.load(Relaxed) // relaxed: as above
    }
}

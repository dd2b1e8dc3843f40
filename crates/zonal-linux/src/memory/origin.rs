//! Tells a process from the children that `fork` makes of it.
//!
//! A number stands in a page that the kernel fills with zeros in a child; whoever finds zero there gives itself
//! the next number. Process ids would not do: in namespaces of their own, parent and child may both be
//! process 1. Where the kernel has no such page, `fork` of the C library zeroes the word, after what handlers of the
//! program do that were there before. Neighbours:
//! `threads/presence.rs` asks whose threads they are, `not_copied.rs` what else a child has to do first. Source: Linux `madvise(2)` (`MADV_WIPEONFORK`), `pthread_atfork(3)`.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use super::page_sizes::os_page_bytes;

/// The process that made something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Origin(u64);

impl Origin {
    /// This process.
    pub(crate) fn here() -> Self {
        Self(number())
    }

    /// Its number, which is not zero.
    pub(super) const fn number(self) -> u64 {
        self.0
    }

    /// Whether this is still that process, and not a child of it.
    pub(crate) fn is_here(self) -> bool {
        self.0 == number()
    }
}

/// Where the number stands if no page could be had; a child's is then zeroed by hand.
static WITHOUT_PAGE: AtomicU64 = AtomicU64::new(0);
/// The word that is zero in a new child.
static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());
/// The last number given, by this process or those it is a child of.
static LAST: AtomicU64 = AtomicU64::new(0);

/// The number of this process: other than that of any process it is a child of.
fn number() -> u64 {
    let word = word();
    // Relaxed throughout: a process changes its number once, before it can ask for it twice.
    let number = word.load(Ordering::Relaxed);
    if number != 0 {
        return number;
    }
    let fresh = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    match word.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => fresh,
        Err(others) => others,
    }
}

fn word() -> &'static AtomicU64 {
    let word = WORD.load(Ordering::Acquire); // pairs with the exchange below
    if word.is_null() {
        return first_word();
    }
    // SAFETY: only `first_word` stores here, and what it stores is never unmapped.
    unsafe { &*word }
}

/// Makes the word, and sees to the children.
#[cold]
fn first_word() -> &'static AtomicU64 {
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    // SAFETY: they read and write atomics.
    unsafe { around_forks(Some(note_the_number), forget_the_number, &IS_DONE) };
    let page = wiped_page();
    let ours = page.unwrap_or((&raw const WITHOUT_PAGE).cast_mut());
    // Release: the page is mapped. Acquire: another thread's page may be mapped before.
    match WORD.compare_exchange(null_mut(), ours, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: a static, or a page that stays mapped from now on.
        Ok(_) => unsafe { &*ours },
        Err(others) => {
            if let Some(page) = page {
                // SAFETY: mapped by this call, and shown to nobody.
                unsafe { libc::munmap(page.cast(), os_page_bytes()) };
            }
            // SAFETY: as above, for the thread that was faster.
            unsafe { &*others }
        }
    }
}

/// A page of zeros that is one of zeros again in each child; `None` where the kernel has none (before 4.14).
fn wiped_page() -> Option<*mut AtomicU64> {
    let (bytes, access) = (os_page_bytes(), libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: a new mapping.
    let page =
        unsafe { libc::mmap(null_mut(), bytes, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the range was mapped just now.
    if unsafe { libc::madvise(page, bytes, libc::MADV_WIPEONFORK) } == 0 {
        return Some(page.cast());
    }
    // SAFETY: as above, and nobody knows of it.
    unsafe { libc::munmap(page, bytes) };
    None
}

/// What the C library calls around each fork.
type Handler = unsafe extern "C" fn();

/// Has `before` called ahead of each fork of the C library from now on, and `first` in the child; `is_done`
/// remembers that it was asked for. Twice does no harm, and a lock that a child finds locked would.
///
/// # Safety
/// Both do only what a signal handler may, any number of times.
pub(super) unsafe fn around_forks(before: Option<Handler>, first: Handler, is_done: &AtomicBool) {
    if !is_done.load(Ordering::Acquire) {
        // SAFETY: the caller's promise.
        let failed = unsafe { libc::pthread_atfork(before, None, Some(first)) };
        assert!(failed == 0, "no memory to note what a child has to do: error {failed}");
        is_done.store(true, Ordering::Release); // pairs with the acquire above
    }
}

/// The number of the process that made the fork under way, or made this process by one; zero if it had none.
static NOTED: AtomicU64 = AtomicU64::new(0);

/// In a child, within its handlers: the process that made it.
pub(super) fn noted_parent() -> Option<Origin> {
    // Relaxed: stored by the thread that made the fork.
    Some(NOTED.load(Ordering::Relaxed)).filter(|&number| number != 0).map(Origin)
}

extern "C" fn note_the_number() {
    // Where there is a word, a child that has not asked yet asks for its number now: it could be asked for while the
    // fork is under way, and its child would not know of whom it is.
    let number = if WORD.load(Ordering::Acquire).is_null() { 0 } else { number() };
    NOTED.store(number, Ordering::Relaxed); // relaxed: forks of two threads at once note the same
}

/// Where the kernel did not, as emulators of it do not. A number that an earlier handler of the child asked for is
/// the child's own, unless there is no page: it was its parent's then, and earlier handlers must not ask.
extern "C" fn forget_the_number() {
    WITHOUT_PAGE.store(0, Ordering::Relaxed);
    let noted = NOTED.load(Ordering::Relaxed);
    // SAFETY: null before the first number was asked for, and since then a word that stays.
    if let Some(word) = unsafe { WORD.load(Ordering::Acquire).as_ref() } {
        // An error: it is not the parent's.
        word.compare_exchange(noted, 0, Ordering::Relaxed, Ordering::Relaxed).ok();
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// How a child ends that was made by `fork`, or by the system call `alone`: 0 when `child` holds.
    pub(crate) fn in_a_child(alone: bool, child: impl FnOnce() -> bool) -> i32 {
        let fork = || match alone {
            // SAFETY: in the child only `child` runs, which touches atomics alone, and then `_exit`.
            true => unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32 },
            // SAFETY: as above.
            false => unsafe { libc::fork() },
        };
        match fork() {
            // SAFETY: ends this process.
            0 => unsafe { libc::_exit(i32::from(!child())) },
            id => {
                let mut status = -1;
                // SAFETY: waits for a child of this process, and writes to `status`.
                assert_eq!(unsafe { libc::waitpid(id, &raw mut status, 0) }, id);
                status
            }
        }
    }

    #[test]
    fn children_know_of_parents_that_never_asked() {
        Origin::here();
        let grandchild = || in_a_child(false, || noted_parent().is_some_and(|parent| !parent.is_here())) == 0;
        assert_eq!(in_a_child(false, grandchild), 0);
    }

    #[test]
    fn children_and_theirs_are_others() {
        let origin = Origin::here();
        let is_other = || !origin.is_here() && Origin::here().is_here() && Origin::here() != origin;
        for alone in [false, true] {
            let grandchild = || {
                let parent = Origin::here();
                is_other() && in_a_child(alone, || is_other() && !parent.is_here()) == 0 && parent.is_here()
            };
            assert_eq!(in_a_child(alone, grandchild), 0, "by the system call alone: {alone}");
        }
        assert!(origin.is_here() && Origin::here() == origin);
    }
}

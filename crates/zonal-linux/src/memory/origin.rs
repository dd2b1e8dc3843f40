//! Distinguishes a process from the children that `fork` makes of it.
//!
//! The number of a process is stored in a page that the kernel fills with zeros in a child. A process that finds
//! zero there gives itself the next number. Process ids are not enough: in separate namespaces parent and child may
//! both be process 1. Where the kernel does not support such a page, a handler of the C library's `fork` zeroes the
//! word, after handlers that the program registered earlier. Neighbours: `threads/presence.rs` checks which process
//! has a pool's threads, `memory/not_copied.rs` does other work in a new child. Source: Linux `madvise(2)`
//! (`MADV_WIPEONFORK`), `pthread_atfork(3)`.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use super::page_sizes::os_page_bytes;

/// The process that made something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Origin(u64);

impl Origin {
    /// Returns this process.
    pub(crate) fn here() -> Self {
        Self(number())
    }

    /// Returns its number, which is not zero.
    pub(super) const fn number(self) -> u64 {
        self.0
    }

    /// Whether this is still that process, and not a child of it.
    pub(crate) fn is_here(self) -> bool {
        self.0 == number()
    }
}

/// Holds the number if no such page is available; a handler zeroes it in a child.
static WITHOUT_PAGE: AtomicU64 = AtomicU64::new(0);
/// Points to the word that is zero in a new child.
static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());
/// Last number assigned, by this process or its ancestors.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Returns the number of this process, which differs from that of every ancestor.
fn number() -> u64 {
    let word = word();
    // Relaxed throughout: a process changes its number once, before it can read it twice.
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

/// Creates the word, and registers the handlers for children.
#[cold]
fn first_word() -> &'static AtomicU64 {
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    // SAFETY: the handlers read and write atomics.
    unsafe { around_forks(Some(note_the_number), forget_the_number, &IS_DONE) };
    let page = wiped_page();
    let ours = page.unwrap_or((&raw const WITHOUT_PAGE).cast_mut());
    // Release: pairs with the acquire loads of `WORD`, so the page is seen mapped. Acquire: pairs with the release
    // of another thread that mapped its page first.
    match WORD.compare_exchange(null_mut(), ours, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: a static, or a page that stays mapped from now on.
        Ok(_) => unsafe { &*ours },
        Err(others) => {
            if let Some(page) = page {
                // SAFETY: mapped by this call, and not published.
                unsafe { libc::munmap(page.cast(), os_page_bytes()) };
            }
            // SAFETY: as above, for the page of the thread that was faster.
            unsafe { &*others }
        }
    }
}

/// Maps a page of zeros that becomes zero again in each child; `None` where the kernel does not support it (before
/// 4.14).
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
    // SAFETY: as above, and not published.
    unsafe { libc::munmap(page, bytes) };
    None
}

/// A function that the C library calls around each fork.
type Handler = unsafe extern "C" fn();

/// Registers `before` to be called before each later fork of the C library, and `first` in the child; `is_done`
/// records that they are registered. Registering twice is harmless, whereas a lock might be held when a child is
/// made.
///
/// # Safety
/// Both handlers do only what is async-signal-safe, and may run any number of times.
pub(super) unsafe fn around_forks(before: Option<Handler>, first: Handler, is_done: &AtomicBool) {
    if !is_done.load(Ordering::Acquire) {
        // SAFETY: the caller guarantees the same.
        let failed = unsafe { libc::pthread_atfork(before, None, Some(first)) };
        assert!(failed == 0, "no memory to note what a child has to do: error {failed}");
        is_done.store(true, Ordering::Release); // pairs with the acquire above
    }
}

/// Number of the process that makes the current fork, or that made this process by one; zero if it had none.
static NOTED: AtomicU64 = AtomicU64::new(0);

/// Returns, in the handlers of a child, the process that made it.
pub(super) fn noted_parent() -> Option<Origin> {
    // Relaxed: stored by the thread that made the fork.
    Some(NOTED.load(Ordering::Relaxed)).filter(|&number| number != 0).map(Origin)
}

extern "C" fn note_the_number() {
    // If there is a word, a child that has not read its number yet does so now. Otherwise another thread could
    // assign the number during the fork, and the new child would not know its parent.
    let number = if WORD.load(Ordering::Acquire).is_null() { 0 } else { number() };
    NOTED.store(number, Ordering::Relaxed); // relaxed: forks of two threads at once note the same
}

/// Zeroes the word where the kernel did not, as under some emulators. A number that an earlier handler assigned in
/// the child belongs to the child. The exception is a kernel without such pages: the number is the parent's then,
/// so earlier handlers must not read it.
extern "C" fn forget_the_number() {
    WITHOUT_PAGE.store(0, Ordering::Relaxed);
    let noted = NOTED.load(Ordering::Relaxed);
    // SAFETY: null before the first number was assigned, and since then a word that is never unmapped.
    if let Some(word) = unsafe { WORD.load(Ordering::Acquire).as_ref() } {
        // If this fails, the number is not the parent's.
        word.compare_exchange(noted, 0, Ordering::Relaxed, Ordering::Relaxed).ok();
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns the wait status of a child made by `fork`, or by the bare system call if `alone`: 0 when `child`
    /// returns true.
    pub(crate) fn in_a_child(alone: bool, child: impl FnOnce() -> bool) -> i32 {
        let fork = || match alone {
            // SAFETY: the child runs only `child`, which accesses only atomics, and then `_exit`.
            true => unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32 },
            // SAFETY: as above.
            false => unsafe { libc::fork() },
        };
        match fork() {
            // SAFETY: ends this process, the child.
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
    fn child_recognises_a_parent_that_never_read_its_number() {
        Origin::here();
        let grandchild = || in_a_child(false, || noted_parent().is_some_and(|parent| !parent.is_here())) == 0;
        assert_eq!(in_a_child(false, grandchild), 0);
    }

    #[test]
    fn children_and_grandchildren_differ_from_their_parents() {
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

//! Distinguishes a process from its children made by `fork`.
//!
//! Each process has a number, stored in a word. The word is in a page that the kernel fills with zeros in a child
//! (`MADV_WIPEONFORK`). A process that reads zero assigns itself the next number. Process ids would not be sufficient,
//! because in separate namespaces parent and child may both be process 1. On a kernel without such pages, a handler of
//! `pthread_atfork` zeroes the word. It runs after the handlers that the program registered earlier.
//!
//! Related files: `threads/presence.rs` checks whether this process has the pool's threads, and `memory/not_copied.rs`
//! registers another handler for children. Source: Linux `madvise(2)`, `pthread_atfork(3)`.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use super::page_sizes::os_page_bytes;

/// Identifies a process, for example the one that built a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Origin(u64);

impl Origin {
    /// Returns the identity of this process.
    pub(crate) fn here() -> Self {
        Self(number())
    }

    /// Returns the number of the process, which is not zero.
    pub(super) const fn number(self) -> u64 {
        self.0
    }

    /// Whether the calling process is the one that `self` identifies, and not a child of it.
    #[inline]
    pub(crate) fn is_here(self) -> bool {
        // Relaxed: as in `number`. In a new child the word is zero, which is the number of no process.
        self.0 == word().load(Ordering::Relaxed)
    }
}

/// The word, if the kernel cannot zero pages in children. A handler of `fork` zeroes the word in a child.
static WITHOUT_PAGE: AtomicU64 = AtomicU64::new(0);
/// Pointer to the word that contains the number of this process. The word is zero in a new child.
static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());
/// Last number assigned, by this process or its ancestors.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Returns the number of this process, which differs from that of every ancestor.
fn number() -> u64 {
    let word = word();
    // Relaxed, here and below: the word of a process changes only once, from zero to its number.
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
    let word = WORD.load(Ordering::Acquire); // Acquire: takes the mapped page; pairs with `first_word`.
    if word.is_null() {
        return first_word();
    }
    // SAFETY: only `first_word` stores to `WORD`. It stores a pointer to a static or to a page that is never unmapped.
    unsafe { &*word }
}

/// Creates the word, and registers the handlers for children.
#[cold]
fn first_word() -> &'static AtomicU64 {
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    // SAFETY: the handlers only read and write atomics, which is async-signal-safe and can be repeated.
    unsafe { around_forks(Some(note_the_number), None, forget_the_number, &IS_DONE) };
    let page = wiped_page();
    let ours = page.unwrap_or((&raw const WITHOUT_PAGE).cast_mut());
    // AcqRel: takes or publishes the page; pairs with `word`, `first_word`, `note_the_number`, `forget_the_number`.
    match WORD.compare_exchange(null_mut(), ours, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: `ours` points to a static, or to a page that is never unmapped after this exchange.
        Ok(_) => unsafe { &*ours },
        Err(others) => {
            if let Some(page) = page {
                // SAFETY: this call mapped the page and did not publish it, so no other code uses it.
                unsafe { libc::munmap(page.cast(), os_page_bytes()) };
            }
            // SAFETY: `others` points to a static, or to the page of the thread that published first, which is never
            // unmapped.
            unsafe { &*others }
        }
    }
}

/// Maps a page of zeros that the kernel zeroes again in each child. Returns `None` on kernels before 4.14, which do not
/// support this.
fn wiped_page() -> Option<*mut AtomicU64> {
    let (bytes, access) = (os_page_bytes(), libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: the call creates a new mapping and does not change existing ones.
    let page =
        unsafe { libc::mmap(null_mut(), bytes, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the range was mapped just now, and no other code uses it.
    if unsafe { libc::madvise(page, bytes, libc::MADV_WIPEONFORK) } == 0 {
        return Some(page.cast());
    }
    // SAFETY: the range was mapped above, and no other code uses it.
    unsafe { libc::munmap(page, bytes) };
    None
}

/// A function that the C library calls around each fork.
type Handler = unsafe extern "C" fn();

/// Registers handlers for each later `fork` of the C library: `before` and `after` run in the parent before and after the fork,
/// and `first` runs in the child.
///
/// `is_done` records that the handlers are registered. Two threads may register them at the same time, which is
/// harmless. A lock would prevent that, but another thread could hold it when a child is made.
///
/// # Safety
/// The handlers must be async-signal-safe, and calling them any number of times must be correct.
pub(crate) unsafe fn around_forks(
    before: Option<Handler>,
    after: Option<Handler>,
    first: Handler,
    is_done: &AtomicBool,
) {
    // Acquire: takes the registration; pairs with `around_forks`.
    if !is_done.load(Ordering::Acquire) {
        // SAFETY: the caller guarantees that the handlers are async-signal-safe and may be called repeatedly.
        let failed = unsafe { libc::pthread_atfork(before, after, Some(first)) };
        assert!(failed == 0, "cannot register a fork handler: error {failed}");
        is_done.store(true, Ordering::Release); // Release: publishes the registration; pairs with `around_forks`.
    }
}

/// During a fork, the number of the process that calls `fork`. Afterwards, in the child, the number of its parent. Zero
/// if the parent had no number.
static NOTED: AtomicU64 = AtomicU64::new(0);

/// Returns the identity of the parent, when called by a `pthread_atfork` handler in a child.
pub(super) fn noted_parent() -> Option<Origin> {
    // Relaxed: the thread that called `fork`, which is the only thread of the child, stored the value.
    Some(NOTED.load(Ordering::Relaxed)).filter(|&number| number != 0).map(Origin)
}

extern "C" fn note_the_number() {
    // If the word exists but is zero, this process is a child that has not assigned its number yet, and `number`
    // assigns it now. Otherwise another thread could assign the number during the fork, and the new child would not
    // know its parent.
    // Acquire: takes the mapped page; pairs with `first_word`.
    let number = if WORD.load(Ordering::Acquire).is_null() { 0 } else { number() };
    NOTED.store(number, Ordering::Relaxed); // relaxed: concurrent forks store the same value
}

/// Zeroes the word in a child if the kernel did not zero it, as under some emulators.
///
/// If an earlier handler has already assigned a number to the child, the function does not change it. On a kernel
/// without pages that it zeroes in children, the word still contains the number of the parent when earlier handlers
/// run. Earlier handlers must therefore not read the number.
extern "C" fn forget_the_number() {
    WITHOUT_PAGE.store(0, Ordering::Relaxed);
    let noted = NOTED.load(Ordering::Relaxed);
    // SAFETY: the pointer is null until `first_word` stores it. From then on it points to a word that is never
    // unmapped.
    // Acquire: takes the mapped page; pairs with `first_word`.
    if let Some(word) = unsafe { WORD.load(Ordering::Acquire).as_ref() } {
        // If the exchange fails, the word does not contain the number of the parent, and stays as it is.
        word.compare_exchange(noted, 0, Ordering::Relaxed, Ordering::Relaxed).ok();
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Runs `child` in a child process and returns its wait status, which is 0 if `child` returns true. The child is
    /// made by `fork` or, if `alone`, by the bare system call.
    pub(crate) fn in_a_child(alone: bool, child: impl FnOnce() -> bool) -> i32 {
        let fork = || match alone {
            // SAFETY: the child runs only `child`, which accesses only atomics, and then `_exit`.
            true => unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32 },
            // SAFETY: the child runs only `child`, which accesses only atomics, and then `_exit`.
            false => unsafe { libc::fork() },
        };
        match fork() {
            // SAFETY: this process is the child, and the call ends it.
            0 => unsafe { libc::_exit(i32::from(!child())) },
            id => {
                let mut status = -1;
                // SAFETY: the call waits for a child of this process, and writes only to `status`.
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

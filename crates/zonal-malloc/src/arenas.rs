//! The pool's memory as arenas of mimalloc, and how much of it mimalloc uses.
//!
//! Arenas are whole multiples of 32 MiB, at most 16 GiB each, and never handed back. Invariant: the address ranges of
//! arenas are disjoint, and only mimalloc uses them.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use zonal_linux::{PageCount, Pool, PoolRequest, Urgency};

use crate::errno;
use crate::mimalloc::{self, Piece};

/// mimalloc divides arenas into slices of this size.
pub(crate) const SLICE: usize = 64 << 10;
/// Arena sizes are multiples of this.
pub(crate) const UNIT: usize = 32 << 20;
/// The largest arena.
const MOST: usize = 16 << 30;

/// A part of the pool's memory that mimalloc manages.
#[derive(Debug)]
pub(crate) struct Arena {
    pub(crate) start: usize,
    pub(crate) bytes: usize,
    pub(crate) node: u16,
    /// One bit for each slice: whether mimalloc uses it, or keeps it for later use.
    used: Box<[AtomicU64]>,
}

/// Whether mimalloc may return the pages of free memory to the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purge {
    /// Yes, and the kernel provides zeroed pages on the same node when the memory is used again.
    Allowed,
    /// No, because the pages were populated in advance.
    Never,
}

static ARENAS: OnceLock<Vec<&'static Arena>> = OnceLock::new();

/// Returns all arenas, in the order in which mimalloc got them.
pub(crate) fn all() -> &'static [&'static Arena] {
    ARENAS.get().map_or(&[], Vec::as_slice)
}

/// Returns the node of the arena that contains an address.
pub(crate) fn node_of(address: usize) -> Option<u16> {
    all().iter().find(|arena| arena.contains(address)).map(|arena| arena.node)
}

impl Arena {
    fn contains(&self, address: usize) -> bool {
        address.wrapping_sub(self.start) < self.bytes
    }

    /// Returns the bytes of slices that mimalloc uses or keeps.
    pub(crate) fn used_bytes(&self) -> usize {
        let words = self.used.iter();
        // Relaxed: the sum is of no single moment if threads allocate meanwhile.
        words.map(|word| word.load(Ordering::Relaxed).count_ones() as usize * SLICE).sum()
    }

    /// Marks slices from `first` to before `end`.
    fn mark(&self, first: usize, end: usize, is_used: bool) {
        if first >= end {
            return; // less than a slice
        }
        for (index, word) in self.used.iter().enumerate().take(end.div_ceil(64)).skip(first / 64) {
            let from = first.saturating_sub(index * 64);
            let until = (end - index * 64).min(64);
            let bits = (u64::MAX >> (64 - (until - from))) << from;
            // Relaxed: mimalloc changes a slice only while it owns it, and the bits order nothing else.
            if is_used {
                word.fetch_or(bits, Ordering::Relaxed);
            } else {
                word.fetch_and(!bits, Ordering::Relaxed);
            }
        }
    }
}

/// Makes arenas from all memory of the pool, node by node. The pool's allocator is not used: its metadata of the memory
/// then stays untouched, which is several MiB.
///
/// # Errors
/// Says which memory mimalloc refused, or that no part of the pool is large enough.
///
/// # Safety
/// Nothing is or will be allocated from the pool.
pub(crate) unsafe fn give_all(pool: &Pool, purge: Purge) -> Result<(), String> {
    let mut arenas = Vec::new();
    for node in pool.memory_nodes().iter() {
        for zone in pool.ranges().filter(|zone| zone.node == node) {
            let (mut start, mut left) =
                (zone.frames.start, zone.frames.count.get() as usize * pool.page_bytes());
            while left >= UNIT {
                let bytes = left.min(MOST) / UNIT * UNIT;
                let memory = pool.ptr_of(start).ok_or("a zone of the pool has no memory")?;
                // SAFETY: the frames are mapped, and zero because the pool is new. The caller guarantees that no other code
                // allocates them, and the page that is forgotten below keeps them mapped.
                arenas.push(unsafe { give(memory.as_ptr().cast(), bytes, node.get(), purge) }?);
                start = start.plus(PageCount::new((bytes / pool.page_bytes()) as u64));
                left -= bytes;
            }
        }
    }
    if arenas.is_empty() {
        return Err(format!(
            "no zone of {pool:?} has 32 MiB, the smallest arena of mimalloc; ZONAL_MALLOC_SIZE must be larger"
        ));
    }
    // The memory of a pool stays as long as something is allocated from it. mimalloc has this page too.
    let page = pool.alloc(&PoolRequest::page().no_wait().urgency(Urgency::Reserve));
    std::mem::forget(page.map_err(|error| error.to_string())?);
    ARENAS.get_or_init(|| arenas);
    Ok(())
}

/// Makes an arena.
///
/// # Safety
/// The memory is mapped and zero, stays mapped, and is used by nothing else.
unsafe fn give(memory: *mut c_void, bytes: usize, node: u16, purge: Purge) -> Result<&'static Arena, String> {
    let used = (0..(bytes / SLICE).div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
    let arena: &'static Arena = Box::leak(Box::new(Arena { start: memory.addr(), bytes, node, used }));
    let piece = Piece { start: memory, bytes, node: c_int::from(node), is_pinned: purge == Purge::Never };
    let function = if purge == Purge::Never { keep_pages } else { return_pages };
    // SAFETY: the caller guarantees it of the memory, and `arena` lives forever.
    if unsafe { mimalloc::manage(&piece, function, (&raw const *arena).cast_mut().cast()) } {
        Ok(arena)
    } else {
        Err(format!("mimalloc refused {bytes} bytes of node {node} at {:#x}", memory.addr()))
    }
}

/// Records what is committed, in arenas that keep their pages.
// SAFETY: mimalloc calls it with a range of an arena, and with the argument that `give` passed.
unsafe extern "C" fn keep_pages(
    commit: bool,
    start: *mut c_void,
    bytes: usize,
    _is_zero: *mut bool,
    arena: *mut c_void,
) -> bool {
    // SAFETY: `give` passed an `Arena` that lives forever.
    let arena = unsafe { &*arena.cast::<Arena>() };
    let offset = start.addr() - arena.start;
    if commit {
        arena.mark(offset / SLICE, (offset + bytes).div_ceil(SLICE), true);
    }
    commit // nothing is decommitted
}

/// Records what is committed, and returns the pages of what is decommitted to the kernel.
// SAFETY: mimalloc calls it with a range of an arena, and with the argument that `give` passed.
unsafe extern "C" fn return_pages(
    commit: bool,
    start: *mut c_void,
    bytes: usize,
    is_zero: *mut bool,
    arena: *mut c_void,
) -> bool {
    if commit {
        // SAFETY: the arguments are the caller's.
        return unsafe { keep_pages(commit, start, bytes, is_zero, arena) };
    }
    // SAFETY: as in `keep_pages`.
    let arena = unsafe { &*arena.cast::<Arena>() };
    // `free` may not change `errno`.
    let saved = errno::get();
    // SAFETY: mimalloc owns these free pages of the arena, which are private memory of this process.
    let is_returned = unsafe { libc::madvise(start, bytes, libc::MADV_DONTNEED) } == 0;
    errno::set(saved);
    if is_returned {
        let offset = start.addr() - arena.start;
        arena.mark(offset.div_ceil(SLICE), (offset + bytes) / SLICE, false);
    }
    is_returned
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena(slices: usize) -> Arena {
        let used = (0..slices.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Arena { start: 1 << 40, bytes: slices * SLICE, node: 3, used }
    }

    #[test]
    fn slices_are_marked_across_words() {
        let arena = arena(300);
        for (first, end) in [(0, 300), (0, 1), (63, 64), (63, 65), (64, 128), (1, 299), (130, 131)] {
            arena.mark(first, end, true);
            assert_eq!(arena.used_bytes(), (end - first) * SLICE, "{first}..{end}");
            arena.mark(first, end, true);
            assert_eq!(arena.used_bytes(), (end - first) * SLICE, "twice, {first}..{end}");
            arena.mark(first, end, false);
            assert_eq!(arena.used_bytes(), 0, "{first}..{end}");
        }
        for (first, end) in [(5, 5), (128, 128), (6, 5)] {
            arena.mark(first, end, true);
            assert_eq!(arena.used_bytes(), 0, "{first}..{end}");
        }
    }

    #[test]
    fn arenas_end_before_their_last_byte() {
        let arena = arena(512);
        let end = arena.start + arena.bytes;
        let found = [arena.start - 1, arena.start, end - 1, end].map(|address| arena.contains(address));
        assert_eq!(found, [false, true, true, false]);
    }
}

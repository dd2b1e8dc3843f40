//! The memory of the pool as arenas of mimalloc, and how much of it mimalloc uses.
//!
//! Arenas are whole multiples of 32 MiB, at most 16 GiB each, and never handed back. Invariant: the address ranges of
//! arenas are disjoint, and only mimalloc uses them.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use zonal_linux::{FrameBuffer, NodeId, NodeMask, PageCount, Pool, PoolRequest, Urgency};

use crate::errno;
use crate::mimalloc::{self, Piece};

/// mimalloc divides arenas into slices of this size.
pub(crate) const SLICE: usize = 64 << 10;
/// The sizes of arenas are multiples of this.
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

/// Makes arenas of all memory of the pool, node by node.
///
/// # Errors
/// Says which memory mimalloc refused, or that no part of the pool is large enough.
pub(crate) fn give_all(pool: &Pool, purge: Purge) -> Result<(), String> {
    let mut arenas = Vec::new();
    for node in pool.memory_nodes().iter() {
        for buffer in buffers(pool, node)? {
            arenas.push(give(buffer, purge)?);
        }
    }
    if arenas.is_empty() {
        return Err(format!(
            "no zone of {pool:?} has 32 MiB, the smallest arena of mimalloc; ZONAL_MALLOC_SIZE must be larger"
        ));
    }
    ARENAS.get_or_init(|| arenas);
    Ok(())
}

/// Allocates the memory of a node in adjacent parts, the largest first.
fn buffers(pool: &Pool, node: NodeId) -> Result<Vec<FrameBuffer>, String> {
    let only: NodeMask = [node].into_iter().collect();
    let policy = pool.bind(only).map_err(|error| error.to_string())?;
    // Nothing else allocates from the pool, so no frames are kept back for urgent requests.
    let request = PoolRequest::page().policy(&policy).no_wait().urgency(Urgency::Reserve);
    let page = pool.page_bytes();
    let mut sizes: Vec<usize> = Vec::new();
    for zone in pool.ranges().filter(|zone| zone.node == node) {
        let mut left = zone.frames.count.get() as usize * page / UNIT * UNIT;
        while left > 0 {
            sizes.push(left.min(MOST));
            left -= left.min(MOST);
        }
    }
    sizes.sort_unstable_by(|one, other| other.cmp(one));
    let mut buffers = Vec::new();
    for mut bytes in sizes {
        while bytes > 0 {
            match pool.alloc_contiguous(&request, PageCount::new((bytes / page) as u64)) {
                Ok(buffer) => {
                    buffers.push(buffer);
                    break;
                }
                Err(_) => bytes -= UNIT,
            }
        }
    }
    Ok(buffers)
}

fn give(buffer: FrameBuffer, purge: Purge) -> Result<&'static Arena, String> {
    let (start, bytes, node) = (buffer.as_ptr().addr(), buffer.len(), buffer.node().get());
    let memory = buffer.as_ptr().cast_mut().cast::<c_void>();
    let used = (0..(bytes / SLICE).div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
    let arena: &'static Arena = Box::leak(Box::new(Arena { start, bytes, node, used }));
    let piece = Piece { start: memory, bytes, node: c_int::from(node), is_pinned: purge == Purge::Never };
    let function = if purge == Purge::Never { keep_pages } else { return_pages };
    // SAFETY: the frames are mapped, and zero because the pool is new and does not fill free frames with a pattern. The
    // buffer, which owns them, is forgotten below, so they are never freed. `arena` lives forever.
    let is_accepted = unsafe { mimalloc::manage(&piece, function, (&raw const *arena).cast_mut().cast()) };
    std::mem::forget(buffer);
    if is_accepted {
        Ok(arena)
    } else {
        Err(format!("mimalloc refused {bytes} bytes of node {node} at {start:#x}"))
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

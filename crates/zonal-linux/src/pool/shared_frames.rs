//! The type [`SharedFrames`], a block that several threads read and write under latches of their own.
//!
//! Related file: `pool/frames.rs` has the type [`Frames`], whose bytes have one owner.

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use zonal::units::{NodeId, PageCount, Pfn};

use super::frames::Frames;

/// A block of frames that several threads access, under latches that the caller keeps elsewhere.
///
/// [`Frames`] are a byte slice, so the compiler may assume that no thread writes while a reference to them exists. The pages
/// of a buffer pool have no such owner: their latches say which thread may access which bytes. This type provides
/// addresses instead of references, and atomic words for bytes that are accessed without a latch.
///
/// ```
/// use std::sync::{Arc, RwLock};
/// use zonal_linux::{Pool, PoolRequest, SharedFrames};
///
/// let pool = Pool::builder().size(16 << 20).build()?;
/// let page = Arc::new(SharedFrames::from(pool.alloc(&PoolRequest::page().zeroed())?));
/// let latch = Arc::new(RwLock::new(())); // in the descriptor of the page, not in the page
/// let threads = [1_u8, 2].map(|byte| {
///     let (page, latch) = (Arc::clone(&page), Arc::clone(&latch));
///     std::thread::spawn(move || {
///         let _exclusive = latch.write().unwrap();
///         // SAFETY: all threads hold the latch exclusively while they write.
///         unsafe { page.write_at(usize::from(byte), &[byte; 4]) };
///     })
/// });
/// threads.into_iter().for_each(|thread| thread.join().unwrap());
/// let mut bytes = [0; 6];
/// let _shared = latch.read().unwrap();
/// // SAFETY: no thread writes while this one holds the latch.
/// unsafe { page.read_at(0, &mut bytes) };
/// assert!(bytes == [0, 1, 2, 2, 2, 2] || bytes == [0, 1, 1, 1, 1, 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Invariant: no reference to the bytes of `frames` exists while this value does.
pub struct SharedFrames {
    frames: Frames,
}

impl From<Frames> for SharedFrames {
    fn from(frames: Frames) -> Self {
        Self { frames }
    }
}

impl fmt::Debug for SharedFrames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedFrames").field("first", &self.first()).field("count", &self.count()).finish()
    }
}

impl SharedFrames {
    /// Returns the frames as a byte slice with one owner again.
    #[must_use]
    pub fn into_frames(self) -> Frames {
        self.frames
    }

    /// Returns the number of the first frame.
    #[must_use]
    pub const fn first(&self) -> Pfn {
        self.frames.first()
    }

    /// Returns the number of frames.
    #[must_use]
    pub const fn count(&self) -> PageCount {
        self.frames.count()
    }

    /// Returns the node that the frames belong to.
    #[must_use]
    pub const fn node(&self) -> NodeId {
        self.frames.node()
    }

    /// Returns the number of bytes, which is never 0.
    #[expect(clippy::len_without_is_empty, reason = "a block is never empty")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.frames.bytes()
    }

    /// Returns the address of the first byte, which is valid while this value exists.
    ///
    /// Accesses through it need a latch, or must be atomic.
    #[must_use]
    pub const fn as_ptr(&self) -> NonNull<u8> {
        self.frames.start()
    }

    /// Returns the frames as atomic words of eight bytes, which any thread may access at any time.
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        let start = self.as_ptr().cast::<AtomicU64>();
        // SAFETY: the bytes are mapped and aligned to a frame while this value exists, every bit pattern is valid, and no
        // reference to them as ordinary bytes exists. Callers of the unsafe methods exclude atomic accesses.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.len() / size_of::<AtomicU64>()) }
    }

    /// Copies bytes from the frames, beginning at `offset`, to `bytes`.
    ///
    /// # Safety
    /// No other thread may write these bytes during the call, [atomically](Self::words) or not, which a latch ensures.
    ///
    /// # Panics
    /// Panics if the bytes are not within the frames.
    pub unsafe fn read_at(&self, offset: usize, bytes: &mut [u8]) {
        let (from, count) = (self.at(offset, bytes.len()), bytes.len());
        // SAFETY: `at` checks that the bytes are within the frames. The caller guarantees that no thread writes them, and
        // `bytes` is an exclusive reference, so it does not overlap.
        unsafe { from.copy_to_nonoverlapping(NonNull::from(bytes).cast(), count) };
    }

    /// Copies `bytes` to the frames, beginning at `offset`.
    ///
    /// # Safety
    /// No other thread may read or write these bytes of the frames during the call, [atomically](Self::words) or not,
    /// which a latch ensures.
    ///
    /// # Panics
    /// Panics if the bytes are not within the frames.
    pub unsafe fn write_at(&self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: `at` checks that the bytes are within the frames. The caller guarantees that no other thread accesses
        // them. `bytes` is a reference to memory outside them, because no reference to the frames exists.
        unsafe { to.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
    }

    /// Returns the address of `count` bytes at `offset`, which must be within the frames.
    fn at(&self, offset: usize, count: usize) -> NonNull<u8> {
        let len = self.len();
        let is_within = offset.checked_add(count).is_some_and(|end| end <= len);
        assert!(is_within, "{count} bytes at offset {offset} are not within {len} bytes");
        // SAFETY: `offset` is at most the length of the mapped frames.
        unsafe { self.as_ptr().add(offset) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;
    use std::sync::{Arc, Mutex};
    use std::thread;

    use super::*;
    use crate::{Pool, PoolRequest};

    fn page() -> SharedFrames {
        let pool = Pool::builder().size(4 << 20).build().unwrap();
        pool.alloc(&PoolRequest::page().zeroed()).unwrap().into()
    }

    #[test]
    fn threads_write_under_a_latch_and_count_in_words() {
        const ROUNDS: u64 = 1000;
        let (page, latch) = (Arc::new(page()), Arc::new(Mutex::new(())));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let held = latch.lock().unwrap();
                        let mut bytes = [0; 8];
                        // SAFETY: both threads hold the latch while they access these bytes.
                        unsafe { page.read_at(4088, &mut bytes) };
                        let next = u64::from_ne_bytes(bytes) + 1;
                        // SAFETY: as above, this thread holds the latch.
                        unsafe { page.write_at(4088, &next.to_ne_bytes()) };
                        drop(held);
                        page.words()[0].fetch_add(1, Relaxed);
                    }
                });
            }
        });
        assert_eq!([0, 511].map(|at| page.words()[at].load(Relaxed)), [2 * ROUNDS; 2]);
        let frames = Arc::into_inner(page).unwrap().into_frames();
        assert_eq!(frames[..8], (2 * ROUNDS).to_ne_bytes());
    }

    #[test]
    #[should_panic(expected = "2 bytes at offset 4095 are not within 4096 bytes")]
    fn bytes_beyond_the_frames_are_refused() {
        // SAFETY: no other thread has the page.
        unsafe { page().write_at(4095, &[1, 2]) };
    }
}

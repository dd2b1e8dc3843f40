//! The contender `llfree`: LLFree (Wrenger et al., USENIX ATC 2023), from a shared library that the user names.
//!
//! LLFree is in no package registry, and this crate has nothing of it. The library is loaded at run time and called
//! through LLFree's C interface (`llfree/interface.rs`). Each thread uses the local slot of its CPU, and the classes are
//! those of LLFree's own example: one for blocks below 2 MiB and one for larger blocks.

mod interface;

use std::ffi::c_void;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use zonal::units::{Order, PageCount, Pfn};
use zonal_workload::PageSource;

pub use self::interface::LlfreeError;
use self::interface::{
    ALL_FREE, Buffers, CLASSES_MAX, ClassSlots, Classes, DEMOTE, Functions, MATCH, OK, Optional, Policy,
    Request, STEAL, Sizes, Stats,
};
use crate::contender::{Contender, Entry, Reason};
use crate::floor::area::{self, Area};

/// Name of the contender.
const NAME: &str = "llfree";

/// Class of blocks below 2 MiB.
const SMALL: u8 = 0;
/// Class of larger blocks, and of trees that are free.
const HUGE: u8 = 1;
/// Order of the smallest block in class [`HUGE`].
const HUGE_ORDER: u8 = 9;

/// Alignment of the allocator and its buffers: a page, which is more than they need.
const ALIGNMENT: usize = 4096;

/// Frames of a tree, which is a constant of the library. The policy has no other way to learn it.
static TREE_FRAMES: AtomicUsize = AtomicUsize::new(1 << 12);

/// Decides how well a tree with `free` free frames suits a request, by the classes `requested` and `target`.
///
/// The best tree is neither nearly full, since it would soon have to be replaced, nor half empty, since it may become free.
extern "C" fn policy(requested: u8, target: u8, free: usize) -> Policy {
    let tree = TREE_FRAMES.load(Ordering::Relaxed); // relaxed: a constant once there is an allocator
    let matched = |priority| Policy { kind: MATCH, priority };
    match requested.cmp(&target) {
        std::cmp::Ordering::Greater => Policy { kind: STEAL, priority: 0 },
        std::cmp::Ordering::Less => Policy { kind: DEMOTE, priority: 0 },
        std::cmp::Ordering::Equal if free >= tree / 2 => matched(1),
        std::cmp::Ordering::Equal if free >= tree / 64 => matched(u8::MAX),
        std::cmp::Ordering::Equal => matched(0),
    }
}

/// An allocator of the library.
struct Llfree {
    functions: Arc<Functions>,
    /// The allocator's state, in `memory`.
    state: *mut c_void,
    /// Each class has this number of local slots.
    slots: u64,
    _memory: MmapRaw,
}

// SAFETY: the interface may be called on any thread at any time.
unsafe impl Send for Llfree {}
// SAFETY: as above.
unsafe impl Sync for Llfree {}

impl Llfree {
    fn new(functions: Arc<Functions>, frames: PageCount) -> Result<Self, Reason> {
        let count = usize::try_from(frames.get()).map_err(|_| format!("it cannot manage {frames} frames"))?;
        let slots = std::thread::available_parallelism().map_or(1, usize::from);
        let classes = classes(slots);
        // SAFETY: the classes are valid during the call.
        let sizes = unsafe { (functions.metadata_size)(&raw const classes, count) };
        let offsets = place(sizes).ok_or_else(|| format!("it asks for {sizes:?} of memory"))?;
        let memory = MmapOptions::new().len(offsets[4]).no_reserve_swap().map_anon();
        let memory = MmapRaw::from(memory.map_err(|error| format!("cannot map its buffers: {error}"))?);
        // SAFETY: the offsets are within the mapping.
        let at = |offset| unsafe { memory.as_mut_ptr().add(offset) };
        let buffers = Buffers { local: at(offsets[1]), trees: at(offsets[2]), lower: at(offsets[3]) };
        let state = at(offsets[0]).cast();
        // SAFETY: the buffers have the sizes for these classes, do not overlap, and live as long as the allocator.
        let outcome = unsafe { (functions.init)(state, count, ALL_FREE, buffers, &raw const classes) };
        if outcome.error != OK {
            return Err(format!("it refuses {frames} frames with error {}", outcome.error));
        }
        // SAFETY: the allocator is initialized.
        let stats = unsafe { (functions.stats)(state) };
        TREE_FRAMES.store(tree_frames(count, stats)?, Ordering::Relaxed); // relaxed: a constant of the library
        Ok(Self { functions, state, slots: slots as u64, _memory: memory })
    }
}

fn classes(slots: usize) -> Classes {
    let mut classes = [ClassSlots { class: 0, count: 0 }; CLASSES_MAX];
    classes[0] = ClassSlots { class: SMALL, count: slots };
    classes[1] = ClassSlots { class: HUGE, count: slots };
    Classes { classes, count: 2, default: HUGE, policy }
}

/// Returns the offsets of the allocator and its three buffers, and the end of the last one.
fn place(sizes: Sizes) -> Option<[usize; 5]> {
    let mut offsets = [0; 5];
    for (at, size) in [sizes.allocator, sizes.local, sizes.trees, sizes.lower].into_iter().enumerate() {
        offsets[at + 1] =
            usize::checked_add(offsets[at], size.max(1))?.checked_next_multiple_of(ALIGNMENT)?;
    }
    (offsets[4] <= isize::MAX as usize).then_some(offsets)
}

/// Returns the frames of a tree, or an error if the library's count of an empty pool shows that it has another interface.
fn tree_frames(frames: usize, stats: Stats) -> Result<usize, Reason> {
    if stats.frames != frames || stats.trees == 0 || stats.trees > frames {
        return Err(format!("it counts {stats:?} in a pool of {frames} free frames; is it another version?"));
    }
    Ok(frames / stats.trees)
}

/// One thread's interface.
struct Source<'a> {
    all: &'a Llfree,
    /// The area of the thread that created this.
    area: Option<NonNull<Area>>,
}

impl Source<'_> {
    #[inline]
    fn request(&self, order: Order) -> Request {
        let cpu = self.area.map_or_else(rustix::thread::sched_getcpu, |area| area::cpu_of(area) as usize);
        let order = order.get();
        let class = if order < HUGE_ORDER { SMALL } else { HUGE };
        Request { order, class, local: Optional::some(cpu as u64 % self.all.slots) }
    }
}

impl PageSource for Source<'_> {
    type Page = Pfn;

    #[inline]
    fn alloc(&mut self, order: Order) -> Option<Pfn> {
        let request = self.request(order);
        // SAFETY: the allocator is initialized.
        let outcome = unsafe { (self.all.functions.get)(self.all.state, Optional::NONE, request) };
        (outcome.error == OK).then(|| Pfn::new(outcome.frame))
    }

    #[inline]
    fn free(&mut self, page: Pfn, order: Order) {
        let request = self.request(order);
        // SAFETY: the allocator is initialized.
        let outcome = unsafe { (self.all.functions.put)(self.all.state, page.get(), request) };
        assert!(outcome.error == OK, "LLFree refuses frame {page} with error {}", outcome.error);
    }
}

impl Contender for Llfree {
    type Source<'a> = Source<'a>;

    fn source(&self) -> Source<'_> {
        Source { all: self, area: area::of_this_thread().ok() }
    }
}

/// Returns the entry of LLFree, from a shared library with its C interface. The version is the name of the file.
///
/// # Errors
/// Returns an error if `path` is not such a library.
///
/// # Safety
/// The library's functions must have the interface in LLFree's header `llfree.h`, as of its commit 970bb3d (2026).
pub unsafe fn llfree(path: &Path) -> Result<Entry, LlfreeError> {
    // SAFETY: the caller guarantees the interface.
    let functions = Arc::new(unsafe { Functions::load(path) }?);
    let version = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    Ok(Entry::new(NAME, version, move |frames| Llfree::new(Arc::clone(&functions), frames)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_tree_is_neither_nearly_full_nor_half_empty() {
        TREE_FRAMES.store(4096, Ordering::Relaxed); // relaxed: one thread
        let priority = |free| policy(SMALL, SMALL, free).priority;
        assert_eq!([4096, 2048, 2047, 64, 63, 0].map(priority), [1, 1, 255, 255, 0, 0]);
        let kinds = [(SMALL, SMALL), (HUGE, SMALL), (SMALL, HUGE)].map(|(a, b)| policy(a, b, 100).kind);
        assert_eq!(kinds, [MATCH, STEAL, DEMOTE]);
    }

    #[test]
    fn buffers_are_aligned_and_apart() {
        let sizes = Sizes { allocator: 64, local: 0, trees: 4097, lower: 8192 };
        assert_eq!(place(sizes), Some([0, 4096, 8192, 16384, 24576]));
        assert_eq!(place(Sizes { lower: usize::MAX, ..sizes }), None);
        assert_eq!(place(Sizes { trees: isize::MAX as usize, ..sizes }), None);
    }

    #[test]
    fn counts_of_another_interface_are_refused() {
        let counts = |frames, trees| tree_frames(1 << 20, Stats { frames, huge: 0, trees });
        assert_eq!(counts(1 << 20, 256), Ok(4096));
        let why = counts(7, 256).unwrap_err();
        assert!(why.ends_with("in a pool of 1048576 free frames; is it another version?"), "{why}");
        assert!(counts(1 << 20, 0).is_err() && counts(1 << 20, 1 << 21).is_err());
    }
}

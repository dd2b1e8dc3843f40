//! The platform of a model, over the cells and locks of its checker.
//!
//! Related files: `cells.rs` has the cells, `ways.rs` the ways to access pagesets.

use std::mem::MaybeUninit;

use zonal::platform::ZeroedCells;
use zonal::platform::reclaimer::{ReclaimRequest, Reclaimer};
use zonal::units::{CpuId, Moment, NodeId, PageCount};

use crate::interleavings::cells::{Handle, LockHandle};
use crate::interleavings::checker::Checker;
use crate::interleavings::ways::Way;

/// The scenario's part of the platform: the functions that the allocator requires of its embedder.
pub(crate) trait Host: Send + Sync {
    /// Handles a wake-up of background reclaim for `node`.
    fn wake(&self, _node: NodeId) {}

    /// Returns the number of frames that could be freed.
    fn count(&self, _request: &ReclaimRequest) -> PageCount {
        PageCount::ZERO
    }

    /// Frees frames, and returns their number.
    fn reclaim(&self, _request: &ReclaimRequest) -> PageCount {
        PageCount::ZERO
    }
}

/// An embedder that reclaims nothing.
pub(crate) struct NoReclaimer;

impl Host for NoReclaimer {}

/// A part of a buffer, with the alignment of the largest cells.
#[repr(align(256))]
struct Part(#[allow(dead_code, reason = "only its address is used")] [u8; PART_BYTES]);

/// Bytes of a part.
const PART_BYTES: usize = 256;

/// Zeroed buffers, which are freed with this value.
#[derive(Default)]
pub(crate) struct Buffers(Vec<*mut [Part]>);

impl Buffers {
    /// Returns a buffer that lasts as long as this value, and the index of its first cell: `first` if it stands for the cells of
    /// another buffer.
    pub(crate) fn add<C: Checker>(
        &mut self,
        bytes: usize,
        first: Option<usize>,
    ) -> (&'static mut [MaybeUninit<u8>], usize) {
        let parts = (0..bytes.div_ceil(PART_BYTES)).map(|_| Part([0; PART_BYTES]));
        let parts = Box::into_raw(parts.collect::<Box<[_]>>());
        self.0.push(parts);
        // SAFETY: the box has at least so many bytes, and nothing else uses them while there is an allocator.
        let bytes = unsafe { std::slice::from_raw_parts_mut(parts.cast(), bytes) };
        let first = C::table(|table| table.add_zeroed(bytes, first));
        (bytes, first)
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        for &parts in &self.0 {
            // SAFETY: it was made from a box, and the allocator that borrowed it has been dropped. Its cells are plain numbers.
            drop(unsafe { Box::from_raw(parts) });
        }
    }
}

/// The platform of a model.
pub(crate) struct Model<C: Checker> {
    host: Shrinker,
    way: Way<C>,
    /// Number of the process, if processes share the allocator, or 0.
    process: u8,
}

struct Shrinker(Box<dyn Host>);

impl Reclaimer for Shrinker {
    fn count(&self, request: &ReclaimRequest) -> PageCount {
        self.0.count(request)
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        self.0.reclaim(request)
    }
}

impl<C: Checker> Model<C> {
    /// Creates the platform of a model with the embedder `host`, whose CPUs access their pagesets in this `way`.
    pub(crate) fn new(host: Box<dyn Host>, way: Way<C>) -> Self {
        Self { host: Shrinker(host), way, process: 0 }
    }

    /// Makes this the platform of one of the processes that share an allocator.
    pub(crate) fn of_process(self, process: u8) -> Self {
        Self { process, ..self }
    }
}

impl<C: Checker> zonal::Platform for Model<C> {
    type U8 = Handle<C, u8>;
    type U32 = Handle<C, u32>;
    type U64 = Handle<C, u64>;
    type Lock = LockHandle<C>;
    type CpuLocal = Way<C>;

    // SAFETY: a cell or lock of zero bytes is in a zeroed buffer, where its address stands for a cell of the table that is 0 at
    // first. Handles are plain numbers.
    const ZEROED_CELLS: Option<ZeroedCells<Self>> = Some(unsafe { ZeroedCells::promise() });

    fn process(&self) -> u8 {
        self.process
    }

    fn current_cpu(&self) -> CpuId {
        CpuId::new(C::cpu())
    }

    fn cpu_local(&self) -> &Way<C> {
        &self.way
    }

    fn now(&self) -> Moment {
        Moment::from_ns(C::table(|table| table.now_ns.get()))
    }

    fn relax(&self, _round: u32) {
        C::relax();
    }

    fn is_reclaiming(&self) -> bool {
        C::is_reclaiming()
    }

    fn is_reentered(&self) -> bool {
        C::is_reentered()
    }

    fn begin_reclaiming(&self) {
        C::set_reclaiming(true);
    }

    fn end_reclaiming(&self) {
        C::set_reclaiming(false);
    }

    fn wake_background_reclaim(&self, node: NodeId) {
        self.host.0.wake(node);
    }

    fn reclaimer(&self) -> &dyn Reclaimer {
        &self.host
    }
}

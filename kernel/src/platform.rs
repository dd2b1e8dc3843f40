//! The platform of this kernel: what the allocator needs from its embedder.
//!
//! Every call of the allocator runs with interrupts off, through [`pinned`]. The timer therefore never preempts a task
//! within the allocator, and an interrupt handler that allocates never interrupts an allocation. This is what
//! [`Pinned`] requires.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use spin::Once;
use x86_64::instructions::interrupts::without_interrupts;
use zonal::layout::{BufferRequest, Place};
use zonal::machine::FrameRange;
use zonal::platform::FrameContents;
use zonal::platform::cpu_local::Pinned;
use zonal::platform::pressure::{PressureEvent, PressureKind};
use zonal::platform::reclaimer::Reclaimer;
use zonal::units::{CpuId, Moment, NodeId, PageCount, Pfn};
use zonal::{Allocator, Config, Layout, Platform};

use crate::cpu;
use crate::firmware::{FRAME_BYTES, Firmware};
use crate::memory_map::BootMemory;
use crate::page_cache::CACHE;
use crate::smp::{Requests, wait_a_little};
use crate::sync::Lock;

/// Time between two ticks of the clock, in milliseconds.
pub(crate) const TICK_MS: u32 = 4;

static ALLOCATOR: Once<Allocator<'static, Kernel>> = Once::new();

/// The environment of the allocator.
pub(crate) struct Kernel {
    ticks: AtomicU64,
    access: Pinned<Requests>,
    /// Nodes whose background worker should run, one bit each.
    to_reclaim: AtomicU64,
    /// Number of memory pressure events, by kind.
    pressure: [AtomicU64; 4],
}

/// Runs `work` with interrupts off and the allocator. All calls of the allocator are in such code.
pub(crate) fn pinned<R>(work: impl FnOnce(&'static Allocator<'static, Kernel>) -> R) -> R {
    let allocator = ALLOCATOR.get().expect("the allocator starts before all tasks");
    without_interrupts(|| work(allocator))
}

/// Creates the allocator over all memory that is not in use. The metadata of each node is on that node, if it has enough
/// memory.
pub(crate) fn start_allocator(firmware: &Firmware, memory: &mut BootMemory) {
    let config = Config::default();
    // The metadata is measured with all memory. What it takes is then missing from the description, so that the
    // metadata of the final description needs no more.
    let mut buffers = arrayvec::ArrayVec::<_, { 2 + crate::firmware::NODES_MAX }>::new();
    memory.describe(firmware, |machine| {
        let layout = Layout::new(machine, &config).expect("the default configuration is valid");
        buffers.extend(layout.requests::<Kernel>());
    });
    let node_of = |request: &BufferRequest| match request.place {
        Place::Node(node) => node,
        Place::Shared | Place::Local => firmware.processors[0].node,
    };
    let buffers = buffers.iter().map(|request| memory.take(node_of(request), request.bytes));
    let mut buffers: arrayvec::ArrayVec<_, { 2 + crate::firmware::NODES_MAX }> = buffers.collect();
    let mut buffers = buffers.drain(..);
    ALLOCATOR.call_once(|| {
        memory.describe(firmware, |machine| {
            let supply = |request: BufferRequest| {
                let buffer = buffers.next()??;
                Some(zonal::Buffer::uninit(buffer.get_mut(..request.bytes)?))
            };
            Allocator::new(Kernel::new(), machine, &config, supply).expect("the allocator starts")
        })
    });
    // Only the first CPU runs yet.
    for cpu in 1..firmware.processors.len() {
        pinned(|allocator| allocator.offline_cpu(CpuId::new(cpu as u32))).expect("the CPU is online");
    }
}

impl Kernel {
    /// Creates the environment of a new allocator.
    pub(crate) fn new() -> Self {
        Self {
            ticks: AtomicU64::new(0),
            access: Pinned(Requests),
            to_reclaim: AtomicU64::new(0),
            pressure: [const { AtomicU64::new(0) }; 4],
        }
    }

    /// Advances the clock. The timer of the first CPU calls this.
    pub(crate) fn advance(&self) {
        self.ticks.fetch_add(1, Relaxed); // relaxed: no other data depends on the clock
    }

    /// Returns the time since the first tick, in milliseconds.
    pub(crate) fn now_ms(&self) -> u64 {
        self.ticks.load(Relaxed) * u64::from(TICK_MS) // relaxed: as in `advance`
    }

    /// Returns the nodes whose background worker was woken, one bit each, and forgets them.
    pub(crate) fn take_nodes_to_reclaim(&self) -> u64 {
        // Acquire: takes the writes of the callers; pairs with `Kernel::wake_background_reclaim`.
        self.to_reclaim.swap(0, Acquire)
    }

    /// Returns how many events of memory pressure there were: below low, above high, stalling, failing.
    pub(crate) fn pressure_events(&self) -> [u64; 4] {
        self.pressure.each_ref().map(|count| count.load(Relaxed)) // relaxed: a statistic
    }
}

impl Platform for Kernel {
    type U8 = AtomicU8;
    type U32 = AtomicU32;
    type U64 = AtomicU64;
    type Lock = Lock;
    type CpuLocal = Pinned<Requests>;

    fn current_cpu(&self) -> CpuId {
        cpu::current_id()
    }

    fn cpu_local(&self) -> &Pinned<Requests> {
        &self.access
    }

    fn now(&self) -> Moment {
        Moment::from_ns(self.now_ms() * 1_000_000)
    }

    fn relax(&self, _round: u32) {
        wait_a_little();
    }

    fn is_reclaiming(&self) -> bool {
        cpu::current().is_reclaiming.load(Relaxed) // relaxed: only this CPU accesses it
    }

    fn begin_reclaiming(&self) {
        cpu::current().is_reclaiming.store(true, Relaxed); // relaxed: as above
    }

    fn end_reclaiming(&self) {
        cpu::current().is_reclaiming.store(false, Relaxed); // relaxed: as above
    }

    fn wake_background_reclaim(&self, node: NodeId) {
        // Release: publishes the caller's writes; pairs with `Kernel::take_nodes_to_reclaim`.
        self.to_reclaim.fetch_or(1 << node.index(), Release);
    }

    fn pressure(&self, event: &PressureEvent) {
        let place = match event.kind {
            PressureKind::BelowLow => 0,
            PressureKind::AboveHigh => 1,
            PressureKind::Stalling => 2,
            _ => 3,
        };
        self.pressure[place].fetch_add(1, Relaxed); // relaxed: a statistic
    }

    fn reclaimer(&self) -> &dyn Reclaimer {
        &CACHE
    }

    fn contents(&self) -> Option<&dyn FrameContents> {
        Some(&Identity)
    }
}

/// Whether frames, which the caller has, contain only zeros.
pub(crate) fn is_zero(range: FrameRange) -> bool {
    Identity.holds(range.start, range.count, 0)
}

/// The contents of frames. Physical memory is mapped to the same virtual addresses.
struct Identity;

impl Identity {
    fn words(first: Pfn, count: PageCount) -> impl Iterator<Item = *mut u64> {
        let words = count.get() * FRAME_BYTES / 8;
        (0..words).map(move |word| (first.get() * FRAME_BYTES + word * 8) as *mut u64)
    }
}

impl FrameContents for Identity {
    fn fill(&self, first: Pfn, count: PageCount, pattern: u64) {
        // SAFETY: the allocator passes frames that are free or about to be allocated, so no other code uses them.
        Self::words(first, count).for_each(|word| unsafe { word.write(pattern) });
    }

    fn holds(&self, first: Pfn, count: PageCount, pattern: u64) -> bool {
        // SAFETY: as above.
        Self::words(first, count).all(|word| unsafe { word.read() } == pattern)
    }
}

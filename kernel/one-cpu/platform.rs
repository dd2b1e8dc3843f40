//! The platform of this kernel: what the allocator needs from its embedder.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, compiler_fence};

use arrayvec::ArrayVec;
use spin::Once;
use zonal::layout::{BufferRequest, Place};
use zonal::platform::RawLock;
use zonal::platform::cpu_local::TryLock;
use zonal::units::{CpuId, Moment};
use zonal::{Allocator, Buffer, Config, Layout, Platform};

use crate::firmware::{Firmware, NODES_MAX};
use crate::memory_map::BootMemory;

/// Time between two ticks of the clock, in milliseconds.
pub(crate) const TICK_MS: u32 = 1;

static ALLOCATOR: Once<Allocator<'static, Kernel>> = Once::new();

/// Number of locks that are held or are about to be. Handlers leave it as they find it.
static HELD: AtomicU32 = AtomicU32::new(0);

/// The lock of the allocator, which the code of one CPU takes and its handlers never wait for.
pub(crate) struct Lock(AtomicBool);

// All accesses are relaxed, because there is one CPU. The compiler must keep their order, which handlers observe.
impl RawLock for Lock {
    fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    fn lock(&self) {
        assert!(self.try_lock(), "a handler waits for the code that it interrupted");
    }

    fn try_lock(&self) -> bool {
        HELD.store(HELD.load(Relaxed) + 1, Relaxed);
        compiler_fence(SeqCst); // SeqCst: orders the count before the lock; pairs with this CPU's handlers.
        let is_taken = !self.0.swap(true, Relaxed);
        if !is_taken {
            HELD.store(HELD.load(Relaxed) - 1, Relaxed);
        }
        compiler_fence(SeqCst); // SeqCst: orders the lock before its section; pairs with this CPU's handlers.
        is_taken
    }

    fn unlock(&self) {
        compiler_fence(SeqCst); // SeqCst: orders the section before the unlock; pairs with this CPU's handlers.
        self.0.store(false, Relaxed);
        compiler_fence(SeqCst); // SeqCst: orders the unlock before the count; pairs with this CPU's handlers.
        HELD.store(HELD.load(Relaxed) - 1, Relaxed);
    }
}

/// The environment of the allocator.
pub(crate) struct Kernel {
    ticks: AtomicU64,
}

impl Kernel {
    /// Advances the clock. The timer calls this.
    pub(crate) fn advance(&self) {
        self.ticks.store(self.ticks.load(Relaxed) + 1, Relaxed);
    }
}

impl Platform for Kernel {
    type U8 = AtomicU8;
    type U32 = AtomicU32;
    type U64 = AtomicU64;
    type Lock = Lock;
    type CpuLocal = TryLock;

    fn current_cpu(&self) -> CpuId {
        CpuId::new(0)
    }

    fn cpu_local(&self) -> &TryLock {
        &TryLock
    }

    fn now(&self) -> Moment {
        Moment::from_ns(self.ticks.load(Relaxed) * u64::from(TICK_MS) * 1_000_000)
    }

    fn is_reentered(&self) -> bool {
        HELD.load(Relaxed) != 0
    }
}

/// Calls `work` with the allocator. Interrupts stay on.
pub(crate) fn with_allocator<R>(work: impl FnOnce(&'static Allocator<'static, Kernel>) -> R) -> R {
    work(ALLOCATOR.get().expect("the allocator has started"))
}
pub(crate) use with_allocator as pinned; // the name in `smp.rs`

/// Creates the allocator over all memory that is not in use.
pub(crate) fn start_allocator(firmware: &Firmware, memory: &mut BootMemory) {
    let config = Config::default();
    let mut needed = ArrayVec::<BufferRequest, { 2 + NODES_MAX }>::new();
    memory.describe(firmware, |machine| {
        let layout = Layout::new(machine, &config).expect("the default configuration is valid");
        needed.extend(layout.requests::<Kernel>());
    });
    let buffers = needed.into_iter().map(|request| match request.place {
        Place::Node(node) => memory.take(node, request.bytes),
        Place::Shared | Place::Local => memory.take(firmware.processors[0].node, request.bytes),
    });
    let mut buffers: ArrayVec<_, { 2 + NODES_MAX }> = buffers.collect();
    let mut buffers = buffers.drain(..);
    ALLOCATOR.call_once(|| {
        memory.describe(firmware, |machine| {
            let supply = |request: BufferRequest| {
                let buffer = buffers.next()??;
                Some(Buffer::uninit(buffer.get_mut(..request.bytes)?))
            };
            let kernel = Kernel { ticks: AtomicU64::new(0) };
            Allocator::new(kernel, machine, &config, supply).expect("the allocator starts")
        })
    });
}

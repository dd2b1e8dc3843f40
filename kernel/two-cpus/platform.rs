//! The platform of this kernel: what the allocator needs from its embedder, and how the allocator is created.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use arrayvec::ArrayVec;
use spin::Once;
use x86_64::instructions::interrupts::without_interrupts;
use zonal::layout::{BufferRequest, Place};
use zonal::platform::cpu_local::Pinned;
use zonal::units::{CpuId, Moment};
use zonal::{Allocator, Buffer, Config, Layout, Platform};

use crate::cpu;
use crate::firmware::{Firmware, NODES_MAX};
use crate::memory_map::BootMemory;
use crate::smp::{Requests, wait_a_little};
use crate::sync::Lock;

/// Time between two ticks of the clock, in milliseconds.
pub(crate) const TICK_MS: u32 = 4;

static ALLOCATOR: Once<Allocator<'static, Kernel>> = Once::new();

pub(crate) struct Kernel {
    ticks: AtomicU64,
    access: Pinned<Requests>,
}

impl Kernel {
    /// Advances the clock; the first CPU's timer calls this.
    pub(crate) fn advance(&self) {
        self.ticks.fetch_add(1, Relaxed);
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
        Moment::from_ns(self.ticks.load(Relaxed) * u64::from(TICK_MS) * 1_000_000)
    }

    fn relax(&self, _round: u32) {
        wait_a_little();
    }
}

/// Runs `work` with interrupts off.
pub(crate) fn pinned<R>(work: impl FnOnce(&'static Allocator<'static, Kernel>) -> R) -> R {
    let allocator = ALLOCATOR.get().expect("the allocator has started");
    without_interrupts(|| work(allocator))
}

/// Creates the allocator over all free memory.
pub(crate) fn start_allocator(firmware: &Firmware, memory: &mut BootMemory) {
    let config = Config::default();
    // 1. How much metadata is needed, and where?
    let mut needed = ArrayVec::<BufferRequest, { 2 + NODES_MAX }>::new();
    memory.describe(firmware, |machine| {
        let layout = Layout::new(machine, &config).expect("the default configuration is valid");
        needed.extend(layout.requests::<Kernel>());
    });
    // 2. Take it, each node's from the node itself.
    let buffers = needed.into_iter().map(|request| match request.place {
        Place::Node(node) => memory.take(node, request.bytes),
        Place::Shared | Place::Local => memory.take(firmware.processors[0].node, request.bytes),
    });
    let mut buffers: ArrayVec<_, { 2 + NODES_MAX }> = buffers.collect();
    let mut buffers = buffers.drain(..);
    // 3. Describe what is left, which needs no more metadata, and create the allocator.
    ALLOCATOR.call_once(|| {
        memory.describe(firmware, |machine| {
            let kernel = Kernel { ticks: AtomicU64::new(0), access: Pinned(Requests) };
            let supply = |request: BufferRequest| {
                let buffer = buffers.next()??;
                Some(Buffer::uninit(buffer.get_mut(..request.bytes)?))
            };
            Allocator::new(kernel, machine, &config, supply).expect("the allocator starts")
        })
    });
    // 4. Only the first CPU runs yet; `smp.rs` brings the others online.
    for cpu in 1..firmware.processors.len() {
        pinned(|allocator| allocator.offline_cpu(CpuId::new(cpu as u32))).expect("the CPU is online");
    }
}

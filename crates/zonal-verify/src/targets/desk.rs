//! The world of an allocator that one thread plays with: a CPU, a clock and a reclaimer it steers.
//!
//! Nobody else is there, so a lock that is waited for is never freed: that is a finding. Metadata
//! lies in garbage, so that all that is relied on must have been written. Neighbours: `operations.rs`,
//! `machine_file.rs`.

use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};

use zonal::cpu_local::TryLock;
use zonal::error::ConfigError;
use zonal::platform::RawLock;
use zonal::reclaim::Reclaimer;
use zonal::units::{CpuId, Moment, NodeId};
use zonal::{Allocator, Buffer, Config, Layout, Machine, Platform};

// All accesses here are relaxed: there is one thread.

/// A lock that nobody ever waits for.
pub(super) struct OneThreadLock(AtomicBool);

impl RawLock for OneThreadLock {
    fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    fn lock(&self) {
        assert!(self.try_lock(), "a lock is waited for that this thread holds");
    }

    fn try_lock(&self) -> bool {
        !self.0.swap(true, Relaxed)
    }

    fn unlock(&self) {
        assert!(self.0.swap(false, Relaxed), "a lock was freed that nobody held");
    }
}

/// What the one thread steers.
pub(super) struct Desk<R> {
    cpu: AtomicU32,
    clock_ns: AtomicU64,
    reclaiming: AtomicBool,
    pub(super) reclaimer: R,
}

impl<R> Desk<R> {
    pub(super) fn new(reclaimer: R) -> Self {
        let clock_ns = AtomicU64::new(1_000_000_000);
        Self { cpu: AtomicU32::new(0), clock_ns, reclaiming: AtomicBool::new(false), reclaimer }
    }

    pub(super) fn run_on(&self, cpu: u32) {
        self.cpu.store(cpu, Relaxed);
    }

    pub(super) fn advance_ms(&self, ms: u64) {
        self.clock_ns.fetch_add(ms * 1_000_000, Relaxed);
    }

    /// Sets the clock, backwards too.
    pub(super) fn set_ms(&self, ms: u64) {
        self.clock_ns.store(ms * 1_000_000, Relaxed);
    }
}

impl<R: Reclaimer + Send> Platform for Desk<R> {
    type U8 = AtomicU8;
    type U32 = AtomicU32;
    type U64 = AtomicU64;
    type Lock = OneThreadLock;
    type CpuLocal = TryLock;

    fn current_cpu(&self) -> CpuId {
        CpuId::new(self.cpu.load(Relaxed))
    }

    fn cpu_local(&self) -> &TryLock {
        &TryLock
    }

    fn now(&self) -> Moment {
        Moment::from_ns(self.clock_ns.load(Relaxed))
    }

    fn is_reclaiming(&self) -> bool {
        self.reclaiming.load(Relaxed)
    }

    fn set_reclaiming(&self, reclaiming: bool) {
        self.reclaiming.store(reclaiming, Relaxed);
    }

    fn wake_background_reclaim(&self, node: NodeId) {
        assert!(node.index() < 64, "node {node} is none of a small machine");
    }

    fn reclaimer(&self) -> &dyn Reclaimer {
        &self.reclaimer
    }
}

/// Memory for the metadata of an allocator.
#[derive(Default)]
pub(super) struct Metadata(Vec<Vec<MaybeUninit<u8>>>);

impl Metadata {
    /// An allocator over `machine` in this memory.
    pub(super) fn build<'m, P: Platform>(
        &'m mut self,
        platform: P,
        machine: &Machine<'_>,
        config: &Config,
    ) -> Result<Allocator<'m, P>, ConfigError> {
        let layout = Layout::new(machine, config)?;
        self.0 = layout.requests::<P>().map(|request| vec![MaybeUninit::new(0xa5); request.bytes]).collect();
        let mut buffers = self.0.iter_mut();
        Allocator::new(platform, machine, config, |_| buffers.next().map(|buffer| Buffer::uninit(buffer)))
    }
}

//! Emulated machines that run natively: the released allocator, running on the cores of this machine.
//!
//! Nodes, CPUs and frames are only described; there is no memory behind the frames. A thread sets the CPU that it
//! acts as, so one thread can act as many CPUs, in a fixed order. The measurement itself advances the clock. Every
//! lock counts how often it is acquired. Related files: `mechanisms/m1.rs` to `mechanisms/m6.rs` use these machines.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use zonal::layout::Layout;
use zonal::platform::cpu_local::{CpuLocal, OneCpu, Pinned, TryLock};
use zonal::platform::reclaimer::{NoReclaimer, Reclaimer};
use zonal::platform::{RawLock, SpinLock};
use zonal::units::{CpuId, Moment, NodeId, PageCount, Pfn, ZoneKind};
use zonal::{Allocator, Buffer, Config, Platform};
use zonal_machine::{MachineModel, NodeModel, OwnedMachine, Presence, Settings, ZoneModel};
use zonal_workload::cpu_time;

/// Nanoseconds per second.
pub(super) const SECOND_NS: u64 = 1_000_000_000;
/// Number of attempts after which a thread that spins on a lock yields its core, because the holder may be preempted.
const SPINS: u32 = 200;
/// Alignment of each node's memory in frames: several times the size of the largest block.
const ALIGN: u64 = 1 << 12;

thread_local! {
    static CPU: Cell<u32> = const { Cell::new(0) };
    static LOCKED: Cell<u64> = const { Cell::new(0) };
    static RECLAIMING: Cell<bool> = const { Cell::new(false) };
}

/// Sets the CPU that the calling thread acts as, on every emulated machine.
pub(super) fn run_on(cpu: u32) {
    CPU.set(cpu);
}

/// Returns the number of lock acquisitions by the calling thread.
pub(super) fn locks_acquired() -> u64 {
    LOCKED.get()
}

/// Returns the CPU time that the calling thread has used, in nanoseconds.
pub(super) fn cpu_time_ns() -> u64 {
    cpu_time::of_this_thread().as_nanos() as u64
}

/// A spin lock. The thread that acquires it counts the acquisition.
pub(super) struct CountedLock(SpinLock);

impl RawLock for CountedLock {
    fn new() -> Self {
        Self(SpinLock::new())
    }

    fn lock(&self) {
        let mut tries = 0_u32;
        while !self.try_lock() {
            tries += 1;
            if tries.is_multiple_of(SPINS) {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }

    fn try_lock(&self) -> bool {
        let locked = self.0.try_lock();
        LOCKED.set(LOCKED.get() + u64::from(locked));
        locked
    }

    fn unlock(&self) {
        self.0.unlock();
    }
}

/// The way in which the CPUs of an emulated machine access their pagesets.
pub(super) trait Access: Send + Sync + Sized + 'static {
    /// The core's implementation of the access.
    type Local: CpuLocal<Native<Self>>;
    /// The only value of this type.
    const LOCAL: Self::Local;
}

/// Access by one thread on a machine with one CPU, with plain loads and stores.
pub(super) struct Single;

impl Access for Single {
    type Local = Pinned;
    const LOCAL: Pinned = Pinned(OneCpu);
}

/// Access by any number of threads and CPUs, with one atomic exchange per operation.
pub(super) struct Shared;

impl Access for Shared {
    type Local = TryLock;
    const LOCAL: TryLock = TryLock;
}

/// The platform: native atomics, and state that a measurement controls.
pub(super) struct Native<A: Access> {
    local: A::Local,
    now_ns: AtomicU64,
    reclaimer: OnceLock<&'static dyn Reclaimer>,
}

impl<A: Access> Native<A> {
    fn new() -> Self {
        // Full bits are cleared once per second, counted from time 0. The clock starts at ten seconds, so that the
        // first scan clears them.
        let now_ns = AtomicU64::new(10 * SECOND_NS);
        Self { local: A::LOCAL, now_ns, reclaimer: OnceLock::new() }
    }

    /// Sets the reclaimer. It may be called only once.
    pub(super) fn set_reclaimer(&self, reclaimer: &'static dyn Reclaimer) {
        assert!(self.reclaimer.set(reclaimer).is_ok(), "an emulated machine has one reclaimer");
    }

    /// Advances the clock.
    pub(super) fn advance_ns(&self, ns: u64) {
        self.now_ns.fetch_add(ns, Ordering::Relaxed); // relaxed: only the measurement advances the clock
    }
}

impl<A: Access> Platform for Native<A> {
    type U8 = AtomicU8;
    type U32 = AtomicU32;
    type U64 = AtomicU64;
    type Lock = CountedLock;
    type CpuLocal = A::Local;

    #[inline]
    fn current_cpu(&self) -> CpuId {
        CpuId::new(CPU.get())
    }

    #[inline]
    fn cpu_local(&self) -> &A::Local {
        &self.local
    }

    #[inline]
    fn now(&self) -> Moment {
        Moment::from_ns(self.now_ns.load(Ordering::Relaxed)) // relaxed: only the measurement advances the clock
    }

    fn is_reclaiming(&self) -> bool {
        RECLAIMING.get()
    }

    fn begin_reclaiming(&self) {
        RECLAIMING.set(true);
    }

    fn end_reclaiming(&self) {
        RECLAIMING.set(false);
    }

    fn reclaimer(&self) -> &dyn Reclaimer {
        self.reclaimer.get().map_or(&NoReclaimer, |reclaimer| *reclaimer)
    }
}

/// An allocator over an emulated machine.
pub(super) type World<'m, A> = Allocator<'m, Native<A>>;

/// A node of an emulated machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    /// Number of the node's CPUs. CPU ids continue from node to node.
    pub(super) cpus: u32,
    /// Number of the node's frames, all of which are managed.
    pub(super) frames: u64,
}

/// Returns a machine with 4 KiB pages and one zone on each of `nodes`.
pub(super) fn machine(nodes: &[Node], distance: impl Fn(usize, usize) -> u8) -> MachineModel {
    let (mut cpu, mut frame) = (0, ALIGN);
    let (mut models, mut zones) = (Vec::new(), Vec::new());
    for (at, node) in nodes.iter().enumerate() {
        let id = NodeId::new(at as u16).expect("an emulated machine has at most 1024 nodes");
        models.push(NodeModel {
            id,
            presence: Presence::Online,
            cpus: (cpu..cpu + node.cpus).map(CpuId::new).collect(),
            distances: (0..nodes.len()).map(|to| if to == at { 10 } else { distance(at, to) }).collect(),
        });
        let frames = PageCount::new(node.frames);
        zones.push(ZoneModel {
            node: id,
            kind: ZoneKind::Normal,
            start: Pfn::new(frame),
            spanned: frames,
            present: frames,
            managed: frames,
        });
        cpu += node.cpus;
        frame += node.frames.next_multiple_of(ALIGN);
    }
    MachineModel {
        name: "emulated".to_owned(),
        page_bytes: 1 << crate::PAGE_SHIFT,
        nodes: models,
        zones,
        settings: Settings::default(),
        observed: None,
    }
}

/// Memory for the metadata of one emulated machine.
type Metadata = Vec<Box<[MaybeUninit<u8>]>>;

/// Calls `work` with one allocator for each of `configs`, all on the machine `model`.
///
/// # Panics
/// Panics if a configuration does not suit the machine.
pub(super) fn with_worlds<A: Access, R>(
    model: &MachineModel,
    configs: &[Config],
    work: impl FnOnce(&[World<'_, A>]) -> R,
) -> R {
    let owned = OwnedMachine::from(model);
    let mut metadata: Vec<_> = configs.iter().map(|config| metadata_of::<A>(&owned, config)).collect();
    let worlds = configs.iter().zip(&mut metadata).map(|(config, metadata)| start(&owned, config, metadata));
    work(&worlds.collect::<Vec<_>>())
}

/// Creates an allocator for `model` that lives as long as the process, so that its reclaimer can refer to it.
pub(super) fn lasting_world<A: Access>(model: &MachineModel, config: &Config) -> &'static World<'static, A> {
    let owned = OwnedMachine::from(model);
    let metadata = Box::leak(Box::new(metadata_of::<A>(&owned, config)));
    Box::leak(Box::new(start(&owned, config, metadata)))
}

fn metadata_of<A: Access>(owned: &OwnedMachine, config: &Config) -> Metadata {
    let sizes = owned.with(|machine| {
        let layout = Layout::new(machine, config).expect("the configuration fits");
        layout.requests::<Native<A>>().map(|request| request.bytes).collect::<Vec<_>>()
    });
    let sizes = sizes.expect("an emulated machine is valid");
    sizes.into_iter().map(Box::new_uninit_slice).collect()
}

fn start<'m, A: Access>(owned: &OwnedMachine, config: &Config, metadata: &'m mut Metadata) -> World<'m, A> {
    let mut buffers = metadata.iter_mut();
    let next = move |_| buffers.next().map(|bytes| Buffer::uninit(bytes));
    let world = owned.with(move |machine| Allocator::new(Native::new(), machine, config, next));
    world.expect("an emulated machine is valid").expect("the configuration fits")
}

//! The platform of a pool: the implementation, for a Linux process, of the services that the allocator requires.
//!
//! The clock is an atomic integer that a thread of the pool updates, so reading the clock is one load.
//!
//! Related files: `threads`, `sequences`, `memory/zones.rs`, `pool/cpu_map.rs` and `pool/reclaimers.rs` implement parts
//! of the platform. `pool/workers.rs` updates the clock and runs background reclaim when a node needs it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use zonal::platform::pressure::PressureEvent;
use zonal::platform::reclaimer::Reclaimer;
use zonal::platform::recorder::Recorder;
use zonal::platform::tracepoint::Tracepoint;
use zonal::platform::whole_words::{Direction, WORD_FRAMES};
use zonal::platform::{FrameContents, Platform, ZeroedCells};
use zonal::units::{CpuId, Moment, NodeId};

use super::cpu_map::CpuMap;
use super::emit::PendingChanges;
use super::entered::Entered;
use super::key::PoolKey;
use super::listeners::Listeners;
use super::probes;
use super::recent::RecentRequests;
use super::reclaimers::{self, Reclaimers};
use crate::memory::zones::PoolMemory;
use crate::sequences::Sequences;
use crate::threads::lock::{SleepingLock, nap};
use crate::threads::presence::Presence;
use crate::threads::reentrancy::{self, Inside};
use crate::threads::wake::WakeBoard;
use crate::whole_words;

/// Period at which the clock is updated. The allocator requires 10 ms or less.
pub(super) const CLOCK_PERIOD: Duration = Duration::from_millis(4);

/// While a thread waits for a lock or another CPU, rounds below `ROUNDS_SPINNING` spin. Later rounds below
/// `ROUNDS_YIELDING` yield to other threads, and all rounds after those sleep.
const ROUNDS_SPINNING: u32 = 32;
const ROUNDS_YIELDING: u32 = 64;

/// Asserts that zeroed buffers are valid cells of this platform.
// SAFETY: the cells are atomics of `core`. These are documented to have the representation of their integer type, for
// which zero is valid, and they have no destructor. The lock is one such atomic, and zero means that it is free.
const ZEROED_CELLS: ZeroedCells<LinuxPlatform> = unsafe { ZeroedCells::promise() };

/// The platform of a [`Pool`](crate::Pool).
pub struct LinuxPlatform {
    /// Nanoseconds since `start`.
    now: AtomicU64,
    /// Restartable sequences. They are not in use if the CPUs of the pool's machine are not the real machine's.
    pub(super) sequences: Sequences,
    cpus: CpuMap,
    pub(super) memory: PoolMemory,
    start: Instant,
    pub(super) key: PoolKey,
    pub(super) reclaimers: Reclaimers,
    pub(super) listeners: Listeners,
    pub(super) changes: PendingChanges,
    pub(super) recent: RecentRequests,
    pub(super) wakes: WakeBoard,
    /// Counts which of the pool's threads work in the pool and which are in reclaimers.
    pub(super) presence: Arc<Presence>,
    /// This process's part, if processes share the pool.
    pub(super) members: Option<Arc<Entered>>,
    /// Id of this process's first CPU, and the number of CPU ids that it has; 0 and all unless processes share the pool.
    first_cpu: u32,
    cpus_of_each: u32,
}

impl std::fmt::Debug for LinuxPlatform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LinuxPlatform")
            .field("key", &self.key)
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

impl Platform for LinuxPlatform {
    type U8 = AtomicU8;
    type U32 = AtomicU32;
    type U64 = AtomicU64;
    type Lock = SleepingLock;
    type CpuLocal = Sequences;

    const ZEROED_CELLS: Option<ZeroedCells<Self>> = Some(ZEROED_CELLS);

    #[inline(always)]
    fn current_cpu(&self) -> CpuId {
        let cpu = self.sequences.current_cpu().unwrap_or_else(|| self.cpus.current());
        if cpu.get() < self.cpus_of_each {
            CpuId::new(self.first_cpu + cpu.get())
        } else {
            CpuId::new(u32::MAX)
        }
    }

    fn process(&self) -> u8 {
        self.members.as_ref().map_or(0, |members| members.process())
    }

    fn drain_others(&self) {
        if let Some(members) = &self.members {
            members.drain_others();
        }
    }

    #[inline(always)]
    fn cpu_local(&self) -> &Sequences {
        &self.sequences
    }

    #[inline]
    fn now(&self) -> Moment {
        Moment::from_ns(self.now.load(Ordering::Relaxed)) // relaxed: the time orders no other accesses
    }

    fn relax(&self, round: u32) {
        match round {
            0..ROUNDS_SPINNING => std::hint::spin_loop(),
            ROUNDS_SPINNING..ROUNDS_YIELDING => std::thread::yield_now(),
            _ => nap(),
        }
    }

    fn is_reclaiming(&self) -> bool {
        reclaimers::is_reclaiming(self.key)
    }

    #[inline]
    fn is_reentered(&self) -> bool {
        reentrancy::is_inside()
    }

    fn begin_reclaiming(&self) {
        reclaimers::begin_reclaiming(self.key);
    }

    fn end_reclaiming(&self) {
        reclaimers::end_reclaiming(self.key);
    }

    fn wake_background_reclaim(&self, node: NodeId) {
        // A child made by `fork` has none of the pool's threads, so there is no worker to wake. A thread of the parent
        // may also have held the wake-up lock at the fork, and that lock then stays locked in the child.
        if self.presence.is_here() {
            let _inside = Inside::enter();
            self.wakes.wake(node);
            if let Some(members) = &self.members {
                members.reclaim_by_others(node);
            }
        }
    }

    fn pressure(&self, event: &PressureEvent) {
        self.listeners.record(event);
    }

    #[inline(always)]
    fn trace(&self, point: Tracepoint) {
        probes::pass(self.key, point);
    }

    #[inline]
    fn recorder(&self) -> Option<&dyn Recorder> {
        self.recent.recorder()
    }

    fn reclaimer(&self) -> &dyn Reclaimer {
        &self.reclaimers
    }

    fn contents(&self) -> Option<&dyn FrameContents> {
        Some(&self.memory)
    }

    #[inline]
    fn replace_all(cells: &[AtomicU8; WORD_FRAMES], from: u8, to: u8) -> bool {
        whole_words::replace_all(cells, from, to)
    }

    #[inline]
    fn exchange_leading(cells: &[AtomicU8; WORD_FRAMES], from: u8, to: u8) -> usize {
        whole_words::exchange_leading(cells, from, to)
    }

    #[inline]
    fn store_ascending(cells: &[AtomicU32; WORD_FRAMES], first: u32) {
        whole_words::store_ascending(cells, first);
    }

    #[inline]
    fn holds_run(cells: &[AtomicU32; WORD_FRAMES], direction: Direction) -> bool {
        whole_words::holds_run(cells, direction)
    }
}

impl LinuxPlatform {
    /// Creates a platform over `memory`, whose clock is set: a process that joins a pool may record times there at once.
    pub(super) fn new(
        key: PoolKey,
        cpus: CpuMap,
        sequences: Sequences,
        memory: PoolMemory,
        members: Option<Arc<Entered>>,
        cpus_of_each: u32,
    ) -> Self {
        let (first_cpu, cpus_of_each) = match &members {
            Some(members) => (cpus_of_each * u32::from(members.process() - 1), cpus_of_each),
            None => (0, u32::MAX),
        };
        let presence = Arc::new(Presence::new());
        let mut nodes: Vec<NodeId> = memory.zones().iter().map(|zone| zone.node).collect();
        nodes.dedup();
        let recent = RecentRequests::new(memory.zones().iter().map(|zone| (zone.node, zone.kind)));
        let this = Self {
            now: AtomicU64::new(0),
            sequences,
            cpus,
            memory,
            start: Instant::now(),
            key,
            reclaimers: Reclaimers::new(key, Arc::clone(&presence)),
            listeners: Listeners::new(key, Arc::clone(&presence), nodes.iter().copied()),
            changes: PendingChanges::default(),
            recent,
            presence,
            wakes: WakeBoard::new(nodes.into_iter()),
            members,
            first_cpu,
            cpus_of_each,
        };
        this.push_clock();
        this
    }

    /// Sets the clock to the current time.
    pub(super) fn push_clock(&self) {
        let ns = match &self.members {
            None => u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX),
            Some(_) => monotonic_ns(), // the same in all processes
        };
        self.now.store(ns, Ordering::Relaxed); // relaxed: one thread writes; orders no other accesses
    }
}

/// Returns the time on the clock that the machine's processes share.
fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one structure.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    (time.tv_sec as u64) * 1_000_000_000 + time.tv_nsec as u64
}

//! Allocators of described machines: the core alone, without memory behind the frames, for questions about a machine.
//!
//! Related files: `figures/described.rs` starts allocators of simpler machines for measurements, on the same platform.

use std::io;
use std::mem::MaybeUninit;

use memmap2::{MmapMut, MmapOptions};
use zonal::error::ConfigError;
use zonal::machine::{Machine, TopologyError};
use zonal::platform::one_thread::OneThread;
use zonal::platform::reclaimer::{ReclaimRequest, Reclaimer};
use zonal::platform::{Platform, ZeroedCells};
use zonal::units::{CpuId, Moment, NodeId, PageCount};
use zonal::{Allocator, Buffer, Config, Layout};
use zonal_machine::OwnedMachine;

/// The platform of a described machine: one thread, and memory that could be reclaimed.
///
/// A reclaimer that frees nothing answers how much it could free, which is what explanations ask.
#[derive(Debug, Default)]
pub struct Described {
    thread: OneThread,
    reclaimable: Reclaimable,
}

#[derive(Debug, Default)]
struct Reclaimable(Vec<(NodeId, PageCount)>);

impl Described {
    /// Creates the platform with the frames of each node that could be reclaimed.
    #[must_use]
    pub fn new(reclaimable: Vec<(NodeId, PageCount)>) -> Self {
        Self { thread: OneThread::new(), reclaimable: Reclaimable(reclaimable) }
    }

    /// Sets the CPU that makes the next requests.
    pub fn set_current_cpu(&self, cpu: CpuId) {
        self.thread.set_current_cpu(cpu);
    }

    /// Sets the clock.
    pub fn set_time(&self, now: Moment) {
        self.thread.set_time(now);
    }
}

impl Platform for Described {
    type U8 = <OneThread as Platform>::U8;
    type U32 = <OneThread as Platform>::U32;
    type U64 = <OneThread as Platform>::U64;
    type Lock = <OneThread as Platform>::Lock;
    type CpuLocal = <OneThread as Platform>::CpuLocal;

    // SAFETY: the types are those of `OneThread`, of which zero bytes are valid values.
    const ZEROED_CELLS: Option<ZeroedCells<Self>> = Some(unsafe { ZeroedCells::promise() });

    fn current_cpu(&self) -> CpuId {
        self.thread.current_cpu()
    }

    fn cpu_local(&self) -> &Self::CpuLocal {
        self.thread.cpu_local()
    }

    fn now(&self) -> Moment {
        self.thread.now()
    }

    fn reclaimer(&self) -> &dyn Reclaimer {
        &self.reclaimable
    }
}

impl Reclaimer for Reclaimable {
    fn count(&self, request: &ReclaimRequest) -> PageCount {
        let of_node = self.0.iter().find(|(node, _)| *node == request.node);
        of_node.map_or(PageCount::ZERO, |&(_, frames)| frames)
    }

    fn reclaim(&self, _request: &ReclaimRequest) -> PageCount {
        PageCount::ZERO
    }
}

/// Why a described machine has no allocator.
#[derive(Debug, thiserror::Error)]
pub enum DescribedError {
    /// The description of the machine has an error.
    #[error("the machine cannot be set up: {0}")]
    Machine(TopologyError),
    /// The configuration does not suit the machine.
    #[error("the machine cannot be set up: {0}")]
    Config(ConfigError),
    /// The system has too few addresses for the metadata.
    #[error("no memory for {bytes} bytes of metadata: {why}")]
    NoMemory {
        /// Size of the part.
        bytes: usize,
        /// The reason.
        why: io::Error,
    },
}

/// Calls `ask` with an allocator of `machine`, whose frames have no memory behind them.
///
/// Only the parts of the metadata that are written use memory.
///
/// ```
/// use zonal::{Config, Request};
/// use zonal_bench::Described;
/// use zonal_machine::{OwnedMachine, preset};
///
/// let machine = OwnedMachine::from(&preset("quad-10-12-32").unwrap());
/// let node = zonal_bench::with_described(&machine, &Config::default(), Described::default(), |allocator| {
///     allocator.alloc(&Request::page()).map(|block| block.node)
/// })?;
/// assert_eq!(node.unwrap().get(), 0);
/// # Ok::<(), zonal_bench::DescribedError>(())
/// ```
///
/// # Errors
/// When the allocator refuses the machine or the configuration, or there is no memory for its metadata.
pub fn with_described<R>(
    machine: &OwnedMachine,
    config: &Config,
    platform: Described,
    ask: impl FnOnce(&Allocator<'_, Described>) -> R,
) -> Result<R, DescribedError> {
    let asked = machine.with(|machine| {
        let mut metadata = metadata_of(machine, config)?;
        let mut parts = metadata.iter_mut();
        let next = |_| parts.next().map(buffer);
        let allocator = Allocator::new(platform, machine, config, next);
        Ok(ask(&allocator.map_err(DescribedError::Config)?))
    });
    asked.map_err(DescribedError::Machine)?
}

/// Maps the memory of the metadata.
fn metadata_of(machine: &Machine<'_>, config: &Config) -> Result<Vec<MmapMut>, DescribedError> {
    let layout = Layout::new(machine, config).map_err(DescribedError::Config)?;
    let parts = layout.requests::<Described>().map(|request| {
        let bytes = request.bytes.max(1);
        let mapped = MmapOptions::new().len(bytes).no_reserve_swap().map_anon();
        mapped.map_err(|why| DescribedError::NoMemory { bytes, why })
    });
    parts.collect()
}

fn buffer(fresh: &mut MmapMut) -> Buffer<'_> {
    let bytes = fresh.len();
    let first = fresh.as_mut_ptr().cast::<MaybeUninit<u8>>();
    // SAFETY: the slice covers the mapping, which stays borrowed, and every byte is a valid `MaybeUninit<u8>`.
    let bytes = unsafe { std::slice::from_raw_parts_mut(first, bytes) };
    // SAFETY: the kernel zeroes fresh mappings, and nothing has been written to this one.
    unsafe { Buffer::zeroed(bytes) }
}

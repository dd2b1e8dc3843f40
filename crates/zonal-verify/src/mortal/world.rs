//! The machine of processes that die, and the memory in which they share its allocator.
//!
//! Each process maps the memory at an address of its own. Related files: `cells.rs` has the cells.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::ptr::null_mut;
use std::slice;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

use zonal::layout::Place;
use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
use zonal::platform::cpu_local::TryLock;
use zonal::platform::{Platform, ZeroedCells};
use zonal::units::{CpuId, Moment, NodeId, PageCount, Pfn, ZoneKind};
use zonal::{Allocator, Buffer, Config, Layout, Machine};

use super::cells::{MortalCell, MortalLock};

/// Processes of the machine.
pub(super) const PROCESSES: u8 = 3;
/// CPUs of each process: two on each node.
const CPUS: u32 = 4;
/// A zone: node, kind, first frame, frames.
pub(super) type Zone = (u16, ZoneKind, u64, u64);
/// Small zones, each with one free area.
pub(super) const ZONES: &[Zone] =
    &[(0, ZoneKind::Dma32, 1024, 700), (0, ZoneKind::Normal, 2048, 2048), (1, ZoneKind::Normal, 5120, 1536)];
/// A zone with two free areas, if they are as small as they can be.
pub(super) const TWO_AREAS: &[Zone] = &[(0, ZoneKind::Normal, 8192, 2 * AREA)];
/// Frames of the smallest area.
pub(super) const AREA: u64 = 4096;
/// First frame of the second area.
pub(super) const SECOND_AREA: u64 = 8192 + AREA;

/// The platform of a process.
pub(super) struct MortalPlatform {
    process: u8,
    /// The caller's CPU, counted in the process.
    pub(super) cpu: AtomicU32,
    pub(super) clock_ns: AtomicU64,
}

// SAFETY: the cells are atomics of `core`, which have the representation of their integer type, for which zero is valid, and no
// destructor. The lock is one such atomic, and zero means that it is free.
const ZEROED: ZeroedCells<MortalPlatform> = unsafe { ZeroedCells::promise() };

impl Platform for MortalPlatform {
    type U8 = MortalCell<AtomicU8>;
    type U32 = MortalCell<AtomicU32>;
    type U64 = MortalCell<AtomicU64>;
    type Lock = MortalLock;
    type CpuLocal = TryLock;

    const ZEROED_CELLS: Option<ZeroedCells<Self>> = Some(ZEROED);

    fn process(&self) -> u8 {
        self.process
    }

    fn current_cpu(&self) -> CpuId {
        CpuId::new(u32::from(self.process - 1) * CPUS + self.cpu.load(Relaxed) % CPUS) // relaxed, as below: one thread
    }

    fn cpu_local(&self) -> &TryLock {
        &TryLock
    }

    fn now(&self) -> Moment {
        Moment::from_ns(self.clock_ns.load(Relaxed))
    }
}

/// A mapping, which ends when this is dropped.
struct Mapping {
    start: *mut libc::c_void,
    bytes: usize,
}

impl Mapping {
    /// Maps `bytes` of a file.
    fn new(file: &File, bytes: usize) -> Self {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the call maps at new addresses.
        let start = unsafe { libc::mmap(null_mut(), bytes, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(start, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Self { start, bytes }
    }

    /// Returns a buffer for an allocator that is dropped before the mapping.
    fn buffer(&self, at: usize, bytes: usize) -> Option<Buffer<'static>> {
        assert!(at + bytes <= self.bytes, "the buffers exceed the mapping");
        // SAFETY: the range is in the mapping.
        let start = unsafe { self.start.byte_add(at) };
        // SAFETY: as above; a process asks for each buffer once.
        let bytes = unsafe { slice::from_raw_parts_mut(start.cast(), bytes) };
        // SAFETY: the bytes are zero, or another process has used them for the same request.
        Some(unsafe { Buffer::of_process(bytes) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value alone has the range.
        unsafe { libc::munmap(self.start, self.bytes) };
    }
}

/// A process with its view of the allocator.
pub(super) struct Process {
    /// Dropped before the mappings.
    pub(super) allocator: Allocator<'static, MortalPlatform>,
    /// The name with which the process holds locks.
    pub(super) name: u32,
    _mappings: [Mapping; 2],
    /// The memory that the process has alone.
    local_file: File,
}

/// Contents of memory.
pub(super) struct Contents(Vec<u8>);

/// What changes of a process.
pub(super) struct State {
    local: Contents,
    cpu: u32,
    clock_ns: u64,
}

impl Process {
    pub(super) fn state(&self) -> State {
        let platform = self.allocator.platform();
        let (cpu, clock_ns) = (platform.cpu.load(Relaxed), platform.clock_ns.load(Relaxed));
        State { local: Contents::read(&self.local_file), cpu, clock_ns }
    }

    pub(super) fn restore(&self, state: &State) {
        state.local.write(&self.local_file);
        let platform = self.allocator.platform();
        platform.cpu.store(state.cpu, Relaxed); // relaxed, as above: one thread
        platform.clock_ns.store(state.clock_ns, Relaxed);
    }
}

impl Contents {
    fn read(file: &File) -> Self {
        let bytes = file.metadata().expect("a file in memory has a size").len();
        let mut contents = vec![0; bytes as usize];
        file.read_exact_at(&mut contents, 0).expect("a file in memory is read");
        Self(contents)
    }

    fn write(&self, file: &File) {
        file.write_all_at(&self.0, 0).expect("a file in memory has room");
    }
}

/// Makes an empty file in memory.
fn memory_file() -> File {
    // SAFETY: the name outlives the call.
    let fd = unsafe { libc::memfd_create(c"zonal mortal".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: this is the only owner of the descriptor.
    unsafe { File::from_raw_fd(fd) }
}

/// The memory that processes share.
pub(super) struct World {
    file: File,
    config: Config,
    zones: &'static [Zone],
}

impl World {
    /// Makes empty memory for a machine with these zones.
    pub(super) fn new(config: Config, zones: &'static [Zone]) -> Self {
        let config = Config { processes: PROCESSES, ..config };
        let world = Self { file: memory_file(), config, zones };
        let bytes = world.with_machine(|machine| world.sizes(machine)[0]);
        world.file.set_len(bytes as u64).expect("a file in memory has room");
        world
    }

    pub(super) fn contents(&self) -> Contents {
        Contents::read(&self.file)
    }

    pub(super) fn restore(&self, contents: &Contents) {
        contents.write(&self.file);
    }

    /// Makes the allocator if `is_first`, or joins it, as a process that holds locks as `name`.
    pub(super) fn start(&self, process: u8, name: u32, is_first: bool) -> Process {
        self.with_machine(|machine| {
            let [shared, local] = self.sizes(machine);
            let local_file = memory_file();
            local_file.set_len(local as u64).expect("a file in memory has room");
            let mappings = [Mapping::new(&self.file, shared), Mapping::new(&local_file, local)];
            let mut used = [0, 0];
            let supply = |request: zonal::layout::BufferRequest| {
                let of = usize::from(request.place == Place::Local);
                let at = used[of];
                used[of] += padded(request.bytes);
                mappings[of].buffer(at, request.bytes)
            };
            let platform =
                MortalPlatform { process, cpu: AtomicU32::new(0), clock_ns: AtomicU64::new(1_000_000_000) };
            let start = if is_first { Allocator::new } else { Allocator::join };
            let allocator = start(platform, machine, &self.config, supply).expect("the machine is valid");
            Process { allocator, name, _mappings: mappings, local_file }
        })
    }

    /// Returns the bytes of all buffers that processes share, and of all that each has alone.
    fn sizes(&self, machine: &Machine<'_>) -> [usize; 2] {
        let layout = Layout::new(machine, &self.config).expect("the machine is valid");
        let bytes = |is_local| {
            let its =
                layout.requests::<MortalPlatform>().filter(|one| (one.place == Place::Local) == is_local);
            its.map(|request| padded(request.bytes)).sum()
        };
        [bytes(false), bytes(true)]
    }

    fn with_machine<T>(&self, then: impl FnOnce(&Machine<'_>) -> T) -> T {
        let cpus = |node: u32| -> Vec<CpuId> {
            let firsts = (0..u32::from(PROCESSES)).map(|process| process * CPUS + node * CPUS / 2);
            firsts.flat_map(|first| (first..first + CPUS / 2).map(CpuId::new)).collect()
        };
        let cpus = [cpus(0), cpus(1)];
        let nodes = [0, 1].map(|node: u16| NodeDescription {
            id: NodeId::new(node).expect("small"),
            cpus: &cpus[usize::from(node)],
            distances: [&[10, 20], &[20, 10]][usize::from(node)],
        });
        let ranges: Vec<_> = self.zones.iter().map(|&(.., first, frames)| [range(first, frames)]).collect();
        let zones: Vec<_> = (self.zones.iter().zip(&ranges))
            .map(|(&(node, kind, ..), managed)| ZoneDescription {
                node: NodeId::new(node).expect("small"),
                kind,
                span: managed[0],
                managed,
            })
            .collect();
        then(&Machine::new(&nodes, &zones).expect("the machine is valid"))
    }
}

/// Returns a range of frames.
pub(super) const fn range(first: u64, count: u64) -> FrameRange {
    FrameRange { start: Pfn::new(first), count: PageCount::new(count) }
}

/// Returns a range in a zone, which a number chooses.
pub(super) fn range_in_a_zone(choice: u64, count: u64) -> FrameRange {
    let (.., first, frames) = ZONES[choice as usize % ZONES.len()];
    range(first + choice / 3 % (frames - count), count)
}

fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(4096)
}

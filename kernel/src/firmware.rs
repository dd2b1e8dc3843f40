//! What the firmware says about the machine: memory, CPUs, nodes and distances.
//!
//! The start information of the PVH protocol has the memory map and the address of the ACPI tables. The MADT has the
//! CPUs, the SRAT says which node CPUs and memory belong to, and the SLIT has the distances between nodes. The tables
//! are found with the crate `acpi`. The SRAT and the SLIT are read here.

use core::ptr::NonNull;

use acpi::madt::{Madt, MadtEntry};
use acpi::sdt::{SdtHeader, Signature};
use acpi::{AcpiHandler, AcpiTable, AcpiTables, PhysicalMapping};
use arrayvec::ArrayVec;
use pvh::start_info::MemmapType;
use pvh::start_info::reader::{IdentityMap, StartInfoReader};
use zonal::machine::{FrameRange, LOCAL_DISTANCE};
use zonal::units::{NodeId, PageCount, Pfn};

use crate::cpu::CPUS_MAX;

/// Bytes of a frame.
pub(crate) const FRAME_BYTES: u64 = 4096;
/// The largest number of nodes, and of ranges of memory, that this kernel uses.
pub(crate) const NODES_MAX: usize = 8;
pub(crate) const RANGES_MAX: usize = 32;
/// Distance to other nodes if the firmware has no SLIT. Linux: `REMOTE_DISTANCE`.
const REMOTE_DISTANCE: u8 = 20;

/// A CPU that the firmware lists.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Processor {
    /// Id of its interrupt controller.
    pub(crate) controller: u32,
    pub(crate) node: NodeId,
}

/// Frames of one node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeFrames {
    pub(crate) node: NodeId,
    pub(crate) frames: FrameRange,
}

/// The machine as the firmware describes it.
pub(crate) struct Firmware {
    /// The CPUs, the boot CPU first.
    pub(crate) processors: ArrayVec<Processor, CPUS_MAX>,
    /// Conventional memory in ascending order.
    pub(crate) memory: ArrayVec<NodeFrames, RANGES_MAX>,
    /// Number of nodes. Their ids are 0 and up.
    pub(crate) nodes: usize,
    distances: [[u8; NODES_MAX]; NODES_MAX],
}

impl Firmware {
    /// Reads the description of the machine.
    ///
    /// # Panics
    /// Panics if the firmware has no ACPI tables, or if the machine is larger than this kernel's limits.
    pub(crate) fn read(start: &StartInfoReader<'_, IdentityMap>, boot_controller: u32) -> Self {
        let rsdp = start.raw().rsdp_paddr as usize;
        // SAFETY: the start information has the address of the table, or zero, which is refused.
        let tables = unsafe { AcpiTables::from_rsdp(Identity, rsdp) }.expect("the firmware has ACPI tables");
        let affinity = tables.find_table::<Srat>().ok();
        let affinity = affinity.as_ref().map_or(&[][..], |table| entries(table, SRAT_ENTRIES));
        let mut firmware = Self {
            processors: ArrayVec::new(),
            memory: ArrayVec::new(),
            nodes: 1,
            distances: [[REMOTE_DISTANCE; NODES_MAX]; NODES_MAX],
        };
        for entry in Affinities(affinity) {
            let (Affinity::Cpu { node, .. } | Affinity::Memory { node, .. }) = entry;
            firmware.nodes = firmware.nodes.max(node_id(node).index() + 1);
        }
        firmware.read_processors(&tables, affinity, boot_controller);
        firmware.read_memory(start, affinity);
        firmware.read_distances(&tables);
        firmware
    }

    /// Returns the distances from a node to all nodes.
    pub(crate) fn distances(&self, node: usize) -> &[u8] {
        &self.distances[node][..self.nodes]
    }

    fn read_processors(&mut self, tables: &AcpiTables<Identity>, affinity: &[u8], boot_controller: u32) {
        let madt = tables.find_table::<Madt>().expect("the firmware has a table of CPUs");
        for entry in madt.get().entries() {
            let MadtEntry::LocalApic(entry) = entry else { continue };
            if entry.flags & 1 == 0 {
                continue; // the CPU is absent
            }
            let controller = u32::from(entry.apic_id);
            let of_cpu = |affinity| match affinity {
                Affinity::Cpu { controller: its, node } if its == controller => Some(node_id(node)),
                _ => None,
            };
            let node = Affinities(affinity).find_map(of_cpu).unwrap_or(node_id(0));
            let place = if controller == boot_controller { 0 } else { self.processors.len() };
            self.processors.try_insert(place, Processor { controller, node }).expect("at most 16 CPUs");
        }
        assert!(!self.processors.is_empty(), "the firmware lists no CPU");
    }

    fn read_memory(&mut self, start: &StartInfoReader<'_, IdentityMap>, affinity: &[u8]) {
        for entry in start.memmap().iter().filter(|entry| entry.ty == u32::from(MemmapType::Ram)) {
            let memory = whole_frames(entry.addr, entry.size);
            let mut has_node = false;
            for affinity in Affinities(affinity) {
                let Affinity::Memory { node, base, bytes } = affinity else { continue };
                has_node = true;
                if let Some(frames) = memory.intersection(&whole_frames(base, bytes)) {
                    self.memory
                        .try_push(NodeFrames { node: node_id(node), frames })
                        .expect("at most 32 ranges");
                }
            }
            if !has_node {
                self.memory.push(NodeFrames { node: node_id(0), frames: memory });
            }
        }
        self.memory.sort_unstable_by_key(|memory| memory.frames.start);
    }

    fn read_distances(&mut self, tables: &AcpiTables<Identity>) {
        let table = tables.find_table::<Slit>().ok();
        let matrix = table.as_ref().map_or(&[][..], |table| entries(table, SLIT_ENTRIES));
        // The matrix is square.
        let side = (0..=NODES_MAX).find(|side| side * side == matrix.len()).unwrap_or(0);
        for from in 0..self.nodes {
            self.distances[from][from] = LOCAL_DISTANCE;
            if from < side {
                let row = &matrix[from * side..][..side.min(self.nodes)];
                self.distances[from][..row.len()].copy_from_slice(row);
            }
        }
    }
}

fn node_id(proximity_domain: u32) -> NodeId {
    let id = u16::try_from(proximity_domain).ok().and_then(NodeId::new);
    id.filter(|id| id.index() < NODES_MAX).expect("at most 8 nodes, with ids from 0")
}

/// Returns the frames that are entirely within a range of addresses.
fn whole_frames(base: u64, bytes: u64) -> FrameRange {
    let (first, end) = (base.div_ceil(FRAME_BYTES), (base + bytes) / FRAME_BYTES);
    FrameRange { start: Pfn::new(first), count: PageCount::new(end.saturating_sub(first)) }
}

/// One entry of the SRAT that is in use.
enum Affinity {
    Cpu { controller: u32, node: u32 },
    Memory { node: u32, base: u64, bytes: u64 },
}

/// The entries of the SRAT. Each begins with its type and its length. ACPI 6.5, section 5.2.16.
struct Affinities<'a>(&'a [u8]);

impl Iterator for Affinities<'_> {
    type Item = Affinity;

    fn next(&mut self) -> Option<Affinity> {
        loop {
            let (&kind, &length) = (self.0.first()?, self.0.get(1)?);
            let (entry, rest) = self.0.split_at_checked(usize::from(length))?;
            let u32_at =
                |at: usize| entry.get(at..at + 4).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap()));
            let u64_at = |at: usize| Some(u64::from(u32_at(at)?) | u64::from(u32_at(at + 4)?) << 32);
            self.0 = if length < 2 { &[] } else { rest };
            let found = match kind {
                0 if u32_at(4)? & 1 != 0 => {
                    let node = u32::from_le_bytes([entry[2], entry[9], entry[10], entry[11]]);
                    Affinity::Cpu { controller: u32::from(entry[3]), node }
                }
                1 if u32_at(28)? & 1 != 0 => {
                    Affinity::Memory { node: u32_at(2)?, base: u64_at(8)?, bytes: u64_at(16)? }
                }
                2 if u32_at(12)? & 1 != 0 => Affinity::Cpu { controller: u32_at(8)?, node: u32_at(4)? },
                _ => continue,
            };
            return Some(found);
        }
    }
}

/// A table of which only the header has a type here.
macro_rules! table {
    ($name:ident, $signature:ident) => {
        #[repr(transparent)]
        struct $name(SdtHeader);

        // SAFETY: every table begins with this header.
        unsafe impl AcpiTable for $name {
            const SIGNATURE: Signature = Signature::$signature;

            fn header(&self) -> &SdtHeader {
                &self.0
            }
        }
    };
}
table!(Srat, SRAT);
table!(Slit, SLIT);

/// Bytes before the entries of the SRAT, and before the matrix of the SLIT.
const SRAT_ENTRIES: usize = 48;
const SLIT_ENTRIES: usize = 44;

/// Returns the bytes of a table from `at` on.
fn entries<T: AcpiTable>(table: &PhysicalMapping<Identity, T>, at: usize) -> &[u8] {
    let start = table.virtual_start().as_ptr().cast::<u8>().cast_const();
    // SAFETY: the mapping has all bytes of the table.
    let bytes = unsafe { core::slice::from_raw_parts(start, table.region_length()) };
    bytes.get(at..).unwrap_or_default()
}

/// Physical memory, which is mapped to the same virtual addresses.
#[derive(Clone, Copy)]
struct Identity;

impl AcpiHandler for Identity {
    unsafe fn map_physical_region<T>(&self, address: usize, bytes: usize) -> PhysicalMapping<Self, T> {
        let start = NonNull::new(address as *mut T).expect("no table is at address 0");
        // SAFETY: the memory is mapped for good. The caller guarantees that it contains a `T`.
        unsafe { PhysicalMapping::new(address, start, bytes, bytes, *self) }
    }

    fn unmap_physical_region<T>(_: &PhysicalMapping<Self, T>) {}
}

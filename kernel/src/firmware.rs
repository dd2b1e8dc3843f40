//! What the firmware says about the machine: memory, CPUs, nodes and distances.
//!
//! The kernel needs pages of 1 GiB and interrupt controllers in xAPIC mode, and uses the first 512 GiB of memory.
//!
//! The PVH protocol's start information has the memory map and the address of the ACPI tables. The MADT has the CPUs,
//! the SRAT says which node CPUs and memory belong to, and the SLIT has the distances between nodes. The tables are
//! found with the crate `acpi`. The SRAT and the SLIT are read here.

use core::ptr::NonNull;

use acpi::madt::{Madt, MadtEntry};
use acpi::sdt::{SdtHeader, Signature};
use acpi::{AcpiError, AcpiHandler, AcpiTable, AcpiTables, PhysicalMapping};
use arrayvec::ArrayVec;
use pvh::start_info::MemmapType;
use pvh::start_info::reader::{IdentityMap, StartInfoReader};
use zonal::machine::{FrameRange, LOCAL_DISTANCE};
use zonal::units::{NodeId, PageCount, Pfn};

use crate::cpu::CPUS_MAX;

/// Bytes of a frame.
pub(crate) const FRAME_BYTES: u64 = 4096;
/// The largest number of nodes, and of memory ranges, that this kernel uses.
pub(crate) const NODES_MAX: usize = 8;
pub(crate) const RANGES_MAX: usize = 32;
/// First frame that the page table of `boot.rs` does not map: 512 GiB.
const FRAMES_END: u64 = 1 << 27;
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
        let affinity = find::<Srat>(&tables);
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
        let first = self.processors.first().map(|processor| processor.controller);
        assert!(first == Some(boot_controller), "the firmware does not list the boot CPU {boot_controller}");
        let ids = self.processors.iter().map(|processor| processor.controller);
        let is_twice = |(at, id): (usize, u32)| ids.clone().skip(at + 1).any(|other| other == id);
        assert!(!ids.clone().enumerate().any(is_twice), "the firmware lists a CPU twice");
    }

    fn read_memory(&mut self, start: &StartInfoReader<'_, IdentityMap>, affinity: &[u8]) {
        for entry in start.memmap().iter().filter(|entry| entry.ty == u32::from(MemmapType::Ram)) {
            let memory = whole_frames(entry.addr, entry.size);
            let mut has_node = false;
            for affinity in Affinities(affinity) {
                let Affinity::Memory { node, base, bytes } = affinity else { continue };
                if let Some(frames) = memory.intersection(&whole_frames(base, bytes)) {
                    has_node = true;
                    self.add_memory(node_id(node), frames);
                }
            }
            if !has_node && memory.count > PageCount::ZERO {
                self.add_memory(node_id(0), memory); // a machine without SRAT, or memory that it does not list
            }
        }
        self.memory.sort_unstable_by_key(|memory| memory.frames.start);
        let overlap = self.memory.windows(2).find(|pair| pair[0].frames.end() > pair[1].frames.start);
        assert!(overlap.is_none(), "the firmware lists memory twice: {overlap:?}");
        self.memory = self.memory.iter().fold(ArrayVec::new(), |mut merged, memory| {
            match merged.last_mut() {
                Some(NodeFrames { node, frames })
                    if *node == memory.node && frames.end() == memory.frames.start =>
                {
                    frames.count = frames.count.plus(memory.frames.count);
                }
                _ => merged.push(*memory),
            }
            merged
        });
    }

    fn add_memory(&mut self, node: NodeId, frames: FrameRange) {
        self.memory.try_push(NodeFrames { node, frames }).expect("at most 32 ranges of memory");
    }

    fn read_distances(&mut self, tables: &AcpiTables<Identity>) {
        let table = find::<Slit>(tables);
        let matrix = table.as_ref().map_or(&[][..], |table| entries(table, SLIT_ENTRIES));
        let side = table.as_ref().and_then(|table| entries(table, SLIT_SIDE).first());
        let side = side.map_or(0, |&side| usize::from(side));
        assert!(side * side <= matrix.len(), "the table of distances is too short for {side} nodes");
        for from in 0..self.nodes {
            self.distances[from][from] = LOCAL_DISTANCE;
            if from < side {
                let row = &matrix[from * side..][..side.min(self.nodes)];
                self.distances[from][..row.len()].copy_from_slice(row);
            }
        }
    }
}

/// Returns a table, if the firmware has it.
fn find<T: AcpiTable>(tables: &AcpiTables<Identity>) -> Option<PhysicalMapping<Identity, T>> {
    match tables.find_table::<T>() {
        Ok(table) => Some(table),
        Err(AcpiError::TableMissing(_)) => None,
        Err(error) => panic!("the table {} is damaged: {error:?}", T::SIGNATURE),
    }
}

fn node_id(proximity_domain: u32) -> NodeId {
    let id = u16::try_from(proximity_domain).ok().and_then(NodeId::new);
    id.filter(|id| id.index() < NODES_MAX).expect("at most 8 nodes, with ids from 0")
}

/// Returns the frames that are entirely within a range of addresses.
fn whole_frames(base: u64, bytes: u64) -> FrameRange {
    let first = base.div_ceil(FRAME_BYTES);
    let end = (base.saturating_add(bytes) / FRAME_BYTES).min(FRAMES_END);
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
            let length = usize::from(*self.0.get(1)?);
            let (entry, rest) = self.0.split_at_checked(length.max(2))?;
            self.0 = rest;
            // An entry that is too short for its type is left out.
            if let Some(affinity) = parse(entry) {
                return Some(affinity);
            }
        }
    }
}

/// Returns what an entry of the SRAT says, if it is in use and of a type that matters here.
fn parse(entry: &[u8]) -> Option<Affinity> {
    let u32_at = |at: usize| Some(u32::from_le_bytes(entry.get(at..at + 4)?.try_into().ok()?));
    let u64_at = |at: usize| Some(u64::from(u32_at(at)?) | u64::from(u32_at(at + 4)?) << 32);
    let is_used = |flags: usize| u32_at(flags).is_some_and(|flags| flags & 1 != 0);
    match entry.first()? {
        0 if is_used(4) => {
            let node = u32::from(entry[2]) | u32_at(8)? & !0xFF;
            Some(Affinity::Cpu { controller: u32::from(entry[3]), node })
        }
        1 if is_used(28) => Some(Affinity::Memory { node: u32_at(2)?, base: u64_at(8)?, bytes: u64_at(16)? }),
        2 if is_used(12) => Some(Affinity::Cpu { controller: u32_at(8)?, node: u32_at(4)? }),
        _ => None,
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

/// Bytes before the entries of the SRAT, before the SLIT's number of rows, and before its matrix.
const SRAT_ENTRIES: usize = 48;
const SLIT_SIDE: usize = 36;
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

//! The zones of a shared pool, which are parts of its file.
//!
//! Frames have the same numbers in all processes, but other addresses. Related files: `memory/pool_file.rs` has the rest of
//! the file, `memory/zones.rs` the memory of all pools.

use std::os::fd::BorrowedFd;

use zonal::machine::FrameRange;
use zonal::units::{NodeId, PageCount, Pfn, ZoneKind};

use super::huge_pages::HugePages;
use super::mapping::{Backing, Mapping};
use super::plan::block_bytes;
use super::zones::{Binding, MapOptions, PoolMemory, ZoneMemory, bind_or_warn, prepare};
use crate::error::{PoolError, Warnings};

/// A zone in the file of a shared pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileZone {
    pub(crate) node: NodeId,
    pub(crate) kind: ZoneKind,
    pub(crate) range: FrameRange,
    /// Where the zone begins in the file.
    pub(crate) offset: u64,
}

impl PoolMemory {
    /// Maps the zones of a shared pool's file.
    pub(crate) fn map_file(
        zones: &[FileZone],
        file: BorrowedFd<'_>,
        options: MapOptions,
        warnings: &mut Warnings,
    ) -> Result<Self, PoolError> {
        let zones = zones.iter().map(|zone| ZoneMemory::of_file(zone, file, options, warnings));
        Ok(Self::of_zones(zones.collect::<Result<_, _>>()?, options))
    }

    /// Returns the frame at an address in a shared pool, whose frames have the same numbers in all processes.
    pub(super) fn frame_in_file(&self, address: usize) -> Option<Pfn> {
        let frame = |zone: &ZoneMemory| {
            let offset = address.checked_sub(zone.mapping.base().as_ptr().addr())? / self.page_bytes;
            let offset = PageCount::new(offset as u64);
            (offset < zone.range.count).then(|| zone.range.start.plus(offset))
        };
        self.zones.iter().find_map(frame)
    }
}

impl ZoneMemory {
    /// Maps a zone of a shared pool's file.
    fn of_file(
        zone: &FileZone,
        file: BorrowedFd<'_>,
        options: MapOptions,
        warnings: &mut Warnings,
    ) -> Result<Self, PoolError> {
        let bytes = zone.range.count.get() as usize * options.page_bytes as usize;
        let (node, kind, range) = (zone.node, zone.kind, zone.range);
        let align = block_bytes(options.max_order, options.page_bytes);
        let failed = |purpose, source| PoolError::Map { purpose, bytes: bytes as u64, source };
        let mapped =
            file.try_clone_to_owned().and_then(|file| Mapping::of_file(file, zone.offset, bytes, align));
        let mapping = mapped.map_err(|source| failed(format!("node {node} {kind}"), source))?;
        let huge_pages_wanted = options.huge_pages != HugePages::Never;
        let populated = mapping.backing() != Backing::Ordinary;
        if populated {
            if options.binding == Binding::ToNodes {
                bind_or_warn(&mapping, node, warnings);
            }
            let done = mapping.populate_reserved();
            done.map_err(|source| failed(format!("node {node} {kind} in explicit huge pages"), source))?;
        } else {
            prepare(&mapping, node, options, warnings);
        }
        Ok(Self { node, kind, range, online: range.count, mapping, populated, huge_pages_wanted })
    }
}

//! Maps an address to the metadata region that contains it.
//!
//! The lookup explains addresses in a profile of contended cache lines, and simulations count accesses by region with
//! it. It compares the address with the slices in the allocator's views; no allocation path uses it. A region has a
//! short *name*, which is the same for all regions of a kind and stable between versions. Its display form also
//! identifies the node, zone or CPU.
//!
//! Related files: `layout.rs` places the regions in buffers, and `metadata/regions.rs` defines their names.

use crate::Allocator;
use crate::metadata::regions::{Part, first_true, holds, index};
use crate::pageset::Pageset;
use crate::pageset::state::MachineState;
use crate::platform::Platform;
use crate::units::CpuId;
use crate::zone::Zone;

impl<'m, P: Platform> Allocator<'m, P> {
    /// Returns the metadata region that contains the byte at `address` of this process.
    ///
    /// Returns `None` for padding and for addresses outside the metadata. The search takes time proportional to the
    /// number of nodes and zones.
    #[must_use]
    pub fn part_at(&self, address: usize) -> Option<Part> {
        let (state, shared, slots) = (&self.state, self.state.shared, &self.state.slots);
        if let Some(at) = index(state.deferred, address) {
            return state.cpu_at(at).map(Part::DeferredFrees);
        }
        if let Some(at) = index(slots.current(), address) {
            return Some(Part::CurrentSlot(CpuId::new(at as u32)));
        }
        if let Some(at) = state.nearest.cpu_at(address) {
            return state.cpu_at(at).map(Part::NearestZone);
        }
        if let Some(at) = index(&slots.table()[1..], address) {
            return state.cpu_at(at / slots.of_each).map(Part::PagesetSlots);
        }
        let null_slot = core::ptr::from_ref(slots.null_slot().head).addr();
        let is_view = holds(slots.null_slot(), address)
            || holds(state.cpus, address)
            || holds(state.distances, address)
            || holds(state.starts, address)
            || holds(state.memory, address)
            || holds(state.zones, address)
            || holds(state.nodes, address)
            || holds(state.pagesets, address)
            || state.zones.iter().any(|zone| holds(zone.free_areas.shape, address))
            || (state.pagesets.iter())
                .any(|of| holds(of.own_stacks, address) || holds(of.foreign_stacks, address));
        let part = first_true([
            (holds(&shared.settings, address) || holds(&shared.keeping, address), Part::Settings),
            (holds(&shared.changes, address), Part::ChangeLock),
            (
                holds(&shared.lists_current, address) || holds(&shared.lists_begun, address),
                Part::ListVersions,
            ),
            (holds(&shared.machine_totals, address), Part::MachineTotals),
            (holds(&shared.memory_nodes, address), Part::MemoryNodes),
            (holds(state.cpus_online, address), Part::OnlineCpus),
            // The head is the first field of a pageset, so its address is that of the pageset.
            ((null_slot..null_slot + size_of::<Pageset<P>>()).contains(&address), Part::NullSlot),
            (is_view, Part::Views),
        ]);
        part.or_else(|| state.lists.part_at(state.nodes.iter().map(|node| node.id), address))
            .or_else(|| state.nodes.iter().find_map(|node| node.part_at(address)))
            .or_else(|| state.zones.iter().find_map(|zone| zone.part_at(address)))
            .or_else(|| state.zones.iter().find_map(|zone| state.pageset_part(zone, address)))
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    fn pageset_part(&self, zone: &Zone<'m, P>, address: usize) -> Option<Part> {
        let pagesets = self.pagesets_of(zone);
        if let Some(at) = index(pagesets.pagesets, address) {
            return Some(Part::Pageset(zone.id, self.cpu_at(at)?));
        }
        // The slots of the CPUs on the zone's node come first, in the order of their ranks.
        let (at, own) = (index(pagesets.slots, address)?, pagesets.own_stacks.slots());
        let cpu = match at.checked_sub(zone.own_cpus * own) {
            Some(beyond) => self.cpu_at(beyond / pagesets.foreign_stacks.slots()),
            None => {
                let mut cpus = self.cpus.iter().filter(|&&cpu| zone.is_own(cpu));
                cpus.find(|cpu| cpu.rank as usize == at / own).map(|cpu| cpu.id)
            }
        };
        Some(Part::Slots(zone.id, cpu?))
    }

    /// Returns the id of the CPU with this index.
    fn cpu_at(&self, index: usize) -> Option<CpuId> {
        let mut cpus = self.cpus.iter().filter(|cpu| cpu.exists());
        cpus.nth(index).map(|cpu| cpu.id)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::string::{String, ToString};
    use std::vec::Vec;

    use super::*;
    use crate::config::{Config, Hardening};
    use crate::metadata::arena::LINE;
    use crate::testing::{Native, at, small};
    use crate::units::PageCount;

    /// Returns a small allocator that has every kind of metadata region, and the address ranges of its buffers.
    fn with_buffers() -> (Allocator<'static, Native>, Vec<core::ops::Range<usize>>) {
        let hardening = Hardening { quarantine: PageCount::new(20), ..Hardening::default() };
        let mut buffers = Vec::new();
        let config = Config { hardening, free_area_min: PageCount::ZERO, ..Config::default() };
        let allocator = small(&config, |buffer| {
            buffers.push(buffer.as_ptr().addr()..buffer.as_ptr().addr() + buffer.len());
        });
        (allocator, buffers)
    }

    /// Each allocation from a buffer is aligned to a cache line, so no gap without a region is as long as a line.
    #[test]
    #[cfg_attr(miri, ignore = "takes Miri too long")]
    fn every_byte_belongs_to_a_region_or_is_padding() {
        let (allocator, buffers) = with_buffers();
        let mut bytes: BTreeMap<&str, usize> = BTreeMap::new();
        for buffer in &buffers {
            let mut padding = 0;
            let slack = buffer.end - 2 * LINE..buffer.end;
            for address in buffer.clone() {
                if let Some(part) = allocator.part_at(address) {
                    *bytes.entry(part.name()).or_default() += 1;
                    padding = 0;
                } else {
                    padding += 1;
                    assert!(padding < LINE || slack.contains(&address), "{:#x}", address - buffer.start);
                }
            }
        }
        let zones = || allocator.state.zones.iter();
        let of_states = |zone: &Zone<'_, Native>| zone.frames.states.len() + size_of_val(zone.frames.present);
        assert_eq!(bytes["frame states"], zones().map(of_states).sum());
        assert_eq!(
            bytes["slots"],
            zones().map(|zone| size_of_val(allocator.state.pagesets_of(zone).slots)).sum()
        );
        assert_eq!(bytes["free bitmap"], zones().map(|zone| 8 * zone.free_areas.shape.cells()).sum());
        assert_eq!(bytes["pageset"], 4 * 2 * size_of::<Pageset<Native>>(), "zones times CPUs");
        assert_eq!([bytes["machine totals"], bytes["node totals"], bytes["zone totals"]], [64, 128, 256]);
        let names: Vec<&str> = bytes.into_keys().collect();
        let all = [
            "change lock",
            "current slot",
            "deferred frees",
            "events",
            "frame states",
            "free area",
            "free bitmap",
            "list versions",
            "machine totals",
            "memory nodes",
            "nearest zone",
            "node rules",
            "node state",
            "node totals",
            "null slot",
            "online CPUs",
            "pageset",
            "pageset slots",
            "quarantine",
            "settings",
            "slots",
            "views",
            "zone full nodes",
            "zone rules",
            "zone state",
            "zone totals",
            "zonelist",
            "zonelist cache",
        ];
        assert_eq!(names, all);
    }

    /// Checks the regions of selected cells.
    #[test]
    fn cells_lie_in_the_regions_they_belong_to() {
        let (allocator, _) = with_buffers();
        let shown = |address| allocator.part_at(address).map(|part| part.to_string());
        let is = |address: usize, text: &str| assert_eq!(shown(address), Some(String::from(text)));
        let zone = &allocator.state.zones[3];
        is(at(&allocator.state.pagesets_of(zone).pagesets[1]) + 100, "zone 3 pageset of CPU 2");
        for info in allocator.state.cpus.iter().filter(|info| info.exists()) {
            let cpu = info.id;
            for zone in allocator.state.zones {
                let slots = allocator.state.pagesets_of(zone).stacks(*info).0;
                is(at(&slots[0]), &std::format!("zone {} slots of CPU {cpu}", zone.id));
                is(at(slots.last().unwrap()), &std::format!("zone {} slots of CPU {cpu}", zone.id));
            }
            is(at(&allocator.state.slots.current()[cpu.index()]), &std::format!("current slot of CPU {cpu}"));
            let deferred = &allocator.state.deferred[info.index as usize];
            is(at(deferred) + size_of_val(deferred) - 1, &std::format!("deferred frees of CPU {cpu}"));
            is(
                at(&allocator.state.slots.table()[1 + 4 * info.index as usize + 3]),
                &std::format!("pageset slots of CPU {cpu}"),
            );
        }
        is(at(&allocator.state.zones[2]), "views");
        is(at(allocator.state.pagesets_of(zone).foreign_stacks), "views");
        assert_eq!(shown(at(&allocator)), None);
        assert_eq!([0, usize::MAX].map(|address| allocator.part_at(address)), [None; 2]);
    }
}

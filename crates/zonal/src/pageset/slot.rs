//! Pageset slots: a slot holds the data of one pageset that the fast path needs, on one cache line.
//!
//! A CPU normally uses its pageset for its node's preferred zone (`zone/node.rs`). While the full bit of that zone
//! is set, the CPU uses its pageset of the serving zone instead (`alloc/route.rs`). [`PagesetSlots`] records for
//! each CPU the pageset from which it pops and to which it pushes single frames. A stale record is harmless, because it
//! refers to a pageset of the same CPU. Slots hold pointers, so they are valid in one process only. Related files:
//! `alloc/mod.rs` uses the slots, through `platform/cpu_local.rs`.

use core::sync::atomic::Ordering::Relaxed;

use crate::metadata::arena::{Arena, Measure};
use crate::pageset::PagesetGuard;
use crate::pageset::state::MachineState;
use crate::platform::pageset_slot::{Head, LockWord, PagesetSlot, PagesetSlots};
use crate::platform::{Atomic, Platform};
use crate::units::{CpuId, Pfn, ZoneId, ZoneKind};
use crate::zone::{CpuInfo, Zone};

/// Maximum number of slots; this many occupy 4 MiB. If CPUs times zones is larger, each CPU has only a slot for its
/// preferred zone, and its fast path never uses another pageset.
const SLOTS_MAX: usize = 1 << 16;

/// Returns the number of slots that each CPU has.
const fn slots_of_each(cpus: usize, zones: usize) -> usize {
    if cpus.saturating_mul(zones) <= SLOTS_MAX { zones } else { 1 }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Adds the size of the slots that [`Self::make_slots`] allocates.
    pub(crate) fn measure_slots(measure: &mut Measure, cpu_ids: usize, cpus: usize, zones: usize) {
        measure.add::<P::U64>(cpu_ids.max(1));
        measure.add::<PagesetSlot<'_, P>>(1 + cpus * slots_of_each(cpus, zones));
    }

    /// Creates the slots of all CPUs, and opens their heads if the allocator is new, rather than joined by a further process.
    ///
    /// CPU ids that the machine does not have use `null_slot`. All CPUs use it if hardening or fault injection requires more work for every frame than a check of its state.
    pub(crate) fn make_slots(&mut self, arena: &mut Arena<'m>, null_slot: &'m Head<P>, is_new: bool) {
        null_slot.lock_word.store(LockWord::LOCKED.bits(), Relaxed); // relaxed: the allocator is not shared yet
        let null_slot = PagesetSlot {
            head: null_slot,
            slots_at: 0,
            slots: &[],
            states: &[],
            base: Pfn::default(),
            zone: ZoneId::from_index(0),
            node: self.nodes[0].id,
            kind: ZoneKind::Movable,
            is_own: false,
        };
        let existing = || self.cpus.iter().copied().filter(CpuInfo::exists);
        let (cpus, zones) = (existing().count(), self.zones.len());
        let of_each = slots_of_each(cpus, zones);
        let current = arena.u64s::<P>(self.cpus.len().max(1));
        let mut each_cpu = existing().flat_map(|cpu| core::iter::repeat_n(cpu, of_each));
        let mut slot = |at: usize| {
            let (cpu, zone) = (each_cpu.next()?, at % of_each);
            let zone = if of_each == zones { zone } else { self.first_preferred(cpu)? };
            let (zone, pagesets) = (&self.zones[zone], &self.pagesets[zone]);
            let (slots, shape) = pagesets.stacks(cpu);
            let slots = &slots[..shape.capacity().get() as usize];
            let slot = PagesetSlot {
                head: &pagesets.of(cpu).head,
                slots_at: slots.as_ptr().expose_provenance(),
                slots,
                states: zone.frames.states_and_holders,
                base: zone.base,
                zone: zone.id,
                node: zone.node_id,
                kind: zone.kind,
                is_own: zone.is_own(cpu),
            };
            if is_new {
                debug_assert!(!pagesets.of(cpu).was_used(), "a session has set the head up already");
                slot.head.prepare(slot.slots.len() as u32);
            }
            Some(slot).filter(|_| self.is_plain()) // hardening and faults require more work for every frame
        };
        let table =
            arena.values(1 + cpus * of_each, |at| at.checked_sub(1).and_then(&mut slot).unwrap_or(null_slot));
        let first_cpu = self.ids_of(self.process).start as u32;
        let current = &current[..self.ids_of(self.process).len().max(1)];
        self.slots = PagesetSlots::new(table, current, first_cpu, of_each);
        for cpu in (0..current.len()).map(|cpu| CpuId::new(first_cpu + cpu as u32)) {
            self.slots.set(cpu, self.slots.null_slot());
            if let Some(cpu) = self.cpu_info(cpu)
                && let Some(zone) = self.first_preferred(cpu)
                && let Some(slot) = self.slots.at(cpu.index, ZoneId::from_index(zone))
            {
                self.slots.set(cpu.id, slot);
            }
        }
    }

    /// Returns the preferred zone of a CPU. While no zone has memory, returns the zone that may become the preferred
    /// zone.
    fn first_preferred(&self, cpu: CpuInfo) -> Option<usize> {
        let node = usize::from(cpu.node);
        let own_highest = || self.zones_by_preference(node).next().map(|zone| zone.id.index());
        self.nodes[node].preferred_zone().or_else(own_highest)
    }

    /// Makes a CPU use its pageset of `zone` for single frames from now on.
    pub(crate) fn use_pageset(&self, zone: &Zone<'m, P>, _guard: &PagesetGuard<'_, P>, cpu: CpuInfo) {
        if let Some(slot) = self.slots.at(cpu.index, zone.id) {
            self.slots.set(cpu.id, slot);
        }
    }

    /// Returns the slot that a CPU uses, if the slot belongs to `zone`.
    pub(crate) fn slot_of(&self, zone: &Zone<'m, P>, cpu: CpuInfo) -> Option<&'m PagesetSlot<'m, P>> {
        self.slots.of(cpu.id).filter(|slot| slot.zone == zone.id && slot.slots_at != 0)
    }

    /// Whether a CPU pops and pushes single frames through its pageset of `zone`.
    pub(crate) fn uses(&self, zone: &Zone<'m, P>, cpu: CpuInfo) -> bool {
        self.slot_of(zone, cpu).is_some()
    }

    /// Whether a CPU uses a pageset of a zone that is not its preferred zone.
    pub(crate) fn is_served_elsewhere(&self, cpu: CpuInfo) -> bool {
        self.nodes[usize::from(cpu.node)]
            .preferred_zone()
            .is_some_and(|slot| !self.uses(&self.zones[slot], cpu))
    }

    /// Makes a CPU use its pageset of its preferred zone again.
    pub(crate) fn serve_from_preferred(&self, cpu: CpuInfo) {
        let slot = self.nodes[usize::from(cpu.node)].preferred_zone();
        let slot = slot.and_then(|zone| self.slots.at(cpu.index, ZoneId::from_index(zone)));
        // Without such a slot, the CPU uses the null slot, the first of the table. The table is empty while the allocator
        // starts.
        if let Some(slot) = slot.or(self.slots.table().first()) {
            self.slots.set(cpu.id, slot);
        }
    }

    /// Calls [`Self::serve_from_preferred`] for all CPUs of the node with index `place`, if one of them may use another
    /// zone's pageset.
    pub(crate) fn recall_cpus(&self, place: usize) {
        let elsewhere = &self.nodes[place].own.served_elsewhere.0;
        // Relaxed: a hint.
        if elsewhere.load(Relaxed) != 0 && elsewhere.swap(0, Relaxed) != 0 {
            let cpus = self.local_cpus().filter(|cpu| usize::from(cpu.node) == place);
            cpus.for_each(|&cpu| self.serve_from_preferred(cpu));
        }
    }
}

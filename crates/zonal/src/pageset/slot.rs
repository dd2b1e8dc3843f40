//! What the fast path needs of the pageset that a CPU uses now, side by side on one cache line.
//!
//! A CPU's *home* is its pageset of the home zone of its node (`node.rs`). While that zone is full and
//! marked so, the pageset of the zone that serves instead stands in: the CPU is *away*
//! (`past_full.rs`). [`PagesetSlots`] says for each CPU which of its pagesets single frames come from and
//! go to; a stale answer is as good as one of a moment earlier, for it names a pageset of the same CPU.
//! Views for this process, like all that holds pointers. Neighbours: `alloc.rs`, `free.rs`,
//! `cpu_local.rs`.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::metadata::arena::{Arena, Measure};
use crate::pageset::state::MachineState;
use crate::pageset::{PagesetGuard, ZonePagesets};
use crate::platform::pageset_slot::{Head, LOCKED, PagesetSlot, PagesetSlots, UNINIT};
use crate::platform::{Atomic, Platform};
use crate::units::{CpuId, Pfn, ZoneId};
use crate::zone::{CpuInfo, Zone};

/// Homes at most, 4 MiB of them. Where CPUs times zones are more, each CPU has that of its home zone
/// only, and is never away.
const SLOTS_MAX: usize = 1 << 16;

/// Homes of each CPU.
const fn slots_of_each(cpus: usize, zones: usize) -> usize {
    if cpus.saturating_mul(zones) <= SLOTS_MAX { zones } else { 1 }
}

/// Adds what [`Allocator::make_slots`] will carve.
pub(crate) fn measure_slots<P: Platform>(measure: &mut Measure, cpus: usize, zones: usize) {
    measure.add::<P::U64>(cpus.max(1));
    measure.add::<PagesetSlot<'_, P>>(1 + cpus * slots_of_each(cpus, zones));
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Makes the homes of all CPUs. CPUs that the machine does not have are `nowhere`, and so are all
    /// where each frame needs more than a check of its state on its way.
    pub(crate) fn make_slots(&mut self, arena: &mut Arena<'m>, nowhere: &'m Head<P>, plain: bool) {
        nowhere.lock_word.store(LOCKED, Relaxed); // relaxed: nobody else knows the allocator yet
        let nowhere = PagesetSlot {
            head: nowhere,
            slots_at: 0,
            slots: &[],
            states: &[],
            base: Pfn::default(),
            zone: ZoneId::from_index(0),
            node: self.nodes[0].id,
        };
        let (cpus, zones) = (self.cpus.len(), self.zones.len());
        let of_each = slots_of_each(cpus, zones);
        let current = arena.u64s::<P>(cpus.max(1));
        let slot = |at: usize| {
            let (cpu, zone) = (at / of_each, at % of_each);
            let cpu = self.cpu_info(CpuId::new(cpu as u32)).filter(|_| plain)?;
            let zone = if of_each == zones { zone } else { self.first_preferred(cpu)? };
            Some(slot_for(&self.zones[zone], &self.pagesets[zone], cpu))
        };
        let table =
            arena.values(1 + cpus * of_each, |at| at.checked_sub(1).and_then(slot).unwrap_or(nowhere));
        self.slots = PagesetSlots { table, current, of_each };
        for cpu in (0..current.len()).map(|cpu| CpuId::new(cpu as u32)) {
            self.slots.set(cpu, self.slots.nowhere());
            if let Some(cpu) = self.cpu_info(cpu).filter(|_| plain)
                && let Some(zone) = self.first_preferred(cpu)
            {
                self.use_first(&self.zones[zone], cpu);
            }
        }
    }

    /// The home zone of the CPU at `cpu`, or while there is no memory at all the one that may become so.
    fn first_preferred(&self, cpu: CpuInfo) -> Option<usize> {
        let node = usize::from(cpu.node);
        let own_highest = || self.zones_by_preference(node).next().map(|zone| zone.id.index());
        self.nodes[node].preferred_zone().or_else(own_highest)
    }

    /// Readies a pageset and has its CPU use it.
    fn use_first(&self, zone: &Zone<'m, P>, cpu: CpuInfo) {
        let pageset = self.pagesets_of(zone).of(cpu);
        let lock_word = pageset.head.lock_word.swap(LOCKED, Relaxed); // relaxed: nobody else knows it yet
        let guard = PagesetGuard::new(pageset, self.pagesets_of(zone).stacks(cpu), lock_word);
        self.use_pageset(zone, &guard, cpu);
    }

    /// Has the CPU at `cpu` use this pageset of its own for single frames from now on.
    pub(crate) fn use_pageset(&self, zone: &Zone<'m, P>, _guard: &PagesetGuard<'_, P>, cpu: CpuInfo) {
        if let Some(slot) = self.slots.at(cpu.id, zone.id) {
            self.slots.set(cpu.id, slot);
        }
    }

    /// The slot that the CPU at `cpu` uses, if it is that of `zone`.
    #[inline]
    pub(crate) fn slot_of(&self, zone: &Zone<'m, P>, cpu: CpuInfo) -> Option<&'m PagesetSlot<'m, P>> {
        self.slots.of(cpu.id).filter(|slot| slot.zone == zone.id && slot.slots_at != 0)
    }

    /// Whether single frames of the CPU at `cpu` come from and go to its pageset of `zone`.
    #[inline]
    pub(crate) fn uses(&self, zone: &Zone<'m, P>, cpu: CpuInfo) -> bool {
        self.slot_of(zone, cpu).is_some()
    }

    /// Whether the CPU at `cpu` uses another pageset than that of its home zone.
    pub(crate) fn is_served_elsewhere(&self, cpu: CpuInfo) -> bool {
        self.nodes[usize::from(cpu.node)]
            .preferred_zone()
            .is_some_and(|slot| !self.uses(&self.zones[slot], cpu))
    }

    /// Has the CPU at `cpu` look at its home zone first again.
    pub(crate) fn serve_from_preferred(&self, cpu: CpuInfo) {
        let slot = self.nodes[usize::from(cpu.node)].preferred_zone();
        let slot = slot.and_then(|zone| self.slots.at(cpu.id, ZoneId::from_index(zone)));
        // Acquire pairs with the release that opened the gate.
        let slot = slot.filter(|slot| slot.head.lock_word.load(Acquire) != UNINIT);
        // There are none yet while the allocator starts.
        if let Some(slot) = slot.or(self.slots.table.first()) {
            self.slots.set(cpu.id, slot);
        }
    }

    /// [`Self::recall_cpus`] for all nodes.
    pub(crate) fn recall_all_cpus(&self) {
        (0..self.nodes.len()).for_each(|place| self.recall_cpus(place));
    }

    /// [`Self::serve_from_preferred`] for all CPUs of the node at a place, if any of them is away.
    pub(super) fn recall_cpus(&self, place: usize) {
        if self.nodes[place].end_served_elsewhere() {
            let cpus = self.cpus.iter().filter(|cpu| usize::from(cpu.node) == place);
            cpus.for_each(|&cpu| self.serve_from_preferred(cpu));
        }
    }
}

fn slot_for<'m, P: Platform>(
    zone: &Zone<'m, P>,
    pagesets: &ZonePagesets<'m, P>,
    cpu: CpuInfo,
) -> PagesetSlot<'m, P> {
    let (slots, shape) = pagesets.stacks(cpu);
    let slots = &slots[..shape.capacity().get() as usize];
    PagesetSlot {
        head: &pagesets.of(cpu).head,
        slots_at: slots.as_ptr().expose_provenance(),
        slots,
        states: zone.frames.states(),
        base: zone.base,
        zone: zone.id,
        node: zone.node_id,
    }
}

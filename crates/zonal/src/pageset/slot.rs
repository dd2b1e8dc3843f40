//! What the fast path needs of the pageset that a CPU uses now, side by side on one cache line.
//!
//! A CPU's *home* is its pageset of the home zone of its node (`node.rs`). While that zone is full and
//! marked so, the pageset of the zone that serves instead stands in: the CPU is *away*
//! (`past_full.rs`). [`Homes`] says for each CPU which of its pagesets single frames come from and
//! go to; a stale answer is as good as one of a moment earlier, for it names a pageset of the same CPU.
//! Views for this process, like all that holds pointers. Neighbours: `alloc.rs`, `free.rs`,
//! `cpu_local.rs`.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::metadata::arena::{Carver, Measure};
use crate::pageset::state::MachineState;
use crate::pageset::{PagesetGuard, ZonePagesets};
use crate::platform::pageset_slot::{Head, Home, Homes, SHUT, VIRGIN};
use crate::platform::{Atomic, Platform};
use crate::units::{CpuId, Pfn, ZoneId};
use crate::zone::{Seat, Zone};

/// Homes at most, 4 MiB of them. Where CPUs times zones are more, each CPU has that of its home zone
/// only, and is never away.
const HOMES_MAX: usize = 1 << 16;

/// Homes of each CPU.
const fn homes_of_each(cpus: usize, zones: usize) -> usize {
    if cpus.saturating_mul(zones) <= HOMES_MAX { zones } else { 1 }
}

/// Adds what [`Allocator::make_homes`] will carve.
pub(crate) fn measure_homes<P: Platform>(measure: &mut Measure, cpus: usize, zones: usize) {
    measure.add::<P::U64>(cpus.max(1));
    measure.add::<Home<'_, P>>(1 + cpus * homes_of_each(cpus, zones));
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Makes the homes of all CPUs. CPUs that the machine does not have are `nowhere`, and so are all
    /// where each frame needs more than a check of its state on its way.
    pub(crate) fn make_homes(&mut self, carver: &mut Carver<'m>, nowhere: &'m Head<P>, plain: bool) {
        nowhere.gate.store(SHUT, Relaxed); // relaxed: nobody else knows the allocator yet
        let nowhere = Home {
            head: nowhere,
            slots_at: 0,
            slots: &[],
            states: &[],
            base: Pfn::default(),
            zone: ZoneId::from_index(0),
            node: self.nodes[0].id,
        };
        let (cpus, zones) = (self.seats.len(), self.zones.len());
        let of_each = homes_of_each(cpus, zones);
        let current = carver.u64s::<P>(cpus.max(1));
        let home = |at: usize| {
            let (cpu, zone) = (at / of_each, at % of_each);
            let seat = self.seat(CpuId::new(cpu as u32)).filter(|_| plain)?;
            let zone = if of_each == zones { zone } else { self.first_home(seat)? };
            Some(home_of(&self.zones[zone], &self.pagesets[zone], seat))
        };
        let table =
            carver.values(1 + cpus * of_each, |at| at.checked_sub(1).and_then(home).unwrap_or(nowhere));
        self.homes = Homes { table, current, of_each };
        for cpu in (0..current.len()).map(|cpu| CpuId::new(cpu as u32)) {
            self.homes.set(cpu, self.homes.nowhere());
            if let Some(seat) = self.seat(cpu).filter(|_| plain)
                && let Some(zone) = self.first_home(seat)
            {
                self.use_first(&self.zones[zone], seat);
            }
        }
    }

    /// The home zone of the CPU at `seat`, or while there is no memory at all the one that may become so.
    fn first_home(&self, seat: Seat) -> Option<usize> {
        let node = usize::from(seat.node);
        let own_highest = || self.zones_by_preference(node).next().map(|zone| zone.id.index());
        self.nodes[node].home().or_else(own_highest)
    }

    /// Readies a pageset and has its CPU use it.
    fn use_first(&self, zone: &Zone<'m, P>, seat: Seat) {
        let pageset = self.pagesets_of(zone).of(seat);
        let gate = pageset.head.gate.swap(SHUT, Relaxed); // relaxed: nobody else knows it yet
        let guard = PagesetGuard::new(pageset, self.pagesets_of(zone).stacks(seat), gate);
        self.use_pageset(zone, &guard, seat);
    }

    /// Has the CPU at `seat` use this pageset of its own for single frames from now on.
    pub(crate) fn use_pageset(&self, zone: &Zone<'m, P>, _guard: &PagesetGuard<'_, P>, seat: Seat) {
        if let Some(home) = self.homes.at(seat.cpu, zone.id) {
            self.homes.set(seat.cpu, home);
        }
    }

    /// The slot that the CPU at `seat` uses, if it is that of `zone`.
    #[inline]
    pub(crate) fn slot_of(&self, zone: &Zone<'m, P>, seat: Seat) -> Option<&'m Home<'m, P>> {
        self.homes.of(seat.cpu).filter(|slot| slot.zone == zone.id && slot.slots_at != 0)
    }

    /// Whether single frames of the CPU at `seat` come from and go to its pageset of `zone`.
    #[inline]
    pub(crate) fn uses(&self, zone: &Zone<'m, P>, seat: Seat) -> bool {
        self.slot_of(zone, seat).is_some()
    }

    /// Whether the CPU at `seat` uses another pageset than that of its home zone.
    pub(crate) fn is_away(&self, seat: Seat) -> bool {
        self.nodes[usize::from(seat.node)].home().is_some_and(|home| !self.uses(&self.zones[home], seat))
    }

    /// Has the CPU at `seat` look at its home zone first again.
    pub(crate) fn go_home(&self, seat: Seat) {
        let home = self.nodes[usize::from(seat.node)].home();
        let home = home.and_then(|zone| self.homes.at(seat.cpu, ZoneId::from_index(zone)));
        // Acquire pairs with the release that opened the gate.
        let home = home.filter(|home| home.head.gate.load(Acquire) != VIRGIN);
        // There are none yet while the allocator starts.
        if let Some(home) = home.or(self.homes.table.first()) {
            self.homes.set(seat.cpu, home);
        }
    }

    /// [`Self::call_home`] for all nodes.
    pub(crate) fn call_all_home(&self) {
        (0..self.nodes.len()).for_each(|place| self.call_home(place));
    }

    /// [`Self::go_home`] for all CPUs of the node at a place, if any of them is away.
    pub(super) fn call_home(&self, place: usize) {
        if self.nodes[place].end_absence() {
            let seats = self.seats.iter().filter(|seat| usize::from(seat.node) == place);
            seats.for_each(|&seat| self.go_home(seat));
        }
    }
}

fn home_of<'m, P: Platform>(zone: &Zone<'m, P>, pagesets: &ZonePagesets<'m, P>, seat: Seat) -> Home<'m, P> {
    let (slots, shape) = pagesets.stacks(seat);
    let slots = &slots[..shape.capacity().get() as usize];
    Home {
        head: &pagesets.of(seat).head,
        slots_at: slots.as_ptr().expose_provenance(),
        slots,
        states: zone.frames.states(),
        base: zone.base,
        zone: zone.id,
        node: zone.node_id,
    }
}

//! What the fast path needs of the pageset that a CPU uses now, side by side on one cache line.
//!
//! A CPU's *home* is its pageset of the home zone of its node (`node.rs`). While that zone is full and
//! marked so, the pageset of the zone that serves instead stands in: the CPU is *away*
//! (`past_full.rs`). [`Homes`] says for each CPU which of its pagesets single frames come from and
//! go to; a stale answer is as good as one of a moment earlier, for it names a pageset of the same CPU.
//! Views for this process, like all that holds pointers. Neighbours: `alloc.rs`, `free.rs`,
//! `cpu_local.rs`.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::Allocator;
use crate::metadata::arena::{Carver, Measure, copy_view};
use crate::pageset::PagesetGuard;
use crate::platform::cpu_local::{Head, SHUT, VIRGIN};
use crate::platform::{Atomic, Platform};
use crate::units::{CpuId, NodeId, Pfn, ZoneId};
use crate::zone::{Seat, Zone};

/// Homes at most, 4 MiB of them. Where CPUs times zones are more, each CPU has that of its home zone
/// only, and is never away.
const HOMES_MAX: usize = 1 << 16;

/// A CPU's pageset of one zone. For restartable sequences: `head` comes first, then `slots_at`.
#[repr(C, align(64))]
pub struct Home<'m, P: Platform> {
    /// What decides about the stack.
    pub head: &'m Head<P>,
    /// Address of the first of `slots`.
    pub slots_at: usize,
    /// The stack of single frames.
    pub slots: &'m [P::U32],
    /// States of the zone's frames, from `base`.
    pub(crate) states: &'m [P::U8],
    pub(crate) base: Pfn,
    pub(crate) zone: ZoneId,
    pub(crate) node: NodeId,
}

copy_view!(Home);

/// The homes of all CPUs, and which of them each CPU uses now.
///
/// Invariant: `current` holds addresses of homes in `table`, each of the CPU it stands for and of
/// a head that was used before.
pub struct Homes<'m, P: Platform> {
    /// The first leads nowhere: all takes and gives trip there.
    pub(crate) table: &'m [Home<'m, P>],
    /// By CPU id.
    pub(crate) current: &'m [P::U64],
    /// Homes of each CPU: one for each zone, or just one.
    pub(crate) of_each: usize,
}

copy_view!(Homes);

impl<'m, P: Platform> Homes<'m, P> {
    /// Before they are made.
    pub(crate) const NONE: Self = Self { table: &[], current: &[], of_each: 0 };

    /// Homes of each CPU.
    fn of_each(cpus: usize, zones: usize) -> usize {
        if cpus.saturating_mul(zones) <= HOMES_MAX { zones } else { 1 }
    }

    /// What [`Allocator::make_homes`] will carve.
    pub(crate) fn measure(measure: &mut Measure, cpus: usize, zones: usize) {
        measure.add::<P::U64>(cpus.max(1));
        measure.add::<Home<'m, P>>(1 + cpus * Self::of_each(cpus, zones));
    }

    /// By CPU id, for restartable sequences: the address of the [`Home`] that the CPU uses now. There
    /// is one at least.
    #[inline(always)]
    pub fn current(&self) -> &'m [P::U64] {
        self.current
    }

    /// The home that a CPU uses now; `None` for one that the machine does not have.
    #[inline(always)]
    pub fn of(&self, cpu: CpuId) -> Option<&'m Home<'m, P>> {
        let address = self.current.get(cpu.index())?.load(Acquire) as usize; // pairs with `set`
        self.table.get(address.wrapping_sub(self.table.as_ptr().addr()) / size_of::<Home<'m, P>>())
    }

    /// A home where everything trips.
    #[inline(always)]
    pub fn nowhere(&self) -> &'m Home<'m, P> {
        &self.table[0]
    }

    /// The home of a CPU for a zone, where there is one.
    fn at(&self, cpu: CpuId, zone: ZoneId) -> Option<&'m Home<'m, P>> {
        let at = if self.of_each == 1 { 0 } else { zone.index() };
        let home = self.table.get(1 + cpu.index() * self.of_each + at)?;
        (home.slots_at != 0 && home.zone == zone).then_some(home)
    }

    fn set(&self, cpu: CpuId, home: &'m Home<'m, P>) {
        let (cell, address) = (&self.current[cpu.index()], core::ptr::from_ref(home).expose_provenance());
        // Read before it is written to leave the line shared. Release: the head was used before.
        if cell.load(Relaxed) != address as u64 {
            cell.store(address as u64, Release);
        }
    }
}

impl<'m, P: Platform> Allocator<'m, P> {
    /// Makes the homes of all CPUs. CPUs that the machine does not have are `nowhere`, and so are all
    /// where each frame needs more than a check of its state on its way.
    pub(crate) fn make_homes(&mut self, carver: &mut Carver<'m>, nowhere: &'m Head<P>) {
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
        let of_each = Homes::<P>::of_each(cpus, zones);
        let current = carver.u64s::<P>(cpus.max(1));
        let plain = self.is_plain();
        let home = |at: usize| {
            let (cpu, zone) = (at / of_each, at % of_each);
            let seat = self.seat(CpuId::new(cpu as u32)).filter(|_| plain)?;
            let zone = if of_each == zones { zone } else { self.first_home(seat)? };
            Some(home_of(&self.zones[zone], seat))
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
        let pageset = &zone.pagesets[seat.cpu.index()];
        let gate = pageset.head.gate.swap(SHUT, Relaxed); // relaxed: nobody else knows it yet
        let guard = PagesetGuard::new(pageset, zone.stacks(seat), gate);
        self.use_pageset(zone, &guard, seat);
    }

    /// Has the CPU at `seat` use this pageset of its own for single frames from now on.
    pub(crate) fn use_pageset(&self, zone: &Zone<'m, P>, _guard: &PagesetGuard<'_, P>, seat: Seat) {
        if let Some(home) = self.homes.at(seat.cpu, zone.id) {
            self.homes.set(seat.cpu, home);
        }
    }

    /// Whether single frames of the CPU at `seat` come from and go to its pageset of `zone`.
    #[inline]
    pub(crate) fn uses(&self, zone: &Zone<'m, P>, seat: Seat) -> bool {
        self.homes.of(seat.cpu).is_some_and(|home| home.zone == zone.id && home.slots_at != 0)
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
    pub(crate) fn call_home(&self, place: usize) {
        if self.nodes[place].end_absence() {
            let seats = self.seats.iter().filter(|seat| usize::from(seat.node) == place);
            seats.for_each(|&seat| self.go_home(seat));
        }
    }
}

fn home_of<'m, P: Platform>(zone: &Zone<'m, P>, seat: Seat) -> Home<'m, P> {
    let (slots, shape) = zone.stacks(seat);
    let slots = &slots[..shape.capacity().get() as usize];
    Home {
        head: &zone.pagesets[seat.cpu.index()].head,
        slots_at: slots.as_ptr().expose_provenance(),
        slots,
        states: zone.frames.states(),
        base: zone.base,
        zone: zone.id,
        node: zone.node_id,
    }
}

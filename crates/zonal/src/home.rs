//! What the fast path needs of a CPU's home, side by side on one cache line.
//!
//! The *home* of a CPU is its pageset of the home zone of its node (`node.rs`), as it was when the
//! allocator was made; should another zone become the node's home later, takes trip here and
//! go the long way. Views for this process, like all that holds pointers. Neighbours: `alloc.rs`,
//! `free.rs`, `cpu_local.rs`.

use core::sync::atomic::Ordering::Relaxed;

use crate::Allocator;
use crate::carve::{Carver, copy_view};
use crate::cpu_local::{Head, SHUT};
use crate::pageset::PagesetGuard;
use crate::platform::{Atomic, Platform};
use crate::units::{CpuId, NodeId, Pfn, ZoneId};
use crate::zone::Seat;

/// A CPU's pageset of its home zone. For restartable sequences: `head` comes first, then `slots_at`.
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
    /// Whether the CPU is on the zone's node.
    pub(crate) is_own: bool,
}

copy_view!(Home);

impl<'m, P: Platform> Allocator<'m, P> {
    /// Makes the homes of all CPUs. CPUs that the machine does not have get one that always trips,
    /// `nowhere`, and so do all where each frame needs more than a check of its state on its way.
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
            is_own: true,
        };
        let plain = self.is_plain();
        self.homes = carver.values(self.seats.len().max(1), |cpu| {
            let seat = self.seat(CpuId::new(cpu as u32)).filter(|_| plain);
            seat.and_then(|seat| self.home(seat)).unwrap_or(nowhere)
        });
    }

    /// The home of the CPU at `seat`, ready for use.
    fn home(&self, seat: Seat) -> Option<Home<'m, P>> {
        let node = &self.nodes[usize::from(seat.node)];
        let own_highest = (node.first_zone + node.zone_count).checked_sub(1).filter(|_| node.zone_count > 0);
        let zone = &self.zones[node.home().or(own_highest)?];
        let (pageset, (slots, shape)) = (&zone.pagesets[seat.cpu.index()], zone.stacks(seat));
        let gate = pageset.head.gate.swap(SHUT, Relaxed); // relaxed: nobody else knows it yet
        drop(PagesetGuard::new(pageset, (slots, shape), gate));
        let slots = &slots[..shape.capacity().get() as usize];
        Some(Home {
            head: &pageset.head,
            slots_at: slots.as_ptr().expose_provenance(),
            slots,
            states: zone.frames.states(),
            base: zone.base,
            zone: zone.id,
            node: zone.node_id,
            is_own: zone.is_own(seat),
        })
    }
}

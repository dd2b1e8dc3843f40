//! Getting at pagesets: locking them, and how far their CPU may go without the lock.
//!
//! Takes and gives of single frames go through the head until they trip; what the limits stand for
//! is looked after here, whenever a pageset is let go: the stack's ends, `pageset.high`, depths that
//! would grow (M2), and counter differences that would exceed their threshold (M4). While depth
//! grows with every step, in a climb or a dive, steps in that direction are free and the first one
//! in the other trips: it tells how deep the run went. Neighbours: `cpu_local.rs` compares with the
//! limits, `pageset.rs` holds them.

use crate::pageset::depth_cells::{Leeway, Run};
use crate::pageset::state::MachineState;
use crate::pageset::{PagesetGuard, StackId};
use crate::platform::Platform;
use crate::platform::cpu_local::CpuLocal;
use crate::platform::pageset_word::Limits;
use crate::rules::pageset_limits::PagesetLimits;
use crate::rules::pageset_tuning::PagesetTuning;
use crate::zone::counters::CpuGuard;
use crate::zone::{Seat, Zone};

/// One pageset of a zone, locked, until dropped.
pub(crate) struct PagesetSession<'a, 'm, P: Platform> {
    pub(super) state: &'a MachineState<'m, P>,
    pub(crate) zone: &'a Zone<'m, P>,
    /// The CPU that the pageset is of.
    pub(crate) seat: Seat,
    guard: PagesetGuard<'a, P>,
}

impl<'a, P: Platform> core::ops::Deref for PagesetSession<'a, '_, P> {
    type Target = PagesetGuard<'a, P>;

    #[inline]
    fn deref(&self) -> &PagesetGuard<'a, P> {
        &self.guard
    }
}

impl<P: Platform> CpuGuard for PagesetSession<'_, '_, P> {}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Locks the pageset of the caller's CPU, at `seat`, unless it is locked or that CPU has none.
    #[inline]
    pub(crate) fn own_pageset<'a>(
        &'a self,
        zone: &'a Zone<'m, P>,
        seat: Seat,
    ) -> Option<PagesetSession<'a, 'm, P>> {
        if !seat.exists() {
            return None;
        }
        let gate = self.platform.cpu_local().lock(seat.cpu, &self.pagesets_of(zone).of(seat).head)?;
        Some(PagesetSession::of_locked(self, zone, seat, gate))
    }

    /// Locks the pageset of the CPU at `seat`, which may be another than the caller's, unless
    /// somebody has it.
    pub(crate) fn try_pageset<'a>(
        &'a self,
        zone: &'a Zone<'m, P>,
        seat: Seat,
    ) -> Option<PagesetSession<'a, 'm, P>> {
        if seat.cpu == self.platform.current_cpu() {
            return self.own_pageset(zone, seat);
        }
        let gate = self.platform.cpu_local().lock_remote(seat.cpu, &self.pagesets_of(zone).of(seat).head)?;
        Some(PagesetSession::of_locked(self, zone, seat, gate))
    }

    /// Waits for the pageset of the CPU at `seat`. Not from within an allocation or a free: their
    /// context could be the one waited for.
    pub(crate) fn pageset<'a>(&'a self, zone: &'a Zone<'m, P>, seat: Seat) -> PagesetSession<'a, 'm, P> {
        let mut round = 0;
        loop {
            if let Some(guard) = self.try_pageset(zone, seat) {
                return guard;
            }
            self.platform.relax(round);
            round = round.saturating_add(1);
        }
    }
}

impl<'a, 'm, P: Platform> PagesetSession<'a, 'm, P> {
    /// The session of a pageset that was just locked and whose gate was `gate` before.
    #[inline]
    pub(super) fn of_locked(
        state: &'a MachineState<'m, P>,
        zone: &'a Zone<'m, P>,
        seat: Seat,
        gate: u64,
    ) -> Self {
        let pagesets = state.pagesets_of(zone);
        let guard = PagesetGuard::new(pagesets.of(seat), pagesets.stacks(seat), gate);
        PagesetSession { state, zone, seat, guard }
    }

    /// Whether the pageset's CPU is on the zone's node.
    #[inline]
    pub(crate) fn is_own(&self) -> bool {
        self.zone.is_own(self.seat)
    }

    /// The limits of the zone for pagesets of CPUs like this one.
    pub(super) fn zone_limits(&self) -> PagesetLimits {
        self.zone.pageset_limits(self.zone.locality(self.seat))
    }

    /// Sets how far the CPU may go without the lock; to be called before the session ends.
    pub(crate) fn update_limits(&self) {
        let tuning = self.state.shared.tuning();
        if self.is_closed() || tuning == PagesetTuning::Stepwise {
            return self.trip_always();
        }
        if !self.state.uses(self.zone, self.seat) {
            let node = &self.state.nodes[usize::from(self.seat.node)];
            if self.len(StackId::PAGES) == 0 || node.home() != Some(self.zone.id.index()) {
                return self.trip_always();
            }
            self.state.use_pageset(self.zone, self, self.seat); // those at home come first
        }
        let capacity = self.page_slots().len() as i64;
        // A give that fills the pageset up to `high` drains it.
        let full = self.room_at(self.high_now()) + 1;
        let (mut most, mut least) = (capacity, full.max(0));
        let (mut takes_trip, mut gives_trip) = (false, least > capacity);
        if tuning.follows_depth() {
            let Leeway { takes, gives } = self.depth().leeway(self);
            let room = i64::from(self.word().room());
            match self.run() {
                Run::Climb => gives_trip = true,
                Run::Dive => takes_trip = true,
                Run::None => {
                    most = most.min(room + i64::from(takes));
                    least = least.max(room - i64::from(gives));
                }
            }
        }
        let limits = Limits {
            room_most: most as u32,
            room_least: least.min(capacity) as u32,
            kinds: self.state.nodes[self.zone.node].counters.threshold(),
            home: self.served_leeway() as u8,
        };
        takes_trip |= most > capacity;
        gives_trip |= tuning.sees_every_free() || self.is_watched();
        self.set_limits(
            if takes_trip { Limits::TAKE_NONE } else { limits.for_takes() },
            if gives_trip { Limits::GIVE_NONE } else { limits.for_gives() },
        );
    }
}

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
use crate::rules::pageset_tuning::PagesetTuning;
use crate::zone::{Seat, Zone};

impl<'m, P: Platform> MachineState<'m, P> {
    /// Locks the pageset of the caller's CPU, at `seat`, unless it is locked or that CPU has none.
    #[inline]
    pub(crate) fn own_pageset<'a>(
        &'a self,
        zone: &'a Zone<'m, P>,
        seat: Seat,
    ) -> Option<PagesetGuard<'a, P>> {
        if !seat.exists() {
            return None;
        }
        let pageset = self.pagesets_of(zone).of(seat);
        let gate = self.platform.cpu_local().lock(seat.cpu, &pageset.head)?;
        Some(PagesetGuard::new(pageset, self.pagesets_of(zone).stacks(seat), gate))
    }

    /// Locks the pageset of the CPU at `seat`, which may be another than the caller's, unless
    /// somebody has it.
    pub(crate) fn try_pageset<'a>(
        &'a self,
        zone: &'a Zone<'m, P>,
        seat: Seat,
    ) -> Option<PagesetGuard<'a, P>> {
        if seat.cpu == self.platform.current_cpu() {
            return self.own_pageset(zone, seat);
        }
        let pageset = self.pagesets_of(zone).of(seat);
        let gate = self.platform.cpu_local().lock_remote(seat.cpu, &pageset.head)?;
        Some(PagesetGuard::new(pageset, self.pagesets_of(zone).stacks(seat), gate))
    }

    /// Waits for the pageset of the CPU at `seat`. Not from within an allocation or a free: their
    /// context could be the one waited for.
    pub(crate) fn pageset<'a>(&'a self, zone: &'a Zone<'m, P>, seat: Seat) -> PagesetGuard<'a, P> {
        let mut round = 0;
        loop {
            if let Some(guard) = self.try_pageset(zone, seat) {
                return guard;
            }
            self.platform.relax(round);
            round = round.saturating_add(1);
        }
    }

    /// Sets how far the CPU at `seat` may go without the lock; to be called before the guard goes.
    pub(crate) fn set_limits(&self, zone: &Zone<'m, P>, guard: &PagesetGuard<'_, P>, seat: Seat) {
        let tuning = self.shared.tuning();
        if guard.is_closed() || tuning == PagesetTuning::Stepwise {
            return guard.trip_always();
        }
        if guard.len(StackId::PAGES) != 0
            && self.nodes[usize::from(seat.node)].home() == Some(zone.id.index())
        {
            self.use_pageset(zone, guard, seat); // those at home come first
        } else if !self.uses(zone, seat) {
            return guard.trip_always();
        }
        let capacity = guard.page_slots().len() as i64;
        // A give that fills the pageset up to `high` drains it.
        let full = guard.room_at(self.high_now(zone, guard, seat)) + 1;
        let (mut most, mut least) = (capacity, full.max(0));
        let (mut takes_trip, mut gives_trip) = (false, least > capacity);
        if tuning.follows_depth() {
            let Leeway { takes, gives } = guard.depth().leeway(guard);
            let room = i64::from(guard.word().room());
            match guard.run() {
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
            kinds: self.nodes[zone.node].counters.threshold(),
            home: Self::served_leeway(zone, guard, seat) as u8,
        };
        takes_trip |= most > capacity;
        gives_trip |= tuning.sees_every_free() || guard.is_watched();
        guard.set_limits(
            if takes_trip { Limits::TAKE_NONE } else { limits.for_takes() },
            if gives_trip { Limits::GIVE_NONE } else { limits.for_gives() },
        );
    }
}

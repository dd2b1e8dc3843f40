//! Hotplug: brings CPUs and memory online and offline while allocation continues.
//!
//! Related files: after each change, `admin/settings.rs` recomputes the limits, and `admin/rebuild_zonelists.rs`
//! rebuilds the zonelists.

use core::sync::atomic::Ordering::Relaxed;

use crate::Allocator;
use crate::error::{OnlineError, ZoneSpan};
use crate::machine::FrameRange;
use crate::pageset::state::MachineState;
use crate::platform::{Atomic, Platform};
use crate::units::{CpuId, PageCount, Pfn};
use crate::zone::counters::ZoneItem;
use crate::zone::frame_states::FrameState;
use crate::zone::{CpuInfo, Zone};

impl<'m, P: Platform> Allocator<'m, P> {
    /// Brings a CPU online: opens its pagesets and updates limits and thresholds.
    ///
    /// # Errors
    /// Returns an error if the machine has no such CPU or the CPU is already online.
    pub fn online_cpu(&self, cpu: CpuId) -> Result<(), OnlineError> {
        let held = self.state.shared.change();
        let cpu = self.state.cpu_info(cpu).ok_or(OnlineError::UnknownCpu(cpu))?;
        if self.state.is_online(cpu) {
            return Err(OnlineError::CpuUnchanged(cpu.id));
        }
        // The thresholds are updated before the pagesets open, because they must account for the differences of the
        // new CPU.
        self.state.mark_cpu_online(cpu.id);
        self.apply_settings(&held);
        self.state.start_pagesets(cpu);
        Ok(())
    }

    /// Takes a CPU offline: drains its pagesets and folds its counters.
    ///
    /// Threads that still run on the CPU bypass the pagesets.
    ///
    /// # Errors
    /// Returns an error if the machine has no such CPU, or if the CPU is already offline or is the last CPU online.
    pub fn offline_cpu(&self, cpu: CpuId) -> Result<(), OnlineError> {
        let held = self.state.shared.change();
        let cpu = self.state.cpu_info(cpu).ok_or(OnlineError::UnknownCpu(cpu))?;
        if !self.state.is_online(cpu) {
            return Err(OnlineError::CpuUnchanged(cpu.id));
        }
        if self.state.online_cpus(None) == 1 {
            return Err(OnlineError::LastCpu(cpu.id));
        }
        self.state.cpus_online[cpu.id.index()].store(0, Relaxed); // relaxed: a hint, as in `mark_cpu_online`
        for zone in self.state.zones {
            let guard = self.state.pageset(zone, cpu);
            guard.close();
            guard.always_bail_out();
            guard.empty();
        }
        self.apply_settings(&held);
        Ok(())
    }

    /// Brings frames online that are offline or were never managed.
    ///
    /// `range` must be within the span of one zone and be *described as memory*: either managed when the allocator
    /// was created, or listed by [`Machine::with_hotplug`](crate::Machine::with_hotplug). All other frames within a
    /// span are holes (device registers, firmware or unused addresses) and cannot come online.
    ///
    /// # Errors
    /// Returns an error if the range is empty, or if one of its frames is outside the zone, in a hole or already
    /// online. The error names the range and the zones around it, or the frame. On error, no frame comes online.
    pub fn online_memory(&self, range: FrameRange) -> Result<(), OnlineError> {
        let held = self.state.shared.change();
        let zone = self.zone_around(&range)?;
        if let Some(frame) = self.first_not_memory(&range) {
            return Err(OnlineError::NeverDescribed { frame, range, zone: zone_span(zone) });
        }
        if let Some(frame) = first_frame(zone, &range, |state| state != FrameState::NotManaged) {
            return Err(OnlineError::AlreadyOnline(frame));
        }
        let was_empty = zone.managed() == PageCount::ZERO;
        self.add_frames(zone, &range);
        self.apply_settings(&held);
        if was_empty {
            self.rebuild_lists(&held);
        }
        Ok(())
    }

    /// Takes frames offline, all of which must be free.
    ///
    /// The function first drains the pagesets of the zone.
    ///
    /// # Errors
    /// Returns an error if `range` is empty or not within one zone, or if one of its frames is not online. If frames
    /// are in use, the error contains their number. On error, all frames stay online.
    pub fn offline_memory(&self, range: FrameRange) -> Result<(), OnlineError> {
        let held = self.state.shared.change();
        let zone = self.zone_around(&range)?;
        if let Some(frame) = first_frame(zone, &range, |state| state == FrameState::NotManaged) {
            return Err(OnlineError::NotOnline(frame));
        }
        self.state.drain_zone(zone);
        self.state.remove_frames(zone, &range)?;
        zone.frames.remove_managed(zone.offset(range.start), range.count.get());
        self.apply_settings(&held);
        if zone.managed() == PageCount::ZERO {
            self.rebuild_lists(&held);
        }
        Ok(())
    }

    /// Returns how many frames of `range` are online; the range need not be within one zone.
    ///
    /// The result is exact if no memory goes online or offline during the call.
    #[must_use]
    pub fn online_frames(&self, range: FrameRange) -> PageCount {
        let (start, end) = (range.start.get(), range.start.get().saturating_add(range.count.get()));
        let of_zone = |zone: &Zone<'_, P>| {
            let within = start.max(zone.span.start.get())..end.min(zone.span.end().get());
            let state = |frame| zone.frames.state(zone.offset(Pfn::new(frame)));
            within.filter(|&frame| state(frame) != FrameState::NotManaged).count() as u64
        };
        PageCount::new(self.state.zones.iter().map(of_zone).sum())
    }

    /// Returns the zone whose span contains all of a range.
    pub(crate) fn zone_around(&self, range: &FrameRange) -> Result<&'m Zone<'m, P>, OnlineError> {
        if range.count == PageCount::ZERO {
            return Err(OnlineError::EmptyRange(range.start));
        }
        let zone = self.zone_of(range.start).map(|zone| &self.state.zones[zone.id.index()]);
        zone.filter(|zone| zone.span.contains(range)).ok_or_else(|| self.not_in_one_zone(range))
    }

    #[cold]
    fn not_in_one_zone(&self, range: &FrameRange) -> OnlineError {
        let above = self.starts.partition_point(|&(start, _)| start <= range.start);
        let at = |place: usize| {
            self.starts.get(place).map(|&(_, zone)| zone_span(&self.state.zones[usize::from(zone)]))
        };
        OnlineError::NotInOneZone {
            range: *range,
            below: above.checked_sub(1).and_then(at),
            above: at(above),
        }
    }

    /// Returns the first frame of a range that was never described as memory.
    fn first_not_memory(&self, range: &FrameRange) -> Option<Pfn> {
        let mut from = range.start;
        while from < range.end() {
            let after = self.memory.partition_point(|&(start, _)| start <= from);
            let around = after.checked_sub(1).map(|at| self.memory[at]);
            match around.map(|(start, count)| start.plus(count)).filter(|&end| end > from) {
                Some(end) => from = end,
                None => return Some(from),
            }
        }
        None
    }

    /// Adds frames, which must not be managed yet, to the managed and free frames of a zone.
    pub(crate) fn add_frames(&self, zone: &Zone<'_, P>, range: &FrameRange) {
        let count = range.count.get();
        if let Some(poison) = self.hardening.poison
            && let Some(contents) = self.state.platform.contents()
        {
            contents.fill(range.start, range.count, poison);
        }
        zone.frames.add_managed(zone.offset(range.start), count);
        let added = zone.free_areas.add_range(zone.offset(range.start), count);
        assert!(added, "frames that come online at {} are free already", range.start);
        // Relaxed: the lock for run-time changes serialises all writers.
        zone.cells.rules.0.managed.fetch_add(count, Relaxed);
        zone.counters().add_total(ZoneItem::Free, count as i64);
    }
}

/// Returns the first frame of `range` with a state for which `is_wanted` returns `true`.
fn first_frame<P: Platform>(
    zone: &Zone<'_, P>,
    range: &FrameRange,
    is_wanted: impl Fn(FrameState) -> bool,
) -> Option<Pfn> {
    let frames = range.start.get()..range.end().get();
    frames.map(Pfn::new).find(|&frame| is_wanted(zone.frames.state(zone.offset(frame))))
}

fn zone_span<P: Platform>(zone: &Zone<'_, P>) -> ZoneSpan {
    ZoneSpan { node: zone.node_id, kind: zone.kind, span: zone.span }
}

impl<'m, P: Platform> MachineState<'m, P> {
    pub(crate) fn mark_cpu_online(&self, cpu: CpuId) {
        // Relaxed: the flag is only a hint to other CPUs, because pagesets are opened and closed under their locks.
        self.cpus_online[cpu.index()].store(1, Relaxed);
    }

    /// Removes free frames from the buddy, or none if any frame of the range is in use.
    fn remove_frames(&self, zone: &Zone<'_, P>, range: &FrameRange) -> Result<(), OnlineError> {
        let (first, count) = (zone.offset(range.start), range.count.get());
        let changed = |change| zone.counters().add_total(ZoneItem::Free, change);
        if !zone.free_areas.alloc_steps(first, count, changed) {
            let free = zone.free_areas.count_free(first, count);
            let in_use = PageCount::new(count.saturating_sub(free).max(1));
            return Err(OnlineError::InUse { start: range.start, in_use });
        }
        // Relaxed: the lock for run-time changes serialises all writers.
        zone.cells.rules.0.managed.fetch_add(count.wrapping_neg(), Relaxed);
        Ok(())
    }

    /// Opens the pagesets of a CPU with `high` at the lower limit.
    fn start_pagesets(&self, cpu: CpuInfo) {
        for zone in self.zones {
            let guard = self.pageset(zone, cpu);
            guard.open();
            guard.restart_tuning();
        }
    }
}

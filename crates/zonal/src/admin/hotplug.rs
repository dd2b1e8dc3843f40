//! Hotplug: brings CPUs and memory online and offline while allocation continues.
//!
//! Related files: `ranges/fences.rs` takes fenced memory offline. After each change, `admin/settings.rs` recomputes
//! the limits, and `admin/rebuild_zonelists.rs` rebuilds the zonelists.

use core::sync::atomic::Ordering::Relaxed;

use crate::Allocator;
use crate::config::Config;
use crate::error::{ConfigError, OnlineError, UsedFrames, ZoneSpan};
use crate::machine::{FrameRange, Machine};
use crate::pageset::state::MachineState;
use crate::platform::{Atomic, Platform};
use crate::settings::Setting;
use crate::units::{CpuId, PageCount, Pfn};
use crate::zone::frame_state::FrameState;
use crate::zone::processes::Holders;
use crate::zone::{CpuInfo, Zone};

impl<'m, P: Platform> Allocator<'m, P> {
    /// Brings a CPU online: opens its pagesets and updates limits and thresholds.
    ///
    /// # Errors
    /// Returns an error if the machine has no such CPU or the CPU is already online, or processes share the allocator.
    pub fn online_cpu(&self, cpu: CpuId) -> Result<(), OnlineError> {
        self.state.check_unshared()?;
        let held = self.state.lock_changes();
        let cpu = self.state.cpu_info(cpu).ok_or(OnlineError::UnknownCpu(cpu))?;
        if self.state.is_online(cpu) {
            return Err(OnlineError::CpuUnchanged(cpu.id));
        }
        // The thresholds are updated before the pagesets open, because they must account for the differences of the
        // new CPU.
        self.state.mark_cpu_online(cpu.id);
        self.state.apply_settings(&held);
        self.state.start_pagesets(cpu);
        Ok(())
    }

    /// Takes a CPU offline: drains its pagesets and folds its counters.
    ///
    /// Threads that still run on the CPU bypass the pagesets.
    ///
    /// # Errors
    /// Returns an error if the machine has no such CPU, or if the CPU is already offline or is the last CPU online, or if processes
    /// share the allocator.
    pub fn offline_cpu(&self, cpu: CpuId) -> Result<(), OnlineError> {
        self.state.check_unshared()?;
        let held = self.state.lock_changes();
        let cpu = self.state.cpu_info(cpu).ok_or(OnlineError::UnknownCpu(cpu))?;
        if !self.state.is_online(cpu) {
            return Err(OnlineError::CpuUnchanged(cpu.id));
        }
        if self.state.online_cpus(None) == 1 {
            return Err(OnlineError::LastCpu(cpu.id));
        }
        self.state.cpus_online[cpu.id.index()].store(0, Relaxed); // relaxed: a hint, as in `mark_cpu_online`
        for zone in self.state.zones {
            self.state.close_pageset(zone, cpu);
        }
        self.state.finish_frees(cpu);
        self.state.apply_settings(&held);
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
    /// online. The error names the range and the zones around it, or the frame. Also if processes share the allocator. On error, no frame
    /// comes online.
    pub fn online_memory(&self, range: FrameRange) -> Result<(), OnlineError> {
        self.state.check_unshared()?;
        let held = self.state.lock_changes();
        let zone = self.state.zone_around(&range)?;
        let mut frame = range.start;
        while frame < range.end() {
            let after = self.state.memory.partition_point(|&(start, _)| start <= frame);
            let around = after.checked_sub(1).map(|at| self.state.memory[at]);
            let Some(end) = around.map(|(start, count)| start.plus(count)).filter(|&end| end > frame) else {
                return Err(OnlineError::NeverDescribed { frame, range, zone: zone_span(zone) });
            };
            frame = end;
        }
        let is_online = |&frame: &Pfn| zone.frames.state(zone.offset(frame)) != FrameState::NotManaged;
        if let Some(frame) = (range.start.get()..range.end().get()).map(Pfn::new).find(is_online) {
            return Err(OnlineError::AlreadyOnline(frame));
        }
        let was_empty = zone.managed() == PageCount::ZERO;
        self.state.add_frames(zone, &range);
        self.state.apply_settings(&held);
        if was_empty {
            self.state.rebuild_lists(&held);
        }
        Ok(())
    }

    /// Takes frames offline, all of which must be free or retired.
    ///
    /// The function first drains the pagesets of the zone. It calls no reclaimer;
    /// [`Allocator::offline_memory_with`] does.
    ///
    /// # Errors
    /// Returns an error if `range` is empty or not within one zone, if one of its frames is not online, or if the range
    /// overlaps a fence. If frames are in use, the error contains their number and the first of their blocks, and
    /// [`Allocator::for_each_used`] lists them all. On error, all frames stay online.
    pub fn offline_memory(&self, range: FrameRange) -> Result<(), OnlineError> {
        self.fence(range)?.leave()
    }

    /// Takes frames offline after it has emptied the range: frees the frames of reclaimers, and calls `mover` for each
    /// block or run that is then still in use.
    ///
    /// `mover` moves the contents elsewhere and frees the frames, or leaves them; see
    /// [`Fence::vacate`](crate::Fence::vacate). Frames of the range that are freed meanwhile are not allocated again. Linux:
    /// `offline_pages`.
    ///
    /// ```
    /// # use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
    /// # use zonal::platform::one_thread::OneThread;
    /// # use zonal::units::{CpuId, NodeId, Order, PageCount, Pfn, ZoneKind};
    /// # use zonal::{Allocator, Buffer, Config, Machine, Request};
    /// # let id = NodeId::new(0).unwrap();
    /// # let memory = FrameRange { start: Pfn::new(0x1000), count: PageCount::new(0x4000) };
    /// # let nodes = [NodeDescription { id, cpus: &[CpuId::new(0)], distances: &[10] }];
    /// # let zones = [ZoneDescription { node: id, kind: ZoneKind::Normal, span: memory, managed: &[memory] }];
    /// # let machine = Machine::new(&nodes, &zones)?;
    /// # let metadata = |bytes| Buffer::uninit(Box::leak(vec![std::mem::MaybeUninit::uninit(); bytes].into_boxed_slice()));
    /// # let allocator = Allocator::new(OneThread::new(), &machine, &Config::default(), |r| Some(metadata(r.bytes)))?;
    /// let mut page = allocator.alloc(&Request::page())?.first; // the only reference to this frame
    /// let leaves = FrameRange { start: page, count: PageCount::new(64) };
    /// allocator.offline_memory_with(leaves, |used| {
    ///     assert_eq!(used.block.start, page);
    ///     let new = allocator.alloc(&Request::page()).expect("there is memory elsewhere");
    ///     // Here the contents of the frame are copied.
    ///     page = new.first;
    ///     allocator.free(used.block.start, Order::PAGE).expect("it was allocated");
    /// })?;
    /// assert!(page < leaves.start || page >= leaves.end());
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`Allocator::offline_memory`].
    pub fn offline_memory_with(
        &self,
        range: FrameRange,
        mover: impl FnMut(UsedFrames),
    ) -> Result<(), OnlineError> {
        let fence = self.fence(range)?;
        fence.vacate(mover);
        fence.leave()
    }

    /// Returns how many frames of `range` are online; the range need not be within one zone.
    ///
    /// The result is exact if no memory goes online or offline during the call.
    #[must_use]
    pub fn online_frames(&self, range: FrameRange) -> PageCount {
        let of_zone = |zone: &Zone<'_, P>| {
            let within = range.intersection(&zone.span)?;
            Some(zone.frames.count_managed(zone.offset(within.start), within.count.get()))
        };
        PageCount::new(self.state.zones.iter().filter_map(of_zone).sum())
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Refuses a change of CPUs or memory if processes share the allocator: a process could die in its middle.
    pub(crate) fn check_unshared(&self) -> Result<(), OnlineError> {
        if self.process == 0 { Ok(()) } else { Err(OnlineError::Shared) }
    }

    /// Returns the zone whose span contains all of a range.
    pub(crate) fn zone_around(&self, range: &FrameRange) -> Result<&'m Zone<'m, P>, OnlineError> {
        if range.count == PageCount::ZERO {
            return Err(OnlineError::EmptyRange(range.start));
        }
        let zone = self.zone_of(range.start).map(|zone| &self.zones[zone.id.index()]);
        if let Some(zone) = zone.filter(|zone| zone.span.contains(range)) {
            return Ok(zone);
        }
        let above = self.starts.partition_point(|&(start, _)| start <= range.start);
        let at =
            |place: usize| self.starts.get(place).map(|&(_, zone)| zone_span(&self.zones[usize::from(zone)]));
        Err(OnlineError::NotInOneZone {
            range: *range,
            below: above.checked_sub(1).and_then(at),
            above: at(above),
        })
    }

    /// Brings the CPUs and managed memory of a new allocator online. No pageset was used yet.
    pub(crate) fn bring_online(&self, machine: &Machine<'_>, config: &Config) -> Result<(), ConfigError> {
        if P::CONFIG.is_none() {
            Setting::ALL.iter().for_each(|&setting| self.shared.store(setting, config));
        }
        let held = self.lock_changes();
        self.local_cpus().for_each(|cpu| self.mark_cpu_online(cpu.id));
        for (zone, description) in self.zones.iter().zip(machine.zones()) {
            zone.holders().set(0, zone.frames.states.len() as u64, Holders::<P>::NOT_MANAGED);
            description.managed.iter().for_each(|range| self.add_frames(zone, range));
        }
        self.zones.iter().for_each(|zone| zone.counters().settle());
        self.nodes.iter().for_each(|node| node.counters.settle());
        self.write_lists(&held);
        self.recompute(&held);
        // Memory that comes online later counts: the minimum may be larger than what is managed at start.
        let to_come = machine.hotplug().iter().map(|range| range.count).sum();
        self.check_min_free(&config.watermarks, to_come)
    }

    /// Adds frames, which must not be managed yet, to the managed and free frames of a zone.
    fn add_frames(&self, zone: &Zone<'_, P>, range: &FrameRange) {
        if let Some(poison) = self.config().hardening.poison
            && let Some(contents) = self.platform.contents()
        {
            contents.fill(range.start, range.count, poison);
        }
        zone.add_managed(zone.run_of(range));
    }

    pub(crate) fn mark_cpu_online(&self, cpu: CpuId) {
        // Relaxed: the flag is only a hint to other CPUs, because pagesets are opened and closed under their locks.
        self.cpus_online[cpu.index()].store(1, Relaxed);
    }

    /// Returns the number of online CPUs on the node with this index, or of all nodes.
    pub(super) fn online_cpus(&self, node: Option<usize>) -> u32 {
        let is_on = |cpu: &CpuInfo| node.is_none_or(|node| usize::from(cpu.node) == node);
        self.cpus.iter().filter(|cpu| is_on(cpu) && self.is_online(**cpu)).count() as u32
    }
}

fn zone_span<P: Platform>(zone: &Zone<'_, P>) -> ZoneSpan {
    ZoneSpan { node: zone.node_id, kind: zone.kind, span: zone.span }
}

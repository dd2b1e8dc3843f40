//! Changes that administrators make while programs run: other settings, and CPUs and memory that go offline and online.
//!
//! A refusal is not a fault if its error is one of the expected ones.
//!
//! Related files: `worker.rs` calls `mutate`.

use fastrand::Rng;
use zonal::config::NodeReclaim;
use zonal::error::OnlineError;
use zonal::machine::FrameRange;
use zonal::units::{CpuId, PageCount};

use super::round::{high_fraction, one_of, tuning, watermarks, zonelist_cache};
use super::world::World;

impl World<'_, '_, '_, '_> {
    /// Makes one random change.
    pub(super) fn mutate(&self, random: &mut Rng) {
        let allocator = self.allocator();
        match random.u8(..12) {
            0 => allocator.set_tuning(tuning(random)).expect("these need no more slots"),
            1 => allocator.set_zonelist_cache(zonelist_cache(random)).expect("past forms are linked"),
            2 => allocator.set_node_reclaim(one_of(random, &[NodeReclaim::OFF, NodeReclaim::ON])),
            3 => allocator.set_high_fraction(high_fraction(random)),
            4 => {
                // The allocator refuses the setting if too little memory is online for it.
                let _refused = allocator.set_watermarks(watermarks(random, self.managed()));
            }
            5 => allocator.drain_pagesets(),
            6 => allocator.tick(),
            7 | 8 => self.change_cpu(random),
            _ => self.change_memory(random),
        }
    }

    /// Takes a CPU offline, or brings one back online.
    fn change_cpu(&self, random: &mut Rng) {
        let back = if random.bool() { self.cpus_offline.borrow_mut().pop() } else { None };
        let cpu = back.unwrap_or(one_of(random, &self.cpus).id);
        let changed = match back {
            Some(cpu) => self.allocator().online_cpu(cpu),
            None => self.allocator().offline_cpu(cpu),
        };
        match changed {
            Ok(()) if back.is_none() => self.cpus_offline.borrow_mut().push(cpu),
            Ok(()) | Err(OnlineError::CpuUnchanged(_) | OnlineError::LastCpu(_)) => {}
            Err(error) => self.system.fault(error.to_string()),
        }
    }

    /// Brings all CPUs back online.
    pub(super) fn bring_cpus_back(&self) {
        let all: Vec<CpuId> = self.cpus_offline.take();
        for cpu in all {
            if let Err(error) = self.allocator().online_cpu(cpu) {
                self.system.fault(error.to_string());
            }
        }
    }

    /// Takes memory offline, or brings some back online.
    fn change_memory(&self, random: &mut Rng) {
        let back = if random.bool() { self.offline.borrow_mut().pop() } else { None };
        if let Some(range) = back {
            if let Err(error) = self.allocator().online_memory(range) {
                self.system.fault(error.to_string());
            }
            return;
        }
        let range = self.some_range(random);
        match self.allocator().offline_memory(range) {
            Ok(()) => {
                self.unused.forget(&range);
                self.offline.borrow_mut().push(range);
            }
            Err(
                OnlineError::InUse { .. }
                | OnlineError::NotOnline(_)
                | OnlineError::Fenced { .. }
                | OnlineError::TooManyFences { .. },
            ) => {}
            Err(error) => self.system.fault(error.to_string()),
        }
    }

    /// Returns a random part of a zone, or all its managed frames.
    pub(super) fn some_range(&self, random: &mut Rng) -> FrameRange {
        let zone = one_of(random, &self.round.machine.model.zones);
        let managed = zone.managed.get();
        if random.u8(..4) == 0 {
            return FrameRange { start: zone.start, count: zone.managed };
        }
        let first = random.u64(..managed);
        let count = PageCount::new(random.u64(1..=(managed - first).min(20_000)));
        FrameRange { start: zone.start.plus(PageCount::new(first)), count }
    }
}

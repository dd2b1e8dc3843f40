//! What changes a machine while it is used: CPUs, memory, settings.
//!
//! Neighbours: `operations.rs` has the other operations.

use zonal::error::{ConfigError, OnlineError};
use zonal::machine::FrameRange;
use zonal::units::{CpuId, Pfn};

use super::owners::Frame;
use super::plan::{CACHES, NODE_RECLAIMS, TUNINGS, range, watermarks};
use super::{Choices, Player};

impl Player<'_, '_, '_, '_> {
    pub(super) fn change_cpu(&mut self) {
        let choice = self.choices.byte();
        let cpu = CpuId::new(u32::from(choice >> 1) % (self.plan.cpus() as u32 + 1));
        let answer = if Choices::has(choice, 0) { self.a.online_cpu(cpu) } else { self.a.offline_cpu(cpu) };
        match answer {
            Ok(()) | Err(OnlineError::CpuUnchanged(_) | OnlineError::LastCpu(_)) => {}
            Err(OnlineError::UnknownCpu(_)) => assert!(cpu.index() as u64 >= self.plan.cpus()),
            Err(other) => panic!("{other}"),
        }
    }

    /// Some frames of a zone, or any frames.
    fn range(&mut self) -> FrameRange {
        let zones = &self.plan.zones;
        let at = self.choices.small(zones.len() + 1);
        let within = zones.get(at).map_or(range(0, self.cache().owners().end() + 10), |zone| {
            let ranges = &zone.managed;
            ranges.get(self.choices.small(ranges.len() + 1)).copied().unwrap_or(zone.span)
        });
        let whole = Choices::has(self.choices.byte(), 0);
        if whole {
            return within;
        }
        let skip = self.choices.below(within.count.get());
        range(within.start.get() + skip, self.choices.below(within.count.get() - skip + 2))
    }

    /// The first frame of a range that is, or is not, absent.
    fn first(&self, range: &FrameRange, wanted: impl Fn(Frame) -> bool) -> Option<Pfn> {
        let owners = self.cache().owners();
        (range.start.get()..range.end().get()).find(|&frame| wanted(owners.frame(frame))).map(Pfn::new)
    }

    pub(super) fn take_memory(&mut self) {
        let gone = self.range();
        let fits = self.cache().owners().is_in_one_zone(&gone) && gone.count.get() > 0;
        let owned = self.cache().owners().census(&gone)[Frame::Owned as usize];
        let absent = self.first(&gone, |frame| frame == Frame::Absent);
        let answer = self.a.offline_memory(gone);
        match absent {
            _ if !fits => assert!(is_misplaced(&gone, answer), "{answer:?}"),
            Some(frame) => assert_eq!(answer, Err(OnlineError::NotOnline(frame))),
            None if owned > 0 => {
                let in_use = zonal::units::PageCount::new(owned);
                assert_eq!(answer, Err(OnlineError::InUse { start: gone.start, in_use }));
            }
            None => {
                assert_eq!(answer, Ok(()));
                self.cache().owners().set(&gone, Frame::Absent);
            }
        }
    }

    pub(super) fn return_memory(&mut self) {
        let back = self.range();
        let fits = self.cache().owners().is_in_one_zone(&back) && back.count.get() > 0;
        let present = self.first(&back, |frame| frame != Frame::Absent);
        let answer = self.a.online_memory(back);
        match present {
            _ if !fits => assert!(is_misplaced(&back, answer), "{answer:?}"),
            Some(frame) => assert_eq!(answer, Err(OnlineError::AlreadyOnline(frame))),
            None => {
                assert_eq!(answer, Ok(()));
                self.cache().owners().set(&back, Frame::Unowned);
            }
        }
    }

    pub(super) fn change_settings(&mut self) {
        match self.choices.small(5) {
            0 => self.a.set_tuning(self.choices.pick(&TUNINGS)).expect("these need no more slots"),
            1 => self.a.set_zonelist_cache(self.choices.pick(&CACHES)),
            2 => self.a.set_node_reclaim(self.choices.pick(&NODE_RECLAIMS)),
            3 => self.a.set_high_fraction(self.choices.pick(&[0, 8, 1, 1000, u32::MAX])),
            _ => {
                let wanted = watermarks(&mut self.choices);
                let managed = self.cache().owners().managed();
                let fits = wanted.min_free.is_none_or(|min_free| min_free.get() <= managed);
                match self.a.set_watermarks(wanted) {
                    Ok(()) => assert!(fits, "{wanted:?} of {managed}"),
                    Err(ConfigError::MinFree { .. }) => assert!(!fits, "{wanted:?} of {managed}"),
                    Err(other) => panic!("{other}"),
                }
            }
        }
    }
}

/// Whether `answer` is that a range is empty, or lies not within one zone.
fn is_misplaced(range: &FrameRange, answer: Result<(), OnlineError>) -> bool {
    match answer {
        Err(OnlineError::EmptyRange(start)) => range.count.get() == 0 && start == range.start,
        Err(OnlineError::NotInOneZone { range: told, .. }) => told == *range,
        _ => false,
    }
}

//! The moment in each second at which a kernel adjusts its pagesets.
//!
//! Kernels do this when their own count of ticks is at a whole second, a little after the whole second of the clock. The
//! trace shows the moment where a thread drains that freed nothing before.
//!
//! Related files: `kernel.rs` feeds this in the first pass and uses it in the second.

use zonal::units::Moment;
use zonal_trace::{Action, Event, Tid};

const SECOND_NS: u64 = 1_000_000_000;
/// The moment if a trace does not show it, as observed.
const PHASE_DEFAULT_NS: u64 = 56_000_000;
/// Within this time, drains belong to the same moment.
const WINDOW_NS: u64 = 100_000_000;
/// The fewest drains that show a moment.
const DRAINS_LEAST: usize = 3;
/// The most drains that are compared.
const DRAINS_MOST: usize = 1 << 12;

/// The drains of a CPU that no free caused, while a trace is read.
#[derive(Clone, Default, Debug)]
pub(super) struct Drains {
    moments: Vec<u64>,
    /// The thread that freed or drained last, if nothing else happened since.
    freed: Option<Tid>,
}

impl Drains {
    pub(super) fn take(&mut self, event: &Event) {
        match event.action {
            Action::Free { .. } | Action::FreeBatched { .. } => self.freed = Some(event.thread),
            Action::Drain { .. } if self.freed != Some(event.thread) => {
                if self.moments.len() < DRAINS_MOST {
                    self.moments.push(event.at.ns() % SECOND_NS);
                }
                self.freed = Some(event.thread);
            }
            Action::Drain { .. } => {}
            _ => self.freed = None,
        }
    }
}

/// The next adjustment of a CPU's pagesets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticks {
    phase_ns: u64,
    next: Moment,
}

impl Ticks {
    /// Creates the adjustments of a trace that starts at `started`, with what earlier drains showed.
    pub(super) fn new(started: Moment, phase_ns: Option<u64>) -> Self {
        let mut ticks = Self { phase_ns: phase_ns.unwrap_or(PHASE_DEFAULT_NS), next: started };
        ticks.due(started);
        ticks
    }

    /// Returns how many adjustments are due, which are then done: one for each second since the last one.
    pub(super) fn due(&mut self, now: Moment) -> u64 {
        let Some(late_ns) = now.ns().checked_sub(self.next.ns()) else { return 0 };
        let seconds =
            now.ns().saturating_sub(self.phase_ns) / SECOND_NS + u64::from(now.ns() >= self.phase_ns);
        self.next = Moment::from_ns(seconds.saturating_mul(SECOND_NS).saturating_add(self.phase_ns));
        1 + late_ns / SECOND_NS
    }
}

/// Returns the moments of all CPUs, in nanoseconds after a whole second. A CPU with few drains has that of all.
pub(super) fn phases(drains: &[&Drains]) -> Vec<Option<u64>> {
    let every: Vec<u64> =
        drains.iter().flat_map(|drains| &drains.moments).copied().take(DRAINS_MOST).collect();
    let common = phase(&every);
    drains.iter().map(|drains| phase(&drains.moments).or(common)).collect()
}

/// Returns the middle of the window with the most drains.
fn phase(moments: &[u64]) -> Option<u64> {
    let within = |first: u64| {
        let mut after: Vec<u64> = moments
            .iter()
            .map(|moment| (moment + SECOND_NS - first) % SECOND_NS)
            .filter(|after| *after < WINDOW_NS)
            .collect();
        after.sort_unstable();
        (after.len(), (first + after.get(after.len() / 2).copied().unwrap_or(0)) % SECOND_NS)
    };
    let best = moments.iter().map(|first| within(*first)).max_by_key(|(drains, _)| *drains)?;
    (best.0 >= DRAINS_LEAST).then_some(best.1)
}

#[cfg(test)]
mod tests {
    use zonal::units::{CpuId, Order, Pfn};
    use zonal_trace::Migratetype;

    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn adjustments_come_once_a_second_after_the_phase() {
        let mut ticks = Ticks::new(Moment::from_ns(10_020 * MS), None);
        let due: Vec<u64> = (10_020..13_000).filter(|ms| ticks.due(Moment::from_ns(ms * MS)) == 1).collect();
        assert_eq!(due, [10_056, 11_056, 12_056]);
        // A CPU without events for a while makes up for what it missed: the seconds 13 to 19.
        let mut due = |ms: u64| ticks.due(Moment::from_ns(ms * MS));
        assert_eq!([20_000, 20_055, 20_056].map(&mut due), [7, 0, 1]);
        let mut early = Ticks::new(Moment::from_ns(3 * MS), Some(40 * MS));
        assert_eq!([39, 40].map(|ms| early.due(Moment::from_ns(ms * MS))), [0, 1]);
    }

    #[test]
    fn drains_without_frees_show_the_phase() {
        let mut drains = Drains::default();
        let page = Pfn::new(1);
        let drain = Action::Drain { page, order: Order::PAGE, migratetype: Migratetype(1) };
        let mut push = |ms: u64, thread: i32, action: &Action| {
            let action = action.clone();
            drains.take(&Event {
                at: Moment::from_ns(ms * MS),
                cpu: CpuId::new(0),
                thread: Tid(thread),
                action,
            });
        };
        for (second, phase) in [(1, 990), (3, 5), (4, 998)] {
            push(1000 * second + phase - 1, 7, &Action::Free { page, order: Order::PAGE });
            // Two blocks of one drain count once, and drains after frees of the same thread not at all.
            push(1000 * second + phase, 9, &drain);
            push(1000 * second + phase, 9, &drain);
            push(1000 * second + 400, 7, &Action::Free { page, order: Order::PAGE });
            push(1000 * second + 400, 7, &drain);
        }
        assert_eq!(drains.moments, [990 * MS, 5 * MS, 998 * MS]);
        let none = Drains::default();
        assert_eq!(phases(&[&drains, &none]), [Some(998 * MS), Some(998 * MS)]);
        assert_eq!(phases(&[&none]), [None]);
    }
}

//! Counts the tracepoints that a platform receives, to compare them with the allocator's own counters.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use zonal::platform::reclaimer::ReclaimReason;
use zonal::platform::tracepoint::{RetireCause, Tracepoint};
use zonal::snapshot::Events;
use zonal::{Allocator, Platform};

/// The number of tracepoints received, or the sum of their frames. All accesses are relaxed, because tests compare the
/// counts while no thread allocates.
#[derive(Default)]
pub struct Traced {
    refills: AtomicU64,
    drains: AtomicU64,
    remote_drains: AtomicU64,
    failures: AtomicU64,
    reclaims_begun: AtomicU64,
    reclaims_ended: AtomicU64,
    /// Frames freed, by the reason of the reclaim: node, direct and background.
    freed: [AtomicU64; 4],
    /// Frames taken out of use.
    bad_frames: AtomicU64,
    retired: AtomicU64,
    poison_found: AtomicU64,
}

impl Traced {
    pub fn count(&self, point: Tracepoint) {
        let one = |counter: &AtomicU64| _ = counter.fetch_add(1, Relaxed);
        match point {
            Tracepoint::Refill { .. } => one(&self.refills),
            Tracepoint::Drain { .. } => one(&self.drains),
            Tracepoint::RemoteDrain { .. } => one(&self.remote_drains),
            Tracepoint::Refusal { .. } => one(&self.failures),
            Tracepoint::ReclaimBegin { .. } => one(&self.reclaims_begun),
            Tracepoint::ReclaimEnd { reason, freed, .. } => {
                one(&self.reclaims_ended);
                let of = match reason {
                    ReclaimReason::Node => 0,
                    ReclaimReason::Direct => 1,
                    ReclaimReason::Background => 2,
                    ReclaimReason::Range => 3,
                    _ => return,
                };
                self.freed[of].fetch_add(freed.get(), Relaxed);
            }
            Tracepoint::Retired { frames, cause, .. } => {
                let counter = match cause {
                    RetireCause::BadFrame => &self.bad_frames,
                    RetireCause::InvalidFree => &self.retired,
                    RetireCause::Poison => &self.poison_found,
                    cause => panic!("an unknown cause: {cause:?}"),
                };
                counter.fetch_add(frames.get(), Relaxed);
            }
            point => panic!("an unknown tracepoint: {point:?}"),
        }
    }

    /// Returns how often the reclaimer was called.
    pub fn reclaims(&self) -> u64 {
        let [begun, ended] = [&self.reclaims_begun, &self.reclaims_ended].map(|count| count.load(Relaxed));
        assert_eq!(begun, ended, "no reclaimer of these tests panics");
        begun
    }

    /// Checks that the tracepoints agree with the counters of `allocator`, and returns the counters.
    pub fn check<P: Platform>(&self, allocator: &Allocator<'_, P>) -> Events {
        let events = allocator.events();
        let of_node: u64 = allocator.nodes().map(|node| node.reclaimed[2].get()).sum();
        let [node, direct, background, range] = self.freed.each_ref().map(|freed| freed.load(Relaxed));
        assert_eq!([node, background], [of_node, events.background_reclaimed]);
        // A request that reclaims a range reclaims directly; a caller of `reclaim_range` does not.
        assert!((direct..=direct + range).contains(&events.direct_reclaimed), "{}", events.direct_reclaimed);
        let pairs = [
            ("refills", &self.refills, events.refills),
            ("drains", &self.drains, events.drains),
            ("remote_drains", &self.remote_drains, events.remote_drains),
            ("failures", &self.failures, events.failures),
            ("bad_frames", &self.bad_frames, events.bad_frames),
            ("retired", &self.retired, events.retired),
            ("poison_found", &self.poison_found, events.poison_found),
        ];
        for (name, traced, counted) in pairs {
            assert_eq!(traced.load(Relaxed), counted, "{name}");
        }
        events
    }
}

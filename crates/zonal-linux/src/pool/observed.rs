//! Reports to subscribers of `tracing` memory pressure, and what the allocator counted since the last tick.
//!
//! Refused requests, stalls and retired frames happen in calls that must not emit events, so the thread that runs the
//! tick reports them, at most once a second. Related files: `pool/emit.rs` has the rule, `pool/workers.rs` the thread.

use zonal::platform::pressure::{PressureEvent, PressureKind};
use zonal::snapshot::Events;

use super::core::PoolCore;
use super::emit::{Level, emit, is_on, on_own_thread};
use super::platform::LinuxPlatform;

/// The counts that have been reported; none at first.
#[derive(Default)]
pub(super) struct Observed {
    events: Events,
    panics: u64,
}

impl Observed {
    fn of(core: &PoolCore) -> Self {
        Self { events: core.allocator().events(), panics: core.platform().reclaimers.panics() }
    }

    /// Reports what was counted since the last report, if a subscriber may want it.
    pub(super) fn report(&mut self, core: &PoolCore) {
        if !is_on(Level::WARN) {
            return; // the counts are reported together when a subscriber appears
        }
        let platform = core.platform();
        let _at_work = platform.presence.work();
        let (now, changes) = (Self::of(core), platform.changes.take());
        for (name, value) in &changes {
            on_own_thread(&platform.presence, || {
                emit!(platform, INFO, name = name.as_str(), value = value.as_str(), "setting changed");
            });
        }
        self.report_difference(core, &now);
        *self = now;
    }

    fn report_difference(&self, core: &PoolCore, now: &Self) {
        let platform = core.platform();
        let own = |emit: &dyn Fn()| on_own_thread(&platform.presence, emit);
        let since = |count: fn(&Events) -> u64| count(&now.events) - count(&self.events);
        let (rounds, frames) =
            (since(|events| events.direct_stalls), since(|events| events.direct_reclaimed));
        // A round may have been counted in the report before, and its frames and time now.
        let ns = since(|events| events.direct_ns);
        if rounds > 0 || frames > 0 || ns > 0 {
            own(&|| {
                emit!(platform, DEBUG, rounds, frames, ns, "requests stalled in direct reclaim");
            });
        }
        let requests = since(|events| events.failures);
        if requests > 0 {
            own(&|| {
                emit!(platform, DEBUG, requests, "requests refused");
            });
        }
        let causes = [
            ("bad frame", since(|events| events.bad_frames)),
            ("invalid free", since(|events| events.retired)),
            ("poison", since(|events| events.poison_found)),
        ];
        for (cause, frames) in causes.into_iter().filter(|&(_, frames)| frames > 0) {
            own(&|| {
                emit!(platform, WARN, cause, frames, "frames retired");
            });
        }
        let panics = now.panics - self.panics;
        if panics > 0 {
            own(&|| {
                emit!(platform, WARN, panics, "reclaimers panicked");
            });
        }
    }
}

/// Reports memory pressure, on a thread of the pool that is at work.
pub(super) fn report_pressure(platform: &LinuxPlatform, event: &PressureEvent) {
    if !is_on(Level::WARN) {
        return;
    }
    let PressureEvent { node, free, low, high, stalled, .. } = *event;
    let (node, free, low, high) = (node.get(), free.get(), low.get(), high.get());
    on_own_thread(&platform.presence, || match event.kind {
        PressureKind::BelowLow => {
            emit!(platform, DEBUG, node, free, low, high, "node below its watermark low");
        }
        PressureKind::AboveHigh => {
            emit!(platform, DEBUG, node, free, low, high, "node above its watermark high again");
        }
        PressureKind::Stalling => {
            emit!(platform, WARN, node, free, low, high, %stalled, "direct reclaim stalls callers");
        }
        PressureKind::Failing => {
            emit!(platform, WARN, node, free, low, high, %stalled, "requests fail");
        }
        _ => {}
    });
}

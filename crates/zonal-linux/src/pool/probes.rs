//! Static user probes of the provider `zonal`, in the format of SystemTap, which bpftrace, perf and gdb read.
//!
//! A probe is one `nop` in the code and a note in the binary that names the probe and the registers with its arguments.
//! It does nothing until a tool replaces the `nop`. It may therefore be anywhere: under locks, in signal handlers, and in
//! libraries that are loaded. Related files: `zonal/src/platform/tracepoint.rs` has the places, `docs/observing.md` the
//! arguments.

use zonal::platform::reclaimer::ReclaimReason;
use zonal::platform::tracepoint::{RetireCause, Tracepoint};
use zonal::units::Pfn;

use super::key::PoolKey;

/// Passes through the probe of a tracepoint.
#[inline(always)]
pub(super) fn pass(pool: PoolKey, point: Tracepoint) {
    let pool = pool.get();
    match point {
        Tracepoint::Refill { zone, cpu, frames } => {
            refill(pool, zone.index() as u64, cpu.get().into(), frames.get());
        }
        Tracepoint::Drain { zone, cpu, frames } => {
            drain(pool, zone.index() as u64, cpu.get().into(), frames.get());
        }
        Tracepoint::RemoteDrain { zone, cpu } => {
            remote_drain(pool, zone.index() as u64, cpu.get().into());
        }
        Tracepoint::ReclaimBegin { node, reason, target } => {
            reclaim_begin(pool, node.get().into(), number_of_reason(reason), target.get());
        }
        Tracepoint::ReclaimEnd { node, reason, freed } => {
            reclaim_end(pool, node.get().into(), number_of_reason(reason), freed.get());
        }
        Tracepoint::Refusal { node, order, frames } => {
            refusal(pool, node.get().into(), order.get().into(), frames.get());
        }
        Tracepoint::Retired { node, first, frames, cause } => {
            let first = first.map_or(u64::MAX, Pfn::get);
            retired(pool, node.get().into(), number_of_cause(cause), frames.get(), first);
        }
        _ => {}
    }
}

/// Defines the function of a probe, which contains nothing but the probe, and whose arguments stay in the registers in
/// which they are passed.
///
/// The probe is not inlined. Each generic function of the allocator may have copies that the linker discards, and their
/// notes would stay, with addresses at which there is no probe.
macro_rules! probes {
    ($($name:ident($($argument:ident),+);)+) => {$(
        #[inline(never)]
        fn $name($($argument: u64),+) {
            #[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
            probe::probe!(zonal, $name, $($argument),+);
            #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
            let _ = ($($argument),+);
        }
    )+};
}

probes! {
    refill(pool, zone, cpu, frames);
    drain(pool, zone, cpu, frames);
    remote_drain(pool, zone, cpu);
    reclaim_begin(pool, node, reason, frames);
    reclaim_end(pool, node, reason, frames);
    refusal(pool, node, order, frames);
    retired(pool, node, cause, frames, first);
}

/// Returns a reason's number in probe arguments.
const fn number_of_reason(reason: ReclaimReason) -> u64 {
    match reason {
        ReclaimReason::Node => 0,
        ReclaimReason::Direct => 1,
        ReclaimReason::Background => 2,
        ReclaimReason::Range => 3,
        ReclaimReason::Shrink => 4,
        _ => u64::MAX,
    }
}

/// Returns a cause's number in probe arguments.
const fn number_of_cause(cause: RetireCause) -> u64 {
    match cause {
        RetireCause::BadFrame => 0,
        RetireCause::InvalidFree => 1,
        RetireCause::Poison => 2,
        _ => u64::MAX,
    }
}

//! The allocator's platform on a simulated machine.
//!
//! All state is in the world of the host thread, so the platform type itself is empty. Operations of a CPU on its own
//! pagesets are pinned: the engine does not switch to another thread during such an operation. Related files:
//! `sim/world.rs` contains the state.

use zonal::Platform;
use zonal::platform::ZeroedCells;
use zonal::platform::cpu_local::{CpuLocal, Head, Pinned, Popped, Push, Quiesce, Step};
use zonal::platform::pageset_slot::{PagesetSlot, PagesetSlots};
use zonal::platform::reclaimer::{ReclaimRequest, Reclaimer};
use zonal::platform::whole_words::{self, WORD_FRAMES};
use zonal::units::{CpuId, Moment, NodeId, PageCount};

use super::cells::{CellU8, CellU32, CellU64};
use super::locks::SimLock;
use super::time::Time;
use super::world::{self, World};

/// The platform that accesses the world of the host thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lab;

impl Platform for Lab {
    type U8 = CellU8;
    type U32 = CellU32;
    type U64 = CellU64;
    type Lock = SimLock;
    type CpuLocal = LabCpus;

    // SAFETY: cells and locks are transparent wrappers of integers, and their initial value is zero.
    #[allow(unsafe_code)]
    const ZEROED_CELLS: Option<ZeroedCells<Self>> = Some(unsafe { ZeroedCells::promise() });

    #[inline(always)]
    fn current_cpu(&self) -> CpuId {
        CpuId::new(world::with(|world| world.cpu() as u32).unwrap_or(0))
    }

    #[inline(always)]
    fn cpu_local(&self) -> &LabCpus {
        &LabCpus
    }

    fn now(&self) -> Moment {
        Moment::from_ns(world::with(World::clock_ns).unwrap_or(0))
    }

    fn relax(&self, round: u32) {
        world::with(|world| {
            world.end_operation();
            world.spend(Time::from_ns(f64::from(round.min(10) + 1) * 50.0));
            world.sync();
        });
    }

    fn is_reclaiming(&self) -> bool {
        world::with(World::is_reclaiming).unwrap_or(false)
    }

    fn begin_reclaiming(&self) {
        world::with(|world| world.set_reclaiming(true));
    }

    fn end_reclaiming(&self) {
        world::with(|world| world.set_reclaiming(false));
    }

    fn wake_background_reclaim(&self, node: NodeId) {
        world::with(|world| world.wake_reclaim_worker(node));
    }

    fn reclaimer(&self) -> &dyn Reclaimer {
        &Programs
    }

    /// Checks read the states of all frames to verify the accounting, at no charge.
    fn are_all(cells: &[CellU8; WORD_FRAMES], value: u8) -> bool {
        match world::with(World::is_charging) {
            Some(true) => whole_words::are_all(cells, value),
            _ => CellU8::are_all(cells, value),
        }
    }
}

/// Forwards reclaim requests to the program that handles them in the current world.
struct Programs;

impl Reclaimer for Programs {
    fn count(&self, request: &ReclaimRequest) -> PageCount {
        world::with(|world| world.reclaimer().map(|reclaimer| reclaimer.count(request)))
            .flatten()
            .unwrap_or(PageCount::ZERO)
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        world::with(|world| world.reclaimer().map(|reclaimer| reclaimer.reclaim(request)))
            .flatten()
            .unwrap_or(PageCount::ZERO)
    }
}

/// Access to the pagesets of simulated CPUs with plain loads and stores. No other simulated thread runs during an
/// access.
#[derive(Clone, Copy, Debug)]
pub struct LabCpus;

const PINNED: Pinned<Interrupt> = Pinned(Interrupt);

impl<P: Platform> CpuLocal<P> for LabCpus {
    #[inline(always)]
    fn pop_current<'m>(
        &self,
        platform: &P,
        slots: &PagesetSlots<'m, P>,
        step: Step,
    ) -> (&'m PagesetSlot<'m, P>, Popped) {
        undisturbed(|| PINNED.pop_current(platform, slots, step))
    }

    #[inline(always)]
    fn pop_current_if<'m>(
        &self,
        platform: &P,
        slots: &PagesetSlots<'m, P>,
        step: Step,
        accepts: impl FnOnce(&PagesetSlot<'m, P>) -> bool,
    ) -> Option<(&'m PagesetSlot<'m, P>, Popped)> {
        undisturbed(|| PINNED.pop_current_if(platform, slots, step, accepts))
    }

    #[inline(always)]
    fn push_current<'m>(
        &self,
        platform: &P,
        slots: &PagesetSlots<'m, P>,
        prepare: impl FnOnce(&'m PagesetSlot<'m, P>) -> Option<Push>,
        refused: impl FnOnce(&'m PagesetSlot<'m, P>, Push) -> bool,
    ) -> bool {
        // The caller's handling of a refused push may have to wait, which is not allowed in a pinned section. It is
        // therefore done after the section.
        let mut left = None;
        let given = undisturbed(|| {
            PINNED.push_current(platform, slots, prepare, |slot, push| {
                left = Some((slot, push));
                false
            })
        });
        match left {
            Some((slot, push)) => refused(slot, push),
            None => given,
        }
    }

    #[inline(always)]
    fn pop_from(&self, cpu: CpuId, slot: &PagesetSlot<'_, P>, step: Step) -> Popped {
        undisturbed(|| PINNED.pop_from(cpu, slot, step))
    }

    #[inline(always)]
    fn push_to(&self, cpu: CpuId, slot: &PagesetSlot<'_, P>, push: Push) -> bool {
        undisturbed(|| PINNED.push_to(cpu, slot, push))
    }

    #[inline(always)]
    fn lock(&self, cpu: CpuId, head: &Head<P>) -> bool {
        undisturbed(|| PINNED.lock(cpu, head))
    }

    fn lock_remote(&self, cpu: CpuId, head: &Head<P>) -> bool {
        PINNED.lock_remote(cpu, head)
    }
}

#[inline(always)]
fn undisturbed<R>(work: impl FnOnce() -> R) -> R {
    match world::with(std::ptr::from_ref) {
        // SAFETY: the world outlives all sections of threads that run in it, as for `world::with`.
        #[allow(unsafe_code)]
        Some(world) => unsafe { &*world }.undisturbed(work),
        None => work(),
    }
}

/// Quiesces another CPU by an interrupt. The engine switches between CPUs only where they wait, and never inside a
/// pinned section, so an interrupt has no effect except its own cost.
#[derive(Clone, Copy, Debug)]
struct Interrupt;

impl Quiesce for Interrupt {
    fn quiesce(&self, _cpu: CpuId) {
        world::with(|world| {
            if world.is_charging() {
                world.spend(Time::from_ns(world.hardware().interrupt_ns));
                world.sync();
            }
        });
    }
}

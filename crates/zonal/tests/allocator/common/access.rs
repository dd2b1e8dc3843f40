//! The ways in which the CPUs of a test machine access their own pagesets: with try-locks, which a test may disturb, or
//! with plain loads and stores as in a kernel.
//!
//! Any thread may act for any CPU, so a mutex for each CPU stands for its disabled interrupts. The mutex is locked only
//! during one operation on a head; threads that run at once therefore see all interleavings of operations. Related
//! files: the tests of `zonal-conformance` race CPUs that run with interrupts off for a whole call.

use std::sync::{Mutex, OnceLock, PoisonError};

use zonal::Platform;
use zonal::platform::cpu_local::{CpuLocal, Head, OneCpu, Pinned, Popped, Push, Quiesce, Step, TryLock};
use zonal::platform::pageset_slot::{PagesetSlot, PagesetSlots};
use zonal::units::CpuId;

/// Makes a test of each function for each access method. A function that is missing in the list is reported as unused.
macro_rules! in_every_way {
    ($($test:ident,)*) => {
        mod locks {$(
            #[test]
            fn $test() {
                super::$test($crate::common::access::Way::Locks);
            }
        )*}
        mod pinned {$(
            #[test]
            fn $test() {
                super::$test($crate::common::access::Way::Pinned);
            }
        )*}
    };
}
pub(crate) use in_every_way;

/// A way in which CPUs access their pagesets.
#[derive(Clone, Copy, Default)]
pub enum Way {
    /// Try-locks, as in programs.
    #[default]
    Locks,
    /// Plain loads and stores, as in kernels.
    Pinned,
    /// Plain loads and stores by a CPU that cannot reach others.
    Alone,
}

/// What becomes of a push.
pub enum Pushed {
    /// The frame is pushed if it fits.
    IfItFits,
    /// The push ends before it begins.
    Never,
    /// The push fails, as one that is interrupted.
    Refused,
}

/// What a test does to the operations of CPUs under try-locks.
pub trait Disturbance: Sync {
    /// Whether a pop by the current CPU goes on.
    fn may_pop(&self) -> bool {
        true
    }

    /// What becomes of a push by the current CPU.
    fn push(&self) -> Pushed {
        Pushed::IfItFits
    }

    /// Whether `cpu` may lock a pageset of its own.
    fn may_lock(&self, _cpu: CpuId) -> bool {
        true
    }

    /// Whether a pageset of `cpu` may be locked from any CPU.
    fn may_lock_remotely(&self, _cpu: CpuId) -> bool {
        true
    }

    /// Called when a pageset with its lock word at this address was locked.
    fn locked(&self, _address: usize) {}
}

/// Access under try-locks, with the disturbance that a test sets.
#[derive(Default)]
pub struct Locks(OnceLock<&'static dyn Disturbance>);

impl Locks {
    /// Whether nothing disturbs an operation about which the disturbance is asked.
    fn may(&self, asked: impl FnOnce(&dyn Disturbance) -> bool) -> bool {
        self.0.get().is_none_or(|disturbance| asked(*disturbance))
    }

    fn lock_and_note<P: Platform>(&self, cpu: CpuId, head: &Head<P>) -> bool {
        let locked = TryLock.lock(cpu, head);
        if locked && let Some(disturbance) = self.0.get() {
            disturbance.locked(std::ptr::from_ref(&head.lock_word).addr());
        }
        locked
    }
}

impl<P: Platform> CpuLocal<P> for Locks {
    fn pop_current<'m>(
        &self,
        platform: &P,
        slots: &PagesetSlots<'m, P>,
        step: Step,
    ) -> (&'m PagesetSlot<'m, P>, Popped) {
        if self.may(|disturbance| disturbance.may_pop()) {
            TryLock.pop_current(platform, slots, step)
        } else {
            (slots.null_slot(), Popped::NOTHING)
        }
    }

    fn pop_current_if<'m>(
        &self,
        platform: &P,
        slots: &PagesetSlots<'m, P>,
        step: Step,
        accepts: impl FnOnce(&PagesetSlot<'m, P>) -> bool,
    ) -> Option<(&'m PagesetSlot<'m, P>, Popped)> {
        let goes_on = self.may(|disturbance| disturbance.may_pop());
        if goes_on { TryLock.pop_current_if(platform, slots, step, accepts) } else { None }
    }

    fn push_current<'m>(
        &self,
        platform: &P,
        slots: &PagesetSlots<'m, P>,
        prepare: impl FnOnce(&'m PagesetSlot<'m, P>) -> Option<Push>,
        refused: impl FnOnce(&'m PagesetSlot<'m, P>, Push) -> bool,
    ) -> bool {
        match self.0.get().map_or(Pushed::IfItFits, |disturbance| disturbance.push()) {
            Pushed::IfItFits => TryLock.push_current(platform, slots, prepare, refused),
            Pushed::Never => false,
            Pushed::Refused => {
                let Some(slot) = slots.of(platform.current_cpu()) else { return false };
                let Some(push) = prepare(slot) else { return false };
                refused(slot, push)
            }
        }
    }

    fn lock(&self, cpu: CpuId, head: &Head<P>) -> bool {
        self.may(|disturbance| disturbance.may_lock(cpu)) && self.lock_and_note(cpu, head)
    }

    fn lock_remote(&self, cpu: CpuId, head: &Head<P>) -> bool {
        self.may(|disturbance| disturbance.may_lock_remotely(cpu)) && self.lock_and_note(cpu, head)
    }
}

/// Access of a machine's CPUs to their pagesets.
pub enum Access {
    Locks(Locks),
    Pinned(Pinned<Interrupts>),
}

impl Default for Access {
    fn default() -> Self {
        Self::Locks(Locks::default())
    }
}

impl Access {
    /// Returns the access of `cpus` CPUs.
    pub fn new(way: Way, cpus: usize) -> Self {
        let reaches_others = match way {
            Way::Locks => return Self::default(),
            Way::Pinned => true,
            Way::Alone => OneCpu.reaches_other_cpus(),
        };
        let of_cpus = (0..cpus).map(|_| Mutex::new(())).collect();
        Self::Pinned(Pinned(Interrupts { of_cpus, reaches_others }))
    }

    /// Lets `disturbance` disturb the operations from now on.
    pub fn disturb(&self, disturbance: &'static dyn Disturbance) {
        let Self::Locks(locks) = self else { panic!("only operations under locks can be disturbed") };
        assert!(locks.0.set(disturbance).is_ok(), "it is set once");
    }
}

/// A mutex for each CPU, which the thread that acts for the CPU locks during an operation.
pub struct Interrupts {
    of_cpus: Vec<Mutex<()>>,
    reaches_others: bool,
}

impl Interrupts {
    /// Calls `operation` with the interrupts of `cpu` disabled. A CPU that the machine does not have has no pagesets.
    fn off<R>(&self, cpu: CpuId, operation: impl FnOnce() -> R) -> R {
        let of_cpu = self.of_cpus.get(cpu.index());
        let _off = of_cpu.map(|of_cpu| of_cpu.lock().unwrap_or_else(PoisonError::into_inner));
        operation()
    }
}

impl Quiesce for Interrupts {
    fn quiesce(&self, cpu: CpuId) {
        self.off(cpu, || ());
    }

    fn reaches_other_cpus(&self) -> bool {
        self.reaches_others
    }
}

impl<P: Platform> CpuLocal<P> for Access {
    fn pop_current<'m>(
        &self,
        platform: &P,
        slots: &PagesetSlots<'m, P>,
        step: Step,
    ) -> (&'m PagesetSlot<'m, P>, Popped) {
        match self {
            Self::Locks(locks) => locks.pop_current(platform, slots, step),
            Self::Pinned(pinned) => {
                pinned.0.off(platform.current_cpu(), || pinned.pop_current(platform, slots, step))
            }
        }
    }

    fn pop_current_if<'m>(
        &self,
        platform: &P,
        slots: &PagesetSlots<'m, P>,
        step: Step,
        accepts: impl FnOnce(&PagesetSlot<'m, P>) -> bool,
    ) -> Option<(&'m PagesetSlot<'m, P>, Popped)> {
        match self {
            Self::Locks(locks) => locks.pop_current_if(platform, slots, step, accepts),
            Self::Pinned(pinned) => {
                let pop = || pinned.pop_current_if(platform, slots, step, accepts);
                pinned.0.off(platform.current_cpu(), pop)
            }
        }
    }

    fn push_current<'m>(
        &self,
        platform: &P,
        slots: &PagesetSlots<'m, P>,
        prepare: impl FnOnce(&'m PagesetSlot<'m, P>) -> Option<Push>,
        refused: impl FnOnce(&'m PagesetSlot<'m, P>, Push) -> bool,
    ) -> bool {
        match self {
            Self::Locks(locks) => locks.push_current(platform, slots, prepare, refused),
            Self::Pinned(pinned) => {
                // `refused` takes the slow path, which accesses the head again.
                let mut left = None;
                let push = || {
                    pinned.push_current(platform, slots, prepare, |slot, push| {
                        left = Some((slot, push));
                        false
                    })
                };
                pinned.0.off(platform.current_cpu(), push)
                    || left.is_some_and(|(slot, push)| refused(slot, push))
            }
        }
    }

    fn pop_from(&self, cpu: CpuId, slot: &PagesetSlot<'_, P>, step: Step) -> Popped {
        match self {
            Self::Locks(locks) => locks.pop_from(cpu, slot, step),
            Self::Pinned(pinned) => pinned.0.off(cpu, || pinned.pop_from(cpu, slot, step)),
        }
    }

    fn push_to(&self, cpu: CpuId, slot: &PagesetSlot<'_, P>, push: Push) -> bool {
        match self {
            Self::Locks(locks) => locks.push_to(cpu, slot, push),
            Self::Pinned(pinned) => pinned.0.off(cpu, || pinned.push_to(cpu, slot, push)),
        }
    }

    fn lock(&self, cpu: CpuId, head: &Head<P>) -> bool {
        match self {
            Self::Locks(locks) => locks.lock(cpu, head),
            Self::Pinned(pinned) => pinned.0.off(cpu, || pinned.lock(cpu, head)),
        }
    }

    fn lock_remote(&self, cpu: CpuId, head: &Head<P>) -> bool {
        match self {
            Self::Locks(locks) => locks.lock_remote(cpu, head),
            Self::Pinned(pinned) => pinned.lock_remote(cpu, head),
        }
    }

    fn reaches_other_cpus(&self) -> bool {
        match self {
            Self::Locks(_) => true,
            Self::Pinned(pinned) => CpuLocal::<P>::reaches_other_cpus(pinned),
        }
    }
}

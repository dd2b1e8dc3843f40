//! The ways in which the CPUs of a test machine access their own pagesets: with try-locks, or with plain loads and stores
//! as in a kernel.
//!
//! Any thread may act for any CPU, so a mutex for each CPU stands for its disabled interrupts. The mutex is locked only
//! during one operation on a head; threads that run at once therefore see all interleavings of operations. Related
//! files: the tests of `zonal-conformance` race CPUs that run with interrupts off for a whole call.

use std::sync::{Mutex, PoisonError};

use zonal::Platform;
use zonal::platform::cpu_local::{CpuLocal, Head, Pinned, Popped, Push, Quiesce, Step, TryLock};
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
}

/// Access of a machine's CPUs to their pagesets.
#[derive(Default)]
pub enum Access {
    #[default]
    Locks,
    Pinned(Pinned<Interrupts>),
}

impl Access {
    /// Returns the access of `cpus` CPUs.
    pub fn new(way: Way, cpus: usize) -> Self {
        match way {
            Way::Locks => Self::Locks,
            Way::Pinned => Self::Pinned(Pinned(Interrupts((0..cpus).map(|_| Mutex::new(())).collect()))),
        }
    }
}

/// A mutex for each CPU, which the thread that acts for the CPU locks during an operation.
pub struct Interrupts(Vec<Mutex<()>>);

impl Interrupts {
    /// Calls `operation` with the interrupts of `cpu` disabled. A CPU that the machine does not have has no pagesets.
    fn off<R>(&self, cpu: CpuId, operation: impl FnOnce() -> R) -> R {
        let of_cpu = self.0.get(cpu.index());
        let _off = of_cpu.map(|of_cpu| of_cpu.lock().unwrap_or_else(PoisonError::into_inner));
        operation()
    }
}

impl Quiesce for Interrupts {
    fn quiesce(&self, cpu: CpuId) {
        self.off(cpu, || ());
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
            Self::Locks => TryLock.pop_current(platform, slots, step),
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
            Self::Locks => TryLock.pop_current_if(platform, slots, step, accepts),
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
            Self::Locks => TryLock.push_current(platform, slots, prepare, refused),
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
            Self::Locks => TryLock.pop_from(cpu, slot, step),
            Self::Pinned(pinned) => pinned.0.off(cpu, || pinned.pop_from(cpu, slot, step)),
        }
    }

    fn push_to(&self, cpu: CpuId, slot: &PagesetSlot<'_, P>, push: Push) -> bool {
        match self {
            Self::Locks => TryLock.push_to(cpu, slot, push),
            Self::Pinned(pinned) => pinned.0.off(cpu, || pinned.push_to(cpu, slot, push)),
        }
    }

    fn lock(&self, cpu: CpuId, head: &Head<P>) -> bool {
        match self {
            Self::Locks => TryLock.lock(cpu, head),
            Self::Pinned(pinned) => pinned.0.off(cpu, || pinned.lock(cpu, head)),
        }
    }

    fn lock_remote(&self, cpu: CpuId, head: &Head<P>) -> bool {
        match self {
            Self::Locks => TryLock.lock_remote(cpu, head),
            Self::Pinned(pinned) => pinned.lock_remote(cpu, head),
        }
    }
}

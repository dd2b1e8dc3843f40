//! Maps the CPU that the caller runs on to a CPU of the pool's machine.
//!
//! On a pool over the live topology the two are the same. On an *emulated* machine each real CPU is mapped to one
//! of its CPUs, and a thread may *act as* any of them, so that threads on a small machine can be on CPUs of
//! different nodes. Neighbours: `sequences/current_cpu.rs` reads the real CPU, `topology` makes the map.

use std::cell::Cell;
use std::marker::PhantomData;

use zonal::units::CpuId;

use super::key::PoolKey;
use crate::sequences::current_cpu::CurrentCpu;

/// CPU that a thread acts as, and the pool in which it does.
type Acting = Option<(PoolKey, CpuId)>;

thread_local! {
    static ACTING: Cell<Acting> = const { Cell::new(None) };
}

/// Whether threads may act as CPUs other than the one they run on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ActAs {
    /// Never, because the machine is real.
    Forbidden,
    /// In this pool, because its machine is emulated.
    AllowedIn(PoolKey),
}

/// Returns the current CPU in the numbering of the pool's machine.
#[derive(Debug)]
pub(super) struct CpuMap {
    source: CurrentCpu,
    act_as: ActAs,
    /// CPU of the pool's machine, by real CPU; never empty.
    by_real_cpu: Box<[CpuId]>,
}

impl CpuMap {
    /// Returns the CPU that the caller runs on, or acts as.
    #[inline]
    pub(super) fn current(&self) -> CpuId {
        if let ActAs::AllowedIn(key) = self.act_as {
            // Once the thread's locals are destroyed, it is on the CPU it really runs on.
            let acting = ACTING.try_with(Cell::get).ok().flatten();
            if let Some((_, cpu)) = acting.filter(|(of, _)| *of == key) {
                return cpu;
            }
        }
        let real = self.source.read() as usize;
        match self.by_real_cpu.get(real) {
            Some(&cpu) => cpu,
            None => self.share_existing(real),
        }
    }

    /// Makes a map from real CPU `i` to `by_real_cpu[i]`.
    pub(super) fn new(by_real_cpu: Vec<CpuId>, act_as: ActAs) -> Self {
        assert!(!by_real_cpu.is_empty(), "a machine without CPUs still runs on one");
        Self { source: CurrentCpu::detect(), act_as, by_real_cpu: by_real_cpu.into() }
    }

    /// Returns the CPU for a real CPU that did not exist when the pool was built: it shares one that did.
    #[cold]
    fn share_existing(&self, real: usize) -> CpuId {
        self.by_real_cpu[real % self.by_real_cpu.len()]
    }
}

/// Guard that makes its thread act as a CPU of an emulated machine. Guards of one thread must be dropped in the
/// reverse order of their creation; the innermost is in effect.
#[derive(Debug)]
#[must_use = "the thread acts as the CPU only while this lives"]
pub struct ActingCpu {
    before: Acting,
    /// Makes this neither `Send` nor `Sync`: it belongs to its thread.
    _of_thread: PhantomData<*const ()>,
}

impl ActingCpu {
    pub(super) fn begin(key: PoolKey, cpu: CpuId) -> Self {
        Self { before: ACTING.replace(Some((key, cpu))), _of_thread: PhantomData }
    }
}

impl Drop for ActingCpu {
    fn drop(&mut self) {
        // A thread whose locals are destroyed no longer acts as any CPU.
        ACTING.try_with(|acting| acting.set(self.before)).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_acts_as_a_cpu_only_in_its_pool_while_guarded() {
        let (here, elsewhere) = (PoolKey::fresh(), PoolKey::fresh());
        let all_same = vec![CpuId::new(5); 1024];
        let map = CpuMap::new(all_same.clone(), ActAs::AllowedIn(here));
        assert_eq!(map.current(), CpuId::new(5));
        let outer = ActingCpu::begin(here, CpuId::new(77));
        assert_eq!(map.current(), CpuId::new(77));
        {
            let _inner = ActingCpu::begin(here, CpuId::new(78));
            assert_eq!(map.current(), CpuId::new(78));
        }
        assert_eq!(map.current(), CpuId::new(77));
        assert_eq!(CpuMap::new(all_same.clone(), ActAs::AllowedIn(elsewhere)).current(), CpuId::new(5));
        assert_eq!(CpuMap::new(all_same, ActAs::Forbidden).current(), CpuId::new(5));
        std::thread::scope(|s| s.spawn(|| assert_eq!(map.current(), CpuId::new(5))).join().unwrap());
        drop(outer);
        assert_eq!(map.current(), CpuId::new(5));
    }

    #[test]
    fn cpus_added_later_share_existing_ones() {
        let map = CpuMap::new(vec![CpuId::new(3), CpuId::new(4)], ActAs::Forbidden);
        assert_eq!(map.share_existing(6), CpuId::new(3));
        assert_eq!(map.share_existing(7), CpuId::new(4));
    }
}

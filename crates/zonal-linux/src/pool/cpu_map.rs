//! From the CPU that runs the caller to a CPU of the pool's machine.
//!
//! On a pool over the live topology the two are the same. On an *emulated* machine each real CPU
//! stands for one of its CPUs, and a thread may *act as* any of them: so threads of a small machine
//! can be CPUs of different nodes. Neighbours: `sequences/current_cpu.rs` reads the real CPU,
//! `topology` makes the map.

use std::cell::Cell;
use std::marker::PhantomData;

use zonal::units::CpuId;

use super::key::PoolKey;
use crate::sequences::current_cpu::CurrentCpu;

/// The CPU a thread acts as, and in which pool.
type Acting = Option<(PoolKey, CpuId)>;

thread_local! {
    static ACTING: Cell<Acting> = const { Cell::new(None) };
}

/// Whether threads may act as CPUs other than their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Acts {
    /// The machine is the real one.
    Never,
    /// The machine is emulated, for this pool.
    In(PoolKey),
}

/// The current CPU as the pool's machine numbers it.
#[derive(Debug)]
pub(super) struct CpuMap {
    source: CurrentCpu,
    acts: Acts,
    /// By real CPU; never empty.
    serves_for: Box<[CpuId]>,
}

impl CpuMap {
    /// The CPU that the caller is, or acts as.
    #[inline]
    pub(super) fn current(&self) -> CpuId {
        if let Acts::In(key) = self.acts {
            // After the thread's locals are gone it is again what it really runs on.
            let acting = ACTING.try_with(Cell::get).ok().flatten();
            if let Some((_, cpu)) = acting.filter(|(of, _)| *of == key) {
                return cpu;
            }
        }
        let real = self.source.read() as usize;
        match self.serves_for.get(real) {
            Some(&cpu) => cpu,
            None => self.came_later(real),
        }
    }

    /// A map where real CPU `i` stands for `serves_for[i]`.
    pub(super) fn new(serves_for: Vec<CpuId>, acts: Acts) -> Self {
        assert!(!serves_for.is_empty(), "a machine without CPUs still runs on one");
        Self { source: CurrentCpu::detect(), acts, serves_for: serves_for.into() }
    }

    /// A CPU that did not exist when the pool was built shares with one that did.
    #[cold]
    fn came_later(&self, real: usize) -> CpuId {
        self.serves_for[real % self.serves_for.len()]
    }
}

/// While this lives, its thread is the given CPU of an emulated machine. Guards of one thread end
/// in the reverse order of their beginning; the innermost counts.
#[derive(Debug)]
#[must_use = "the thread acts as the CPU only while this lives"]
pub struct ActingCpu {
    before: Acting,
    /// Belongs to its thread: neither `Send` nor `Sync`.
    _of_thread: PhantomData<*const ()>,
}

impl ActingCpu {
    pub(super) fn begin(key: PoolKey, cpu: CpuId) -> Self {
        Self { before: ACTING.replace(Some((key, cpu))), _of_thread: PhantomData }
    }
}

impl Drop for ActingCpu {
    fn drop(&mut self) {
        // A thread whose locals are gone acts as nothing already.
        ACTING.try_with(|acting| acting.set(self.before)).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acts_only_in_its_pool_and_while_guarded() {
        let (here, elsewhere) = (PoolKey::fresh(), PoolKey::fresh());
        let all_same = vec![CpuId::new(5); 1024];
        let map = CpuMap::new(all_same.clone(), Acts::In(here));
        assert_eq!(map.current(), CpuId::new(5));
        let outer = ActingCpu::begin(here, CpuId::new(77));
        assert_eq!(map.current(), CpuId::new(77));
        {
            let _inner = ActingCpu::begin(here, CpuId::new(78));
            assert_eq!(map.current(), CpuId::new(78));
        }
        assert_eq!(map.current(), CpuId::new(77));
        assert_eq!(CpuMap::new(all_same.clone(), Acts::In(elsewhere)).current(), CpuId::new(5));
        assert_eq!(CpuMap::new(all_same, Acts::Never).current(), CpuId::new(5));
        std::thread::scope(|s| s.spawn(|| assert_eq!(map.current(), CpuId::new(5))).join().unwrap());
        drop(outer);
        assert_eq!(map.current(), CpuId::new(5));
    }

    #[test]
    fn cpus_that_came_later_share() {
        let map = CpuMap::new(vec![CpuId::new(3), CpuId::new(4)], Acts::Never);
        assert_eq!(map.came_later(6), CpuId::new(3));
        assert_eq!(map.came_later(7), CpuId::new(4));
    }
}

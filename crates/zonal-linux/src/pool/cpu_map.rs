//! Maps the CPU that the caller runs on to a CPU of the pool's machine.
//!
//! If the CPUs of the pool's machine are real, the two CPUs are the same. If they are *emulated*, each real CPU is mapped to
//! one of them. A thread may also *act as* any emulated CPU, so that a test on a small machine can have threads on
//! several nodes.
//!
//! Related files: `sequences/current_cpu.rs` reads the number of the real CPU, and `topology` creates the map.

use std::cell::Cell;
use std::marker::PhantomData;

use zonal::units::CpuId;

use super::key::PoolKey;
use crate::sequences::current_cpu::CurrentCpu;

/// The CPU that a thread acts as, and the pool in which it acts as that CPU; `None` for a thread that does not.
type Acting = Option<(PoolKey, CpuId)>;

thread_local! {
    static ACTING: Cell<Acting> = const { Cell::new(None) };
}

/// Whether threads may act as CPUs other than the one they run on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ActAs {
    /// Never, because the CPUs are real.
    Forbidden,
    /// Only in the pool with this key, because its CPUs are emulated.
    AllowedIn(PoolKey),
}

/// Map from the CPU that a thread runs on to a CPU of the pool's machine.
#[derive(Debug)]
pub(super) struct CpuMap {
    source: CurrentCpu,
    act_as: ActAs,
    /// CPU of the pool's machine, indexed by the number of the real CPU; never empty.
    by_real_cpu: Box<[CpuId]>,
}

impl CpuMap {
    /// Returns the CPU of the pool's machine that the calling thread acts as or, by default, that its real CPU is
    /// mapped to.
    #[inline]
    pub(super) fn current(&self) -> CpuId {
        if let ActAs::AllowedIn(key) = self.act_as {
            // After the destructor of `ACTING` has run, the thread no longer acts as another CPU.
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

    /// Creates a map from real CPU `i` to `by_real_cpu[i]`.
    pub(super) fn new(by_real_cpu: Vec<CpuId>, act_as: ActAs) -> Self {
        assert!(!by_real_cpu.is_empty(), "a machine without CPUs still runs on one");
        Self { source: CurrentCpu::detect(), act_as, by_real_cpu: by_real_cpu.into() }
    }

    /// Returns the CPU for a real CPU that did not exist when the pool was built. It is the same CPU as for one of the
    /// real CPUs that did exist.
    #[cold]
    fn share_existing(&self, real: usize) -> CpuId {
        self.by_real_cpu[real % self.by_real_cpu.len()]
    }
}

/// Guard that makes its thread act as a CPU of an emulated machine.
///
/// If a thread has several guards, the one created last is in effect. The guards must be dropped in the reverse order
/// of their creation.
#[derive(Debug)]
#[must_use = "the thread acts as the CPU only while this lives"]
pub struct ActingCpu {
    before: Acting,
    /// Makes this type neither `Send` nor `Sync`, because a guard changes a local variable of its thread.
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

//! The set of CPUs on which the calling thread may run. Source: Linux `sched_setaffinity(2)`.

use zonal::units::CpuId;

/// Words in a set of CPUs: enough for 8192 CPUs, the most that Linux supports.
const WORDS: usize = 128;

/// A set of CPUs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CpuSet([u64; WORDS]);

impl CpuSet {
    /// Returns the CPUs on which the calling thread may run, if the kernel reports them.
    pub(crate) fn of_this_thread() -> Option<Self> {
        let mut set = Self([0; WORDS]);
        // SAFETY: the call writes at most as many bytes as its second argument says.
        let failed = unsafe { libc::sched_getaffinity(0, size_of_val(&set.0), set.0.as_mut_ptr().cast()) };
        (failed == 0).then_some(set)
    }

    /// Returns the set of all CPUs.
    pub(crate) const fn all() -> Self {
        Self([u64::MAX; WORDS])
    }

    /// Returns a set of one CPU, or `None` if Linux does not support its number.
    pub(crate) fn one(cpu: CpuId) -> Option<Self> {
        let mut set = Self([0; WORDS]);
        *set.0.get_mut(cpu.index() / 64)? = 1 << (cpu.index() % 64);
        Some(set)
    }

    /// Returns the number of CPUs in the set.
    pub(crate) fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Restricts the calling thread to these CPUs, and returns whether the kernel allowed it.
    pub(crate) fn apply(&self) -> bool {
        // SAFETY: the call reads at most as many bytes as its second argument says.
        unsafe { libc::sched_setaffinity(0, size_of_val(&self.0), self.0.as_ptr().cast()) == 0 }
    }
}

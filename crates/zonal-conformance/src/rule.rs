//! The rules of the contract that a platform can break, each with its place in the documentation.

use core::fmt;

/// A rule of the contract between the allocator and its platform.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Rule {
    /// The operations of a cell are atomic.
    AtomicCells,
    /// A lock has at most one holder.
    LockExcludes,
    /// A lock that is unlocked is free, and its next holder sees the writes of the previous one.
    UnlockReleases,
    /// The platform knows which CPU runs the caller.
    CurrentCpu,
    /// The clock advances and does not go back.
    ClockAdvances,
    /// A wake-up is not lost.
    WakeUpsArrive,
    /// A handler can see that it interrupted the holder of a lock.
    ReentryIsSeen,
    /// Operations in progress end before a remote lock is held.
    OperationsEnd,
    /// CPUs that are offline are no exception.
    OfflineCpusAnswer,
    /// An operation that begins while a head is locked fails.
    LockWordFirst,
    /// The last store of a push is the one that commits it.
    SlotBeforeWord,
    /// A remote lock that the owning CPU has overwritten is not held.
    RemoteLockIsChecked,
    /// At most one CPU attempts a remote lock.
    OneRemoteLock,
    /// No operation on a locked head succeeds.
    LockedHeadsRefuse,
    /// CPUs that wait answer each other.
    WaitsAnswer,
}

impl Rule {
    /// Returns the item of the crate `zonal` whose documentation contains the rule.
    #[must_use]
    pub const fn place(self) -> &'static str {
        match self {
            Self::AtomicCells => "zonal::platform::Atomic",
            Self::LockExcludes => "zonal::platform::RawLock::try_lock",
            Self::UnlockReleases => "zonal::platform::RawLock::unlock",
            Self::CurrentCpu => "zonal::Platform::current_cpu",
            Self::ClockAdvances => "zonal::Platform::now",
            Self::WakeUpsArrive => "zonal::Platform::wake_background_reclaim",
            Self::ReentryIsSeen => "zonal::Platform::is_reentered",
            Self::OperationsEnd | Self::OfflineCpusAnswer | Self::WaitsAnswer => {
                "zonal::platform::cpu_local::Quiesce"
            }
            Self::LockWordFirst => "zonal::platform::cpu_local::POP",
            Self::SlotBeforeWord => "zonal::platform::cpu_local::PUSH",
            Self::RemoteLockIsChecked | Self::OneRemoteLock => "zonal::platform::cpu_local::lock_remotely",
            Self::LockedHeadsRefuse => "zonal::platform::cpu_local::CpuLocal",
        }
    }

    const fn sentence(self) -> &'static str {
        match self {
            Self::AtomicCells => "every operation of a cell is atomic",
            Self::LockExcludes => "a lock is acquired only if it is free",
            Self::UnlockReleases => "`unlock` frees the lock, and the next holder sees all writes before it",
            Self::CurrentCpu => "`current_cpu` returns the CPU that runs the caller",
            Self::ClockAdvances => "the clock advances, and does not go back or wrap",
            Self::WakeUpsArrive => "a wake-up of a background worker is not lost",
            Self::ReentryIsSeen => {
                "`is_reentered` is true in a handler that interrupted the holder of a lock"
            }
            Self::OperationsEnd => {
                "a remote lock is held only after every operation that the CPU had begun is complete or undone"
            }
            Self::OfflineCpusAnswer => "`quiesce` also waits for CPUs that are offline but still run",
            Self::LockWordFirst => {
                "an operation loads the lock word before all other fields, with acquire ordering"
            }
            Self::SlotBeforeWord => "a push stores the frame into its slot before it stores the word",
            Self::RemoteLockIsChecked => {
                "a remote lock is held only if the lock word is unchanged after `quiesce`"
            }
            Self::OneRemoteLock => "only one CPU at a time attempts to lock a head remotely",
            Self::LockedHeadsRefuse => "no operation on a locked head succeeds until its holder opens it",
            Self::WaitsAnswer => "a CPU answers quiesce requests wherever it waits",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.sentence(), self.place())
    }
}

//! Mistakes in platforms. Each breaks the rule of the contract that the failure names.

use zonal_conformance::{Rule, Scenario};

use crate::machine::{Machine, Mistake, Way};

/// Checks that a scenario finds a mistake, and names the rule that it breaks.
fn breaks(way: Way, mistake: Mistake, rule: Rule, scenario: Scenario) {
    let (_, broken) = Machine::new(3, way, mistake).run_all(&[scenario]);
    let (found, text) = broken.unwrap_or_else(|| panic!("{mistake:?} was not found"));
    println!("{text}");
    assert_eq!(found, rule, "{text}");
    let names = [rule.to_string(), rule.place().to_owned(), format!("{scenario:?}: ")];
    assert!(names.iter().all(|name| text.contains(name)), "{text}");
}

macro_rules! mistakes {
    ($($name:ident: $way:ident, $mistake:ident => $rule:ident in $scenario:ident;)*) => {$(
        #[test]
        fn $name() {
            breaks(Way::$way, Mistake::$mistake, Rule::$rule, Scenario::$scenario);
        }
    )*};
}
mistakes! {
    an_addition_that_is_a_load_and_a_store: Locks, TornAdd => AtomicCells in Cells;
    a_lock_that_is_always_acquired: Locks, LockNeverWaits => LockExcludes in Locks;
    an_unlock_that_is_lost: Locks, LostUnlock => UnlockReleases in Locks;
    a_current_cpu_that_is_another: Pinned, WrongCpu => CurrentCpu in CurrentCpus;
    a_clock_that_goes_back_a_day: Locks, ClockBackwards => ClockAdvances in Clock;
    a_clock_that_wraps: Locks, ClockWraps => ClockAdvances in Clock;
    a_wake_up_that_is_overwritten: Locks, OneWakeUpOnly => WakeUpsArrive in WakeUps;
    a_quiesce_that_returns_early: Pinned, QuiesceReturnsEarly => OperationsEnd in PopsAndPushes;
    a_barrier_that_restarts_nothing: Sequences, QuiesceReturnsEarly => OperationsEnd in PopsAndPushes;
    a_lock_word_that_is_loaded_last: Pinned, LockWordLast => LockWordFirst in PopsAndPushes;
    a_lock_word_that_a_sequence_loads_last: Sequences, LockWordLast => LockWordFirst in PopsAndPushes;
    a_word_that_is_stored_before_the_slot: Sequences, WordBeforeSlot => SlotBeforeWord in PopsAndPushes;
    a_remote_lock_that_is_not_checked: Pinned, RemoteLockUnchecked => RemoteLockIsChecked in OwnLocks;
    a_remote_lock_without_its_flag: Pinned, NoRemoteFlag => OneRemoteLock in RemoteLocks;
    a_quiesce_that_skips_cpus_offline: Pinned, QuiesceSkipsOffline => OfflineCpusAnswer in CpusThatLeave;
    a_handler_that_sees_no_lock: Locks, BlindHandlers => ReentryIsSeen in Handlers;
}

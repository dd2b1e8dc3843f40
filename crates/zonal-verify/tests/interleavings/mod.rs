//! The real allocator in worlds small enough to explore the interleavings of several threads.
//!
//! Each scenario is written once, generic over a `Checker`: the platform, which is the allocator's type parameter,
//! provides the checker's cells, locks and threads.
//!
//! Related files: `world.rs` is the machine on which scenarios run. `loom_interleavings.rs` and
//! `shuttle_interleavings.rs` run the scenarios.

pub(crate) mod cells;
pub(crate) mod checker;
pub(crate) mod counters;
pub(crate) mod deaths;
pub(crate) mod deferred;
pub(crate) mod invalid_free;
pub(crate) mod memory;
pub(crate) mod model;
pub(crate) mod pagesets;
pub(crate) mod processes;
pub(crate) mod reclaim;
pub(crate) mod restartable;
pub(crate) mod sequences;
pub(crate) mod ways;
pub(crate) mod world;
pub(crate) mod zonelists;

/// Returns the factor by which the usual bounds of explorations are multiplied.
pub(crate) fn factor() -> usize {
    std::env::var("ZONAL_INTERLEAVINGS").ok().and_then(|factor| factor.parse().ok()).unwrap_or(1)
}

/// Calls a macro with all scenarios, their modules, and the maximum number of preemptions under loom.
macro_rules! for_all_scenarios {
    ($run:ident) => {
        $run! {
            owner_against_drain: pagesets, 3;
            pinned_owner_against_drain: pagesets, 2;
            pinned_drains_at_once: pagesets, 2;
            pinned_lock_against_tick: pagesets, 2;
            sequences_pop_against_drain: sequences, 3;
            sequences_push_against_drain: sequences, 3;
            sequences_pop_against_tick: sequences, 3;
            sequences_push_against_tick: sequences, 3;
            sequences_pop_against_migrating_drain: sequences, 2;
            sequences_push_against_migrating_refill: sequences, 3;
            sequences_lock_against_migrating_drain: sequences, 3;
            sequences_first_block_against_push: sequences, 2;
            sequences_first_block_against_pop: sequences, 2;
            sequences_first_block_against_drain: sequences, 2;
            sequences_lock_against_tick: sequences, 3;
            hand_over: pagesets, 1;
            refill_and_drain: pagesets, 1;
            blocks_beside_batches: pagesets, 1;
            block_beside_refill: pagesets, 2;
            offline_in_use: pagesets, 2;
            folds_against_readings: counters, 1;
            pressure_against_changes: counters, 2;
            published_full_bits_and_wipes: zonelists, 1;
            full_bits_and_wipes_by_reason: zonelists, 1;
            served_elsewhere_against_recall: zonelists, 2;
            pinned_served_elsewhere_against_recall: zonelists, 2;
            sequenced_served_elsewhere_against_recall: zonelists, 2;
            served_elsewhere_against_offline: zonelists, 2;
            bulk_against_drain: pagesets, 2;
            pinned_bulk_against_drain: pagesets, 2;
            sequenced_bulk_against_its_cpu: pagesets, 2;
            no_wake_up_is_lost: reclaim, 1;
            range_against_retire: reclaim, 2;
            range_against_page: reclaim, 2;
            range_against_range: reclaim, 2;
            range_against_fence: reclaim, 1;
            deferred_free_against_drain: deferred, 3;
            deferred_frees_against_drain: deferred, 2;
            deferred_free_against_free: deferred, 3;
            drains_of_a_deferred_free: deferred, 3;
            range_of_deferred_frees: deferred, 2;
            exact: invalid_free, 4;
            exact_and_taken_at_once: invalid_free, 1;
            new_run_against_wrong_count: invalid_free, 2;
            checked: invalid_free, 3;
            stale_free: invalid_free, 5;
            offline_against_allocation: memory, 1;
            fence_against_free: memory, 1;
            fence_against_quarantine: memory, 1;
            retire_against_free: memory, 3;
            retire_against_free_of_a_run: memory, 2;
            retire_against_split: memory, 2;
            retire_against_quarantine: memory, 3;
            death_in_refill: deaths, 1;
            death_in_split_and_merge: deaths, 1;
            death_in_free_for_another: deaths, 1;
            death_in_free_beside_another: deaths, 1;
            death_against_free_for_it: deaths, 1;
            death_in_recovery: deaths, 1;
            recovery_against_free_for_the_dead: deaths, 1;
            frees_of_a_block_at_once: deaths, 2;
            frees_of_a_page_at_once: deaths, 1;
            frees_of_a_run_at_once: deaths, 1;
        }
    };
}
pub(crate) use for_all_scenarios;

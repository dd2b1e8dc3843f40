//! Runs a short soak. `cargo xtask soak --minutes N` runs a long one.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use zonal_verify::soak::{Pace, soak};

#[test]
fn a_short_soak_finds_nothing_and_has_tried() {
    let stop = AtomicBool::new(false);
    let tally = soak(1, Pace::SHORT, &stop, |tally| {
        stop.store(tally.rounds >= 10, Relaxed); // relaxed: one thread
    });
    let tally = tally.unwrap();
    assert_eq!(tally.verified, 8 * u64::from(Pace::SHORT.phases));
    assert!(tally.operations > 10_000 && tally.simulated > 10_000, "{tally:?}");
    let faults = tally.faults;
    let wrong = [faults.invalid_frees, faults.raced_frees];
    let kinds = [
        &wrong[..],
        &[
            tally.visits,
            tally.shared_rounds,
            faults.failed_requests,
            faults.settings,
            faults.resizes,
            faults.trims,
        ],
    ]
    .concat();
    assert!(kinds.iter().all(|&count| count > 0), "{faults:?}");
}

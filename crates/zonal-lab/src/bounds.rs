//! How large the figures of an experiment may be.
//!
//! Bounds are checked when an experiment is read, so that no time of a run overflows and no allocation of the
//! lab's has a size that a file alone decides. They lie far outside of anything that was ever measured.
//! Neighbours: `sim/hardware.rs` and `workload/` say which figure has which bounds.

use std::ops::RangeInclusive;

/// The least and the greatest value of a figure.
pub(crate) type Bounds = RangeInclusive<f64>;

/// Work of a CPU, in nanoseconds: up to a second.
pub(crate) const WORK_NS: Bounds = 0.0..=1e9;
/// Work without which virtual time would stand still, in nanoseconds.
pub(crate) const STEP_NS: Bounds = 1.0..=1e9;
/// A pause or a request, in milliseconds: up to a quarter of an hour.
pub(crate) const PAUSE_MS: Bounds = 0.0..=1e6;
/// How long a program runs, in virtual seconds: up to eleven days.
pub(crate) const SECONDS: Bounds = 1e-6..=1e6;
/// Bandwidths, in GB/s: from a megabyte a second to a petabyte.
pub(crate) const GB_S: Bounds = 1e-3..=1e6;
/// Bandwidths, in MB/s: from a kilobyte a second to a terabyte.
pub(crate) const MB_S: Bounds = 1e-3..=1e6;
/// A number of things that the host has in memory at once.
pub(crate) const COUNT: Bounds = 1.0..=1e6;
/// A number without a unit that something else is multiplied by.
pub(crate) const FACTOR: Bounds = 0.0..=100.0;

/// Refuses a value outside its bounds, with both: `200, must be a number from 0 to 100`.
pub(crate) fn check(value: f64, bounds: &Bounds) -> Result<(), String> {
    if bounds.contains(&value) {
        return Ok(());
    }
    let [value, least, most] = [value, *bounds.start(), *bounds.end()].map(written);
    Err(format!("{value}, must be a number from {least} to {most}"))
}

/// A number as people write it.
pub(crate) fn written(number: f64) -> String {
    let is_plain = number == 0.0 || (1e-3..1e6).contains(&number.abs());
    if is_plain { number.to_string() } else { format!("{number:e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_named_as_people_write_them() {
        assert_eq!(check(0.0, &WORK_NS), Ok(()));
        assert_eq!(check(1e9, &WORK_NS), Ok(()));
        assert_eq!(check(1.1e9, &WORK_NS), Err("1.1e9, must be a number from 0 to 1e9".to_owned()));
        assert_eq!(check(f64::NAN, &FACTOR), Err("NaN, must be a number from 0 to 100".to_owned()));
        assert_eq!(check(1e-300, &GB_S), Err("1e-300, must be a number from 0.001 to 1e6".to_owned()));
    }
}

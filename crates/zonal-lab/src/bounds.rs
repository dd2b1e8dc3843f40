//! Allowed ranges of the numbers in an experiment file.
//!
//! The bounds are checked when an experiment file is read. They prevent overflow of virtual time, and they prevent a
//! file from choosing the size of an allocation on the host without a limit. The bounds are far wider than any
//! measured value. Related files: `sim/hardware.rs` and `workload/` assign bounds to fields.

use std::ops::RangeInclusive;

/// The smallest and the largest allowed value.
pub(crate) type Bounds = RangeInclusive<f64>;

/// CPU work, in nanoseconds: up to one second.
pub(crate) const WORK_NS: Bounds = 0.0..=1e9;
/// CPU work that must not be zero, because virtual time would not advance, in nanoseconds.
pub(crate) const STEP_NS: Bounds = 1.0..=1e9;
/// A pause or a disk request, in milliseconds: up to about 17 minutes.
pub(crate) const PAUSE_MS: Bounds = 0.0..=1e6;
/// Run time of a program, in virtual seconds: up to eleven days.
pub(crate) const SECONDS: Bounds = 1e-6..=1e6;
/// Bandwidth in GB/s: from one MB/s to one PB/s.
pub(crate) const GB_S: Bounds = 1e-3..=1e6;
/// Bandwidth in MB/s: from one kB/s to one TB/s.
pub(crate) const MB_S: Bounds = 1e-3..=1e6;
/// Number of objects that the host holds in memory at once.
pub(crate) const COUNT: Bounds = 1.0..=1e6;
/// A dimensionless factor.
pub(crate) const FACTOR: Bounds = 0.0..=100.0;

/// Refuses a value outside its bounds. The error names the value and the bounds: `200, must be a number from 0 to
/// 100`.
pub(crate) fn check(value: f64, bounds: &Bounds) -> Result<(), String> {
    if bounds.contains(&value) {
        return Ok(());
    }
    let [value, least, most] = [value, *bounds.start(), *bounds.end()].map(written);
    Err(format!("{value}, must be a number from {least} to {most}"))
}

/// Formats a number in plain notation if that is readable, otherwise in scientific notation.
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

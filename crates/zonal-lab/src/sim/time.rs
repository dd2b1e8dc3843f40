//! Virtual time.
//!
//! One type represents both points in time (since the start of a run) and durations. It stores picoseconds in 64
//! bits, which is enough for 213 days. Integers make a run identical on every host. Longer times saturate at
//! [`Time::NEVER`], but a run is stopped long before that time (`sim/engine.rs`).

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};

/// A point in virtual time or a duration, in picoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Time(u64);

impl Time {
    /// The start of a run, or a duration of zero.
    pub const ZERO: Self = Self(0);
    /// Later than every other time.
    pub const NEVER: Self = Self(u64::MAX);

    /// Creates a time from picoseconds.
    #[must_use]
    pub const fn from_ps(ps: u64) -> Self {
        Self(ps)
    }

    /// Creates a time from nanoseconds, rounded to picoseconds; negative values become zero.
    #[inline]
    #[must_use]
    pub fn from_ns(ns: f64) -> Self {
        Self(rounded(ns * 1e3))
    }

    /// Creates a time from seconds, with the rounding of [`Self::from_ns`].
    #[inline]
    #[must_use]
    pub fn from_seconds(seconds: f64) -> Self {
        Self(rounded(seconds * 1e12))
    }

    /// Returns the time in picoseconds.
    #[must_use]
    pub const fn ps(self) -> u64 {
        self.0
    }

    /// Returns the time in whole nanoseconds.
    #[must_use]
    pub const fn ns(self) -> u64 {
        self.0 / 1000
    }

    /// Returns the time in seconds.
    #[must_use]
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e12
    }

    /// Multiplies the time by `factor`, rounded to picoseconds.
    #[inline]
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self(rounded(self.0 as f64 * factor))
    }

    /// Multiplies the time by `count`, which is the duration of `count` such times in sequence.
    #[must_use]
    pub const fn times(self, count: u64) -> Self {
        Self(self.0.saturating_mul(count))
    }

    /// Subtracts `other`. Returns zero if `other` is longer.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

/// Rounds to the nearest integer, and to 0 or [`u64::MAX`] if there is none. On processors without an instruction for it,
/// `f64::round` calls a function, which takes longer.
#[inline]
fn rounded(value: f64) -> u64 {
    /// Larger than any time that is simulated.
    const LARGE: f64 = (1_u64 << 62) as f64;
    if !(0.0..LARGE).contains(&value) {
        return value.round() as u64;
    }
    let whole = value as i64;
    (whole + i64::from(value - whole as f64 >= 0.5)) as u64
}

impl Add for Time {
    type Output = Self;
    #[inline]
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Time {
    #[inline]
    fn add_assign(&mut self, other: Self) {
        self.0 = self.0.saturating_add(other.0);
    }
}

impl Sub for Time {
    type Output = Self;
    #[inline]
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl Sum for Time {
    fn sum<I: Iterator<Item = Self>>(times: I) -> Self {
        times.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.seconds();
        match self.0 {
            0..1_000_000 => write!(f, "{:.1} ns", seconds * 1e9),
            1_000_000..1_000_000_000 => write!(f, "{:.2} us", seconds * 1e6),
            1_000_000_000..1_000_000_000_000 => write!(f, "{:.3} ms", seconds * 1e3),
            _ => write!(f, "{seconds:.3} s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_that_of_the_standard_library() {
        let mut random = fastrand::Rng::with_seed(3);
        let large = (0..=70).map(|shift| 2_f64.powi(shift));
        let edges = [0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -7.0, 0.499_999_999_999_999_94, f64::NAN, f64::INFINITY];
        let drawn = (0..100_000).map(|_| random.f64() * 2_f64.powi(random.i32(0..70)));
        for value in large.flat_map(|value| [value.next_down(), value, value + 0.5]).chain(edges).chain(drawn)
        {
            assert_eq!(rounded(value), value.round() as u64, "{value}");
        }
    }
}

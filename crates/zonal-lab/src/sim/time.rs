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
    #[must_use]
    pub fn from_ns(ns: f64) -> Self {
        Self((ns * 1e3).round() as u64)
    }

    /// Creates a time from seconds, with the rounding of [`Self::from_ns`].
    #[must_use]
    pub fn from_seconds(seconds: f64) -> Self {
        Self((seconds * 1e12).round() as u64)
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
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self((self.0 as f64 * factor).round() as u64)
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

//! Virtual time.
//!
//! One type for points (since the start of a run) and spans: picoseconds in 64 bits, enough for 213
//! days. Integers, so that a run is the same on every host. What is longer than that is [`Time::NEVER`]; a run
//! ends long before (`engine.rs`).

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};

/// A point in virtual time, or a span of it, in picoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Time(u64);

impl Time {
    /// The start; nothing.
    pub const ZERO: Self = Self(0);
    /// Later than everything.
    pub const NEVER: Self = Self(u64::MAX);

    /// A time of so many picoseconds.
    #[must_use]
    pub const fn from_ps(ps: u64) -> Self {
        Self(ps)
    }

    /// A time of so many nanoseconds, rounded to picoseconds; less than nothing is nothing.
    #[must_use]
    pub fn from_ns(ns: f64) -> Self {
        Self((ns * 1e3).round() as u64)
    }

    /// A time of so many seconds; as [`Self::from_ns`].
    #[must_use]
    pub fn from_seconds(seconds: f64) -> Self {
        Self((seconds * 1e12).round() as u64)
    }

    /// In picoseconds.
    #[must_use]
    pub const fn ps(self) -> u64 {
        self.0
    }

    /// In whole nanoseconds.
    #[must_use]
    pub const fn ns(self) -> u64 {
        self.0 / 1000
    }

    /// In seconds.
    #[must_use]
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e12
    }

    /// So many times as long; rounded to picoseconds.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self((self.0 as f64 * factor).round() as u64)
    }

    /// The time that so many of these take one after the other.
    #[must_use]
    pub const fn times(self, count: u64) -> Self {
        Self(self.0.saturating_mul(count))
    }

    /// What is left of it after `other`, or nothing.
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

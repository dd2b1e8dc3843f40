//! A thread that shrinks and grows a pool by parts under load, and trims its free memory.
//!
//! In rounds with this thread, no other thread takes memory offline, because a shrink may remove any part and a growth
//! may bring any range back. Trims run in all rounds.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::sleep;
use std::time::Duration;

use fastrand::Rng;
use zonal::units::PageCount;
use zonal_linux::{Pool, ShrinkError, TrimError};

use super::round::Round;
use super::tally::Faults;

/// Time between two changes.
const REST: Duration = Duration::from_millis(2);
/// Largest amount by which a pool shrinks at a time.
const SHRINK_MAX: u64 = 16 << 20;

pub(super) struct Resizer {
    pool: Pool,
    /// Whether the pool shrinks and grows.
    resizes: bool,
    /// Whether free frames hold a poison pattern, so that trims are refused.
    poisons: bool,
    /// Bytes that are offline.
    offline: u64,
    random: Rng,
    faults: Faults,
}

impl Resizer {
    pub(super) fn new(round: &Round, seed: u64) -> Self {
        Self {
            pool: round.pool.clone(),
            resizes: round.resizes,
            poisons: round.config.hardening.poison.is_some(),
            offline: 0,
            random: Rng::with_seed(seed ^ 0x6120),
            faults: Faults::default(),
        }
    }

    /// Shrinks, grows and trims the pool until `over` is set.
    pub(super) fn work_until(&mut self, over: &AtomicBool) {
        // Relaxed: the flag only ends the loop and publishes no data.
        while !over.load(Relaxed) {
            match self.random.u8(..8) {
                0 | 1 => self.trim(),
                2..5 if self.resizes => self.shrink(),
                5.. if self.resizes && self.offline > 0 => {
                    let bytes = self.random.u64(1..=self.offline);
                    self.grow(bytes).expect("the memory was offline");
                }
                _ => {}
            }
            sleep(REST);
        }
    }

    /// Brings all memory back online.
    pub(super) fn restore(&mut self) -> Result<(), String> {
        if self.resizes {
            self.grow(self.offline)?;
            let (managed, frames) = (self.pool.accounting().managed, self.pool.frames());
            if managed != frames || self.offline != 0 {
                return Err(format!("the pool grew to {managed} of {frames} frames; {} bytes", self.offline));
            }
        }
        Ok(())
    }

    pub(super) fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Shrinks the pool, to no less than about three quarters of its size.
    fn shrink(&mut self) {
        let quarter = self.pool.frames().get() * self.pool.page_bytes() as u64 / 4;
        let most = quarter.saturating_sub(self.offline).min(SHRINK_MAX);
        if most == 0 {
            return;
        }
        let bytes = self.random.u64(1..=most);
        let done = match self.pool.shrink(bytes) {
            Ok(done) => {
                assert!(done >= bytes, "{done} of {bytes} bytes were returned without an error");
                done
            }
            Err(ShrinkError::InUse { done, in_use, .. }) => {
                assert!(done < bytes && in_use.len() <= 64, "{done} of {bytes} bytes, {in_use:?}");
                done
            }
            Err(error @ ShrinkError::NotReturned { .. }) => panic!("{error}"),
        };
        self.offline += done;
        self.check_size();
        self.faults.resizes += u64::from(done > 0);
    }

    fn grow(&mut self, bytes: u64) -> Result<(), String> {
        let done = self.pool.grow(bytes).map_err(|error| error.to_string())?;
        if done < bytes || done > self.offline {
            return Err(format!("grew by {done} instead of {bytes} bytes; {} were offline", self.offline));
        }
        self.offline -= done;
        self.check_size();
        self.faults.resizes += u64::from(done > 0);
        Ok(())
    }

    /// Checks the size of the pool, which no other thread changes.
    fn check_size(&self) {
        let managed = self.pool.accounting().managed;
        let offline = PageCount::new(self.offline / self.pool.page_bytes() as u64);
        assert_eq!(managed.plus(offline), self.pool.frames(), "{offline} frames are offline");
    }

    fn trim(&mut self) {
        match self.pool.trim() {
            Ok(_) => assert!(!self.poisons, "a trim would lose the poison"),
            Err(TrimError::Poisoned) => assert!(self.poisons, "the pool does not poison"),
            Err(error @ (TrimError::Refused { .. } | TrimError::Shared | TrimError::Locks(_))) => {
                panic!("{error}")
            }
        }
        self.faults.trims += 1;
    }
}

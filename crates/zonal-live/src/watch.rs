//! Reads a source once per interval and keeps a history.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::sample::{Counter, LocalityRates, Rates, Sample};
use crate::source::{Source, SourceError};

/// Seconds of history.
pub const HISTORY_SECONDS: f64 = 60.0;
/// Largest number of moments in the history, for short intervals.
const MOMENTS_MAX: usize = 1200;

/// What a history keeps of a sample.
#[derive(Clone, PartialEq, Debug)]
pub struct Moment {
    /// [`Sample::seconds`].
    pub seconds: f64,
    /// [`Sample::unix_ms`].
    pub unix_ms: u64,
    /// Free frames of each zone.
    pub free: Vec<u64>,
    /// Rate of each counter since the moment before, in the order of [`Counter::ALL`].
    pub rates: Vec<Option<f64>>,
    /// Allocations per second that were hits, misses and foreign.
    pub locality: Option<[f64; 3]>,
    /// The same for each node, in the order of [`Sample::nodes`].
    pub nodes: Vec<Option<[f64; 3]>>,
}

/// A source with the newest sample, its rates and a history.
///
/// Invariant: the times of the history increase, and its moments have the same zones as the newest sample.
pub struct Watch {
    source: Box<dyn Source>,
    latest: Option<Arc<Sample>>,
    rates: Option<Rates>,
    history: VecDeque<Moment>,
    problem: Option<SourceError>,
}

impl Watch {
    /// Starts to watch a source, and reads it once.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn start(source: Box<dyn Source>) -> Result<Self, SourceError> {
        let mut watch = Self { source, latest: None, rates: None, history: VecDeque::new(), problem: None };
        watch.tick();
        watch.problem.take().map_or(Ok(watch), Err)
    }

    /// Reads the source. If that fails, the last sample stays, and [`Watch::problem`] has the reason until a later call
    /// succeeds.
    pub fn tick(&mut self) {
        let sample = match self.source.read() {
            Ok(sample) => Arc::new(sample),
            Err(error) => {
                self.problem = Some(error);
                self.rates = None;
                return;
            }
        };
        self.problem = None;
        let old = self.latest.replace(Arc::clone(&sample));
        self.rates = old.as_ref().and_then(|old| Rates::between(old, &sample));
        if old.is_some() && self.rates.is_none() {
            self.history.clear();
        }
        self.history.push_back(moment(&sample, self.rates.as_ref()));
        let is_too_old = |first: &Moment| sample.seconds - first.seconds > HISTORY_SECONDS;
        while self.history.len() > MOMENTS_MAX
            || self.history.len() > 2 && self.history.front().is_some_and(is_too_old)
        {
            self.history.pop_front();
        }
    }

    /// Returns what is watched.
    #[must_use]
    pub fn title(&self) -> String {
        self.source.title()
    }

    /// Returns the newest sample.
    ///
    /// # Panics
    /// Never: [`Watch::start`] reads the first one.
    #[must_use]
    pub fn sample(&self) -> &Arc<Sample> {
        self.latest.as_ref().expect("`start` reads the first sample")
    }

    /// Returns the rates between the last two samples, if they can be compared and the last reading succeeded.
    #[must_use]
    pub fn rates(&self) -> Option<&Rates> {
        self.rates.as_ref()
    }

    /// Returns the moments of the last 60 seconds, and at least the last two, oldest first.
    #[must_use]
    pub fn history(&self) -> &VecDeque<Moment> {
        &self.history
    }

    /// Returns why the last reading failed.
    #[must_use]
    pub fn problem(&self) -> Option<&SourceError> {
        self.problem.as_ref()
    }
}

fn moment(sample: &Sample, rates: Option<&Rates>) -> Moment {
    let parts = |rates: LocalityRates| [rates.hit, rates.miss, rates.foreign];
    Moment {
        seconds: sample.seconds,
        unix_ms: sample.unix_ms,
        free: sample.zones.iter().map(|zone| zone.free).collect(),
        rates: rates.map_or_else(|| vec![None; Counter::ALL.len()], |rates| rates.totals.clone()),
        locality: rates.and_then(Rates::locality).map(parts),
        nodes: rates.map_or_else(Vec::new, |rates| rates.nodes.iter().map(|node| node.map(parts)).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SimulatedSource;

    /// Fails at some ticks, and starts anew at others.
    struct Unsteady {
        inner: SimulatedSource,
        ticks: u64,
        fails_at: u64,
        restarts_at: u64,
    }

    impl Source for Unsteady {
        fn title(&self) -> String {
            "unsteady".to_owned()
        }

        fn read(&mut self) -> Result<Sample, SourceError> {
            self.ticks += 1;
            let mut sample = self.inner.read()?;
            if self.ticks == self.restarts_at {
                self.inner = SimulatedSource::new(2, 2);
                sample = self.inner.read()?;
            }
            sample.seconds = self.ticks as f64;
            match self.ticks == self.fails_at {
                true => Err(SourceError::NoPool("/pool".into())),
                false => Ok(sample),
            }
        }
    }

    #[test]
    fn the_history_covers_a_minute() {
        let mut watch = Watch::start(Box::new(SimulatedSource::new(2, 2))).unwrap();
        assert!(watch.rates().is_none());
        (0..100).for_each(|_| watch.tick());
        let times: Vec<_> = watch.history().iter().map(|moment| moment.seconds).collect();
        assert_eq!((times.len(), times[0], times[60]), (61, 41.0, 101.0));
        assert!(watch.history().iter().all(|moment| moment.free.len() == 2 && moment.locality.is_some()));
    }

    #[test]
    fn a_failure_keeps_the_last_sample() {
        let source = Unsteady { inner: SimulatedSource::new(2, 2), ticks: 0, fails_at: 3, restarts_at: 0 };
        let mut watch = Watch::start(Box::new(source)).unwrap();
        watch.tick();
        let kept = Arc::clone(watch.sample());
        watch.tick();
        assert!(watch.problem().is_some() && watch.rates().is_none());
        assert_eq!(watch.sample(), &kept);
        watch.tick();
        assert!(watch.problem().is_none());
        assert_eq!(watch.rates().map(|rates| rates.seconds), Some(2.0), "over the time of the failure");
    }

    #[test]
    fn another_life_of_a_program_begins_another_history() {
        let source = Unsteady { inner: SimulatedSource::new(2, 2), ticks: 0, fails_at: 0, restarts_at: 9 };
        let mut watch = Watch::start(Box::new(source)).unwrap();
        (2..9).for_each(|_| watch.tick());
        assert_eq!(watch.history().len(), 8);
        watch.tick();
        assert_eq!(watch.history().len(), 1);
        assert!(watch.rates().is_none());
        watch.tick();
        assert!(watch.rates().is_some());
    }

    #[test]
    fn a_source_that_fails_at_once_is_not_watched() {
        let source = Unsteady { inner: SimulatedSource::new(2, 2), ticks: 0, fails_at: 1, restarts_at: 0 };
        assert!(matches!(Watch::start(Box::new(source)), Err(SourceError::NoPool(_))));
    }
}

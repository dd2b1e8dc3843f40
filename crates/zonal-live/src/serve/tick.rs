//! One reading of the source, and what is rendered of it: each form at most once, whatever the number of clients.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use serde::Serialize;

use super::page;
use crate::sample::{Rates, Sample};
use crate::watch::{Moment, Watch};

/// The state after a reading.
#[derive(Debug)]
pub(crate) struct Tick {
    at: Instant,
    /// Readings so far.
    pub(crate) reads: u64,
    /// Readings that failed.
    pub(crate) failed_reads: u64,
    /// What is watched.
    pub(crate) title: String,
    /// Time between two readings.
    pub(crate) interval: Duration,
    /// Time after a reading at which the next one is overdue.
    patience: Duration,
    /// The newest sample.
    pub(crate) sample: Arc<Sample>,
    /// Its rates.
    pub(crate) rates: Option<Rates>,
    /// The last minute.
    pub(crate) history: Vec<Moment>,
    /// Why the last reading failed, or that it is overdue. The sample is an older one then.
    pub(crate) problem: Option<String>,
    /// Fragments that the server has rendered.
    pub(crate) renders: Arc<AtomicU64>,
    fragment: OnceLock<String>,
    event: OnceLock<Bytes>,
    page: OnceLock<Bytes>,
    document: OnceLock<Bytes>,
}

/// The document at `/snapshot.json`.
#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    title: &'a str,
    interval_seconds: f64,
    reads: u64,
    sample: &'a Sample,
    rates: Option<&'a Rates>,
    problem: Option<&'a str>,
}

impl Tick {
    /// Copies the state of a watch after its first reading. The next one is overdue after the interval and `patience`.
    pub(crate) fn first(watch: &Watch, interval: Duration, patience: Duration) -> Self {
        Self {
            at: Instant::now(),
            reads: 1,
            failed_reads: 0,
            renders: Arc::default(),
            title: watch.title(),
            interval,
            patience: interval + patience,
            sample: Arc::clone(watch.sample()),
            rates: watch.rates().cloned(),
            history: watch.history().iter().cloned().collect(),
            problem: watch.problem().map(ToString::to_string),
            fragment: OnceLock::new(),
            event: OnceLock::new(),
            page: OnceLock::new(),
            document: OnceLock::new(),
        }
    }

    /// Copies the state of a watch after another reading.
    pub(crate) fn next(&self, watch: &Watch) -> Self {
        Self {
            reads: self.reads + 1,
            failed_reads: self.failed_reads + u64::from(watch.problem().is_some()),
            renders: Arc::clone(&self.renders),
            patience: self.patience,
            ..Self::first(watch, self.interval, Duration::ZERO)
        }
    }

    /// Copies this tick with the problem that the next reading is overdue.
    pub(crate) fn overdue(&self) -> Self {
        Self {
            at: self.at,
            reads: self.reads,
            failed_reads: self.failed_reads,
            renders: Arc::clone(&self.renders),
            title: self.title.clone(),
            interval: self.interval,
            patience: self.patience,
            sample: Arc::clone(&self.sample),
            rates: None,
            history: self.history.clone(),
            problem: Some("the newest reading has not ended".to_owned()),
            fragment: OnceLock::new(),
            event: OnceLock::new(),
            page: OnceLock::new(),
            document: OnceLock::new(),
        }
    }

    /// Returns the time until the next reading is overdue, or `None` if the tick has a problem already.
    pub(crate) fn overdue_in(&self) -> Option<Duration> {
        self.problem.is_none().then(|| self.patience.saturating_sub(self.at.elapsed()))
    }

    /// Whether the last reading succeeded, and no reading is overdue.
    pub(crate) fn is_up(&self) -> bool {
        self.overdue_in().is_some_and(|left| !left.is_zero())
    }

    /// Returns the part of the page that changes with each tick.
    pub(crate) fn fragment(&self) -> &str {
        self.fragment.get_or_init(|| {
            self.renders.fetch_add(1, Ordering::Relaxed); // Relaxed: a statistic
            page::fragment(self)
        })
    }

    /// Returns the fragment as a server-sent event.
    pub(crate) fn event(&self) -> Bytes {
        let event = || {
            let mut event = format!("event: tick\nid: {}\n", self.reads);
            for line in self.fragment().split(['\n', '\r']) {
                event.extend(["data: ", line, "\n"]);
            }
            (event + "\n").into()
        };
        self.event.get_or_init(event).clone()
    }

    /// Returns the page.
    pub(crate) fn page(&self) -> Bytes {
        self.page.get_or_init(|| page::page(self).into()).clone()
    }

    /// Returns the document.
    pub(crate) fn document(&self) -> Bytes {
        let document = Document {
            schema: "zonal.serve.v1",
            title: &self.title,
            interval_seconds: self.interval.as_secs_f64(),
            reads: self.reads,
            sample: &self.sample,
            rates: self.rates.as_ref(),
            problem: self.problem.as_deref(),
        };
        let text = || serde_json::to_string(&document).expect("numbers, texts and lists are JSON") + "\n";
        self.document.get_or_init(|| text().into()).clone()
    }
}

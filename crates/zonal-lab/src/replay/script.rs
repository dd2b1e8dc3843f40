//! Hands the events of a trace to the threads that repeat them.
//!
//! Related files: `ours.rs` runs the threads.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::Read;

use zonal::units::Moment;
use zonal_machine::MachineModel;
use zonal_trace::{Action, Event, TraceError, TraceReader};

use super::ReplayError;
use crate::sim::Time;

/// Events that are read at once for a CPU that has none.
const READ_AT_ONCE: usize = 1 << 12;

/// The longest replay, in seconds: a month. The simulated time until a later event would take hours.
pub(super) const SECONDS_MAX: f64 = 31.0 * 86_400.0;

/// The rest of a trace.
pub(super) struct Script<R> {
    reader: RefCell<TraceReader<R>>,
    origin: String,
    /// The number of events after which the script ends.
    most: u64,
    /// The simulated CPU of each recorded one.
    cpus: Vec<usize>,
    waiting: RefCell<Vec<VecDeque<(Time, Event)>>>,
    /// The moment of the last event that was read.
    read_until: Cell<Time>,
    /// The length of a whole trace.
    length: Cell<Time>,
    /// Events that are missing in what was read.
    lost: Cell<u64>,
    is_over: Cell<bool>,
    is_complete: Cell<bool>,
    error: RefCell<Option<ReplayError>>,
}

/// Whether a machine has all of the recorded CPUs.
pub(super) fn has_all(model: &MachineModel, recorded: &[u32]) -> bool {
    let there = cpus(model);
    recorded.iter().all(|&cpu| there.binary_search(&(cpu as usize)).is_ok())
}

/// Returns the ids of a machine's CPUs in ascending order.
fn cpus(model: &MachineModel) -> Vec<usize> {
    let cpus = model.nodes.iter().flat_map(|node| &node.cpus);
    let mut cpus: Vec<usize> = cpus.map(|cpu| cpu.index()).collect();
    cpus.sort_unstable();
    cpus
}

impl<R: Read> Script<R> {
    /// Creates the script of a trace on a machine. If the machine lacks a recorded CPU, the nth recorded one is its
    /// nth; if it has fewer, some repeat what several did. The script ends after about `most` events. `origin` names
    /// the trace in errors.
    pub(super) fn new(reader: TraceReader<R>, origin: String, model: &MachineModel, most: u64) -> Self {
        let recorded = &reader.header().cpus;
        let cpus: Vec<usize> = if has_all(model, recorded) {
            recorded.iter().map(|&cpu| cpu as usize).collect()
        } else {
            cpus(model).into_iter().cycle().take(recorded.len()).collect()
        };
        let waiting = RefCell::new(vec![VecDeque::new(); cpus.len()]);
        Self {
            reader: RefCell::new(reader),
            origin,
            most,
            cpus,
            waiting,
            read_until: Cell::new(Time::ZERO),
            length: Cell::new(Time::ZERO),
            lost: Cell::new(0),
            is_over: Cell::new(false),
            is_complete: Cell::new(true),
            error: RefCell::new(None),
        }
    }

    pub(super) fn cpus(&self) -> &[usize] {
        &self.cpus
    }

    /// Returns the next event of a recorded CPU with its moment; an error with the moment at which to ask again, if no
    /// event before it is the CPU's; and `None` at the end.
    pub(super) fn next(&self, place: usize) -> Option<Result<(Time, Event), Time>> {
        let first = self.waiting.borrow_mut()[place].pop_front();
        if let Some(first) = first {
            return Some(Ok(first));
        }
        if self.is_over.get() {
            return None;
        }
        self.read();
        let first = self.waiting.borrow_mut()[place].pop_front();
        match first {
            Some(first) => Some(Ok(first)),
            None if self.is_over.get() => None,
            None => Some(Err(self.read_until.get() + Time::from_ps(1))),
        }
    }

    fn read(&self) {
        let mut reader = self.reader.borrow_mut();
        if reader.events() >= self.most {
            self.is_over.set(true);
            return;
        }
        let started = reader.header().started();
        for _ in 0..READ_AT_ONCE {
            match reader.next() {
                None => {
                    if let Some(trailer) = reader.trailer() {
                        self.lost.set(trailer.lost());
                    }
                    let ended = reader.trailer().map(|trailer| Moment::from_ns(trailer.ended_ns));
                    let length = Time::from_ns(ended.map_or(0, |ended| ended.ns_since(started)) as f64);
                    self.length.set(self.read_until.get().max(length));
                    self.is_over.set(true);
                    return;
                }
                Some(Err(TraceError::Cut { .. })) => {
                    self.is_over.set(true);
                    self.is_complete.set(false);
                    return;
                }
                Some(Err(error)) => {
                    self.is_over.set(true);
                    self.error.replace(Some(error.into()));
                    return;
                }
                Some(Ok(event)) => {
                    let at = Time::from_ns(event.at.ns_since(started) as f64);
                    if at.seconds() > SECONDS_MAX {
                        self.is_over.set(true);
                        let (origin, seconds) = (self.origin.clone(), at.seconds());
                        self.error.replace(Some(ReplayError::TooLong { origin, seconds }));
                        return;
                    }
                    self.read_until.set(self.read_until.get().max(at));
                    if let Action::Lost { events } = event.action {
                        self.lost.set(self.lost.get().saturating_add(events.unwrap_or(1)));
                    }
                    let is_used = matches!(event.action, Action::Alloc { .. } | Action::Free { .. });
                    if let Some(place) = reader.header().place(event.cpu).filter(|_| is_used) {
                        self.waiting.borrow_mut()[place].push_back((at, event));
                    }
                }
            }
        }
    }

    /// Returns the error that ended the script.
    pub(super) fn take_error(&self) -> Option<ReplayError> {
        self.error.take()
    }

    /// Returns the number of events that are missing in what was read.
    pub(super) fn lost(&self) -> u64 {
        self.lost.get()
    }

    pub(super) fn is_complete(&self) -> bool {
        self.is_complete.get()
    }

    /// Returns the length of what was read, in seconds.
    pub(super) fn seconds(&self) -> f64 {
        self.read_until.get().max(self.length.get()).seconds()
    }

    pub(super) fn events(&self) -> u64 {
        self.reader.borrow().events()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.reader.borrow().bytes()
    }
}

//! The future events of a simulated machine, ordered by time and then by the order in which they were planned.
//!
//! Related files: `sim/world.rs` plans events, `sim/engine.rs` executes them.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::thread_id::ThreadId;
use super::time::Time;

/// An event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// A thread resumes.
    Thread(ThreadId),
    /// A line can serve its next waiter.
    Line(usize),
}

/// An event, its time and its number in the order of planning.
#[derive(Clone, Copy)]
struct Planned {
    time: Time,
    number: u64,
    event: Event,
}

impl Planned {
    #[inline]
    fn key(&self) -> u128 {
        u128::from(self.time.ps()) << 64 | u128::from(self.number)
    }
}

impl PartialEq for Planned {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Planned {}

impl PartialOrd for Planned {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }

    /// Compares both parts of the keys as one number, which needs no branch.
    #[inline]
    fn le(&self, other: &Self) -> bool {
        other.key() <= self.key()
    }
}

impl Ord for Planned {
    /// Compares in reverse: a [`BinaryHeap`] returns the greatest first, which must be the earliest event.
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

/// Future events.
#[derive(Default)]
pub(super) struct Agenda {
    events: BinaryHeap<Planned>,
    /// Number of events planned so far.
    planned: u64,
}

impl Agenda {
    /// Adds an event.
    #[inline]
    pub(super) fn plan(&mut self, time: Time, event: Event) {
        self.events.push(Planned { time, number: self.planned, event });
        self.planned += 1;
    }

    /// Removes and returns the next event.
    #[inline]
    pub(super) fn next(&mut self) -> Option<(Time, Event)> {
        self.events.pop().map(|Planned { time, event, .. }| (time, event))
    }

    /// Returns the time of the next event; [`Time::NEVER`] if there is none.
    #[inline]
    pub(super) fn earliest(&self) -> Time {
        self.events.peek().map_or(Time::NEVER, |next| next.time)
    }

    /// Removes all events.
    pub(super) fn clear(&mut self) {
        self.events.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_in_the_order_of_planning() {
        let mut agenda = Agenda::default();
        for (line, time) in [5, 3, 5, 0, 3, 5].into_iter().enumerate() {
            agenda.plan(Time::from_ps(time), Event::Line(line));
        }
        assert_eq!(agenda.earliest(), Time::ZERO);
        let events: Vec<_> = std::iter::from_fn(|| agenda.next()).collect();
        let expected = [(0, 3), (3, 1), (3, 4), (5, 0), (5, 2), (5, 5)];
        assert_eq!(events, expected.map(|(time, line)| (Time::from_ps(time), Event::Line(line))));
        assert_eq!(agenda.earliest(), Time::NEVER);
    }
}

//! Predicts the frames of events from the events before, so that most differences are zero or small.
//!
//! Encoder and decoder learn from the same events and so predict the same frames. A prediction is a guess, and a wrong one
//! costs bytes only: a list freed at once is reported frame by frame twice, in the same order; a request gets what was
//! freed last on its CPU, or else what was refilled first; and a drain begins with what was freed or refilled longest ago.
//!
//! Related files: `encoder.rs` and `decoder.rs` store differences to predictions.

use std::collections::VecDeque;

use zonal::units::{Order, Pfn};

use crate::event::{Action, Kind};

/// Frames of a modelled pageset. Older ones are forgotten.
const PAGESET_FRAMES_MAX: usize = 4096;
/// How many frames from the front of a pageset a request is looked for. Requests of other zones and migratetypes skip some.
const LOOKED_AT: usize = 16;

/// What a CPU's recent events say about its next ones.
#[derive(Default, Debug)]
pub(super) struct Prediction {
    /// The next frame after the last one of each kind.
    next: [u64; Kind::COUNT],
    /// Single frames that a pageset has, the next one to be allocated first.
    pageset: VecDeque<u64>,
    /// Frames freed since the last list was reported, and how many of them the report has had.
    freed: Vec<u64>,
    reported: usize,
}

impl Prediction {
    /// Returns the frame that an event has if it is as expected.
    pub(super) fn page(&self, action: &Action) -> u64 {
        let next = self.next[action.kind().index()];
        match action {
            Action::Alloc { order: Order::PAGE, .. } => self.pageset.front().copied().unwrap_or(next),
            Action::Drain { order: Order::PAGE, .. } => self.pageset.back().copied().unwrap_or(next),
            Action::FreeBatched { .. } => self.freed.get(self.reported).copied().unwrap_or(next),
            _ => next,
        }
    }

    /// Learns the frame of an event.
    pub(super) fn learn(&mut self, action: &Action, page: Pfn) {
        let page = page.get();
        self.next[action.kind().index()] = page.wrapping_add(1);
        match action {
            Action::Free { order: Order::PAGE, .. } => {
                if self.reported > 0 || self.freed.len() >= PAGESET_FRAMES_MAX {
                    self.freed.clear();
                    self.reported = 0;
                }
                self.freed.push(page);
                self.pageset.push_front(page);
                self.pageset.truncate(PAGESET_FRAMES_MAX);
            }
            Action::FreeBatched { .. } => self.reported += 1,
            Action::ZoneLocked { order: Order::PAGE, is_refill: true, .. } => {
                self.pageset.push_back(page);
                if self.pageset.len() > PAGESET_FRAMES_MAX {
                    self.pageset.pop_front();
                }
            }
            Action::Alloc { order: Order::PAGE, .. } => {
                let place = self.pageset.iter().take(LOOKED_AT).position(|known| *known == page);
                if let Some(place) = place {
                    self.pageset.remove(place);
                }
            }
            Action::Drain { order: Order::PAGE, .. } => {
                let place = self.pageset.iter().rev().take(LOOKED_AT).position(|known| *known == page);
                if let Some(place) = place {
                    self.pageset.remove(self.pageset.len() - 1 - place);
                }
            }
            _ => {}
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.next = Default::default();
        self.pageset.clear();
        self.freed.clear();
        self.reported = 0;
    }
}

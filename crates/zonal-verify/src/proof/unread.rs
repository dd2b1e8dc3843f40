//! Clears what no later step reads before it is written, so that states that differ only in that are one.
//!
//! This happens after every step, so the places are found once for each world. Related files: `machine.rs` takes the steps.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::proof::table::Table;

/// The places in which a frame is in a thread's hands.
pub(super) const HELD: &[&str] =
    &["Seized", "Freed", "Popped", "Moving", "Raw", "Cut", "Split", "Taken", "Given", "Recovered"];

/// Places of a state that a step may leave without a reader.
pub(super) struct Unread {
    /// What threads owe to a total, the sum of that, and the total. The debts are paid: no guard reads any of the three,
    /// and an invariant has only their sum.
    debts: Vec<(Range<usize>, usize, usize)>,
    /// The program counter of each thread, and its registers, which an idle thread does not need.
    threads: Vec<(usize, [usize; 5])>,
    /// The place of each frame, and what only frames in some places need: the value, and the places.
    frames: Vec<(usize, [usize; 4])>,
    /// Where a frame needs each of these values.
    needed: [Vec<i8>; 4],
}

impl Unread {
    /// Finds the places for `roles` threads and `frames` frames. `places` has the first place and the dimensions of each variable.
    pub(super) fn find(
        table: &Table,
        places: &BTreeMap<String, (usize, Vec<usize>)>,
        roles: usize,
        frames: usize,
    ) -> Self {
        let first = |name: &str| places[name].0;
        let debts = [("owed", "debts", "total"), ("owes", "free_debts", "free_total")];
        let registers = ["set", "lock_seen", "free_seen", "diff_seen", "frame"];
        let values: [(&str, &[&str]); 4] = [
            ("by", HELD),
            ("at", &["Stack", "Blocks"]),
            ("pos", &["Stack", "Deferred"]),
            ("dcpu", &["Deferred"]),
        ];
        let of_debt = |(owed, sum, total): (&str, &str, &str)| {
            (first(owed)..first(owed) + places[owed].1[0], first(sum), first(total))
        };
        let of_thread = |thread: usize| (first("pc") + thread, registers.map(|name| first(name) + thread));
        let of_frame = |frame: usize| (first("place") + frame, values.map(|(name, _)| first(name) + frame));
        let index = |place: &&str| table.index_of("Place", place) as i8;
        Self {
            debts: debts.map(of_debt).into(),
            threads: (0..=roles).map(of_thread).collect(),
            frames: (0..frames).map(of_frame).collect(),
            needed: values.map(|(_, places)| places.iter().map(index).collect()),
        }
    }

    pub(super) fn clear(&self, state: &mut [i8]) {
        for (threads, sum, total) in &self.debts {
            let debts: i8 = state[threads.clone()].iter().sum();
            state[threads.clone()].fill(0);
            state[*sum] -= debts;
            state[*total] += debts;
        }
        for (counter, registers) in &self.threads {
            if state[*counter] == 0 {
                registers.iter().for_each(|&register| state[register] = 0);
            }
        }
        for (place, values) in &self.frames {
            let place = state[*place];
            for (&value, needed) in values.iter().zip(&self.needed) {
                if !needed.contains(&place) {
                    state[value] = 0;
                }
            }
        }
    }
}

//! Checks that the table of transitions has a row for every change of a frame's state.
//!
//! Builds with debug assertions have the checks, and those with `--cfg zonal_transitions`. Related files: `transitions.in`
//! next to the sources has the rows, and the crate `zonal-verify` the table that they come from.

use crate::zone::frame_state::FrameState;

include!("../../transitions.in");

/// Panics if no row of the table changes a state from `from` to `to`.
#[inline(always)]
pub(crate) fn check(from: u8, to: u8) {
    if cfg!(any(debug_assertions, zonal_transitions)) && from != to {
        let [from, to] = [from, to].map(|byte| name(FrameState::decode(byte)));
        let is_row = STATE_ROWS.iter().any(|&(_, row_from, row_to)| (row_from, row_to) == (from, to));
        assert!(is_row, "no row of the table of transitions changes a frame from {from} to {to}");
    }
}

const fn name(state: FrameState) -> &'static str {
    match state {
        FrameState::Free => "Free",
        FrameState::Cached(_) => "Cached",
        FrameState::Allocated(..) => "Allocated",
        FrameState::Quarantined(..) => "Quarantined",
        FrameState::RunHead(..) => "RunHead",
        FrameState::RunPart(_) => "RunPart",
        FrameState::Splitting(_) => "Splitting",
        FrameState::Fenced => "Fenced",
        FrameState::Claimed => "Claimed",
        FrameState::Watched => "Watched",
        FrameState::Retired(_) => "Retired",
        FrameState::NotManaged => "NotManaged",
    }
}

//! Finds the thread's area by the store of the descriptor's address, which must precede the start of a sequence.
//!
//! Related files: `matching.rs` compares the sequence itself.

use super::contract::{AREA_DESCRIPTOR, WORD_BYTES};
use super::expression::{Atom, Expression};
use super::machine::Action;
use super::sequence::Lifted;
use super::step::Fault;

/// Returns the address of the thread's area, in which the descriptor is stored.
pub(super) fn area_of(lifted: &Lifted) -> Result<Expression, Fault> {
    let [event] = lifted.before.as_slice() else {
        let (at, text) = lifted.before.first().map_or((0, ""), |event| (event.at, &event.text));
        return Err(Fault::new(at, text, "accesses memory; before the start, only the descriptor is stored"));
    };
    let thread = Expression::of(Atom::ThreadPointer);
    match &event.action {
        Action::Store { bytes: WORD_BYTES, address, value }
            if value.as_constant() == Some(lifted.descriptor)
                && address.minus(&thread).offset(AREA_DESCRIPTOR.wrapping_neg()).as_register().is_some() =>
        {
            Ok(address.offset(AREA_DESCRIPTOR.wrapping_neg()))
        }
        other => {
            let what = format!(
                "must store the descriptor's address {:#x} at thread + register + {AREA_DESCRIPTOR}; found {other}",
                lifted.descriptor
            );
            Err(Fault::new(event.at, &event.text, what))
        }
    }
}

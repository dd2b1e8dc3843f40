//! Compares the registers that a sequence leaves to its caller, after a commit and after an abort.
//!
//! Related files: `matching.rs` compares what happens before.

use zonal::platform::cpu_local::{LockWord, Popped};

use super::contract::Kind;
use super::expression::Expression;
use super::sequence::Lifted;

/// What is wrong with the registers.
pub(super) struct Wrong {
    pub(super) expected: String,
    pub(super) found: String,
}

/// Requires that one register contains `value` after a commit and the failure's value after an abort, and that the
/// caller continues at the same address in both cases. The result of a push is where the caller continues, so it requires
/// two addresses.
///
/// If the sequence looks up a pageset slot, another register contains that slot's address after a commit, and a slot's
/// address wherever the sequence is aborted: that of the first slot, which the caller left there, or that of the CPU's
/// slot.
pub(super) fn compare_results(
    lifted: &Lifted,
    kind: Kind,
    value: &Expression,
    pageset_slot: Option<(&Expression, &'static str)>,
) -> Result<(), Wrong> {
    let failure = match kind {
        Kind::Push if lifted.abort_continues == lifted.continues => {
            let expected = format!("continue elsewhere than at {:#x} after an abort", lifted.continues);
            return Err(Wrong { expected, found: format!("{:#x}", lifted.abort_continues) });
        }
        Kind::Push => return Ok(()),
        Kind::Pop | Kind::PopFrom => "nothing",
        Kind::Lock => "a locked lock word",
    };
    let result = match lifted.abort_writes.as_slice() {
        [write] if write.value.as_constant().is_some_and(|bits| is_failure(kind, bits)) => write.register,
        writes => {
            let expected = format!("set one register to {failure} after an abort");
            let found = writes.iter().map(|write| format!("{} = {}", write.register, write.value));
            return Err(Wrong { expected, found: listed(found) });
        }
    };
    let committed = lifted.writes.iter().rfind(|write| write.register == result).map(|write| &write.value);
    if committed != Some(value) {
        let expected = format!("leave {value} in {result}, where an abort leaves {failure}");
        let found = committed.map_or_else(|| result.to_owned(), ToString::to_string);
        return Err(Wrong { expected, found });
    }
    if lifted.abort_continues != lifted.continues {
        let expected = format!("continue at {:#x} after an abort", lifted.continues);
        return Err(Wrong { expected, found: format!("{:#x}", lifted.abort_continues) });
    }
    let Some((slot, register)) = pageset_slot else { return Ok(()) };
    let written: Vec<&Expression> =
        lifted.writes.iter().filter(|write| write.register == register).map(|write| &write.value).collect();
    if !written.is_empty() && written.iter().all(|&value| value == slot) {
        return Ok(());
    }
    let expected = format!("leave {slot} in {register}, and write nothing else to {register}");
    Err(Wrong { expected, found: listed(written.iter().map(ToString::to_string)) })
}

fn listed(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(", "))
}

/// Whether a result means that the sequence failed.
fn is_failure(kind: Kind, bits: u64) -> bool {
    match kind {
        Kind::Lock => bits == LockWord::LOCKED.bits(),
        _ => Popped::from_bits(bits) == Popped::NOTHING,
    }
}

//! Values in registers and addresses, as expressions over the initial registers and the loaded values.
//!
//! All arithmetic wraps at 64 bits. Equal expressions have equal values, whatever the registers contained; the reverse
//! does not hold, because only sums and masks are simplified. An unusual but correct sequence can therefore be
//! rejected, and a wrong one is not accepted.
//!
//! Related files: `machine.rs` computes expressions, and `matching.rs` compares them with the contract.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A value that is not a sum.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Atom {
    /// The value that the register with this name had before the first instruction.
    Register(&'static str),
    /// The address of the running thread's own data.
    ThreadPointer,
    /// The value of a load, with zeros above its width.
    Load {
        /// Number of the load, from 1.
        number: usize,
        /// Width in bytes.
        bytes: u32,
    },
    /// The bits that are set in all operands and in the mask.
    And {
        /// The operands, of which none is a constant.
        operands: BTreeSet<Expression>,
        /// The conjunction of all constant operands.
        mask: u64,
    },
}

/// A sum: each atom times its factor, plus a constant.
///
/// Invariant: no factor is zero.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Expression {
    terms: BTreeMap<Atom, u64>,
    constant: u64,
}

/// The mask that keeps a register's lower half.
const LOW_HALF: u64 = u32::MAX as u64;

impl Expression {
    /// Returns the expression of a constant.
    #[must_use]
    pub fn constant(constant: u64) -> Self {
        Self { terms: BTreeMap::new(), constant }
    }

    /// Returns the expression of one atom.
    #[must_use]
    pub fn of(atom: Atom) -> Self {
        Self { terms: [(atom, 1)].into(), constant: 0 }
    }

    /// Returns the sum.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let mut sum = self.clone();
        sum.constant = sum.constant.wrapping_add(other.constant);
        for (atom, &factor) in &other.terms {
            let total = sum.terms.get(atom).copied().unwrap_or(0).wrapping_add(factor);
            if total == 0 {
                sum.terms.remove(atom);
            } else {
                sum.terms.insert(atom.clone(), total);
            }
        }
        sum
    }

    /// Returns the sum with a constant.
    #[must_use]
    pub fn offset(&self, by: u64) -> Self {
        self.plus(&Self::constant(by))
    }

    /// Returns the difference.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        self.plus(&other.times(u64::MAX))
    }

    /// Returns the product with a constant.
    #[must_use]
    pub fn times(&self, factor: u64) -> Self {
        let product = |(atom, of): (&Atom, &u64)| (atom.clone(), of.wrapping_mul(factor));
        let terms = self.terms.iter().map(product).filter(|&(_, factor)| factor != 0).collect();
        Self { terms, constant: self.constant.wrapping_mul(factor) }
    }

    /// Returns the bits that are set in both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let (mut operands, mut mask) = (BTreeSet::new(), u64::MAX);
        for part in [self, other] {
            match (part.as_constant(), part.as_atom()) {
                (Some(constant), _) => mask &= constant,
                (None, Some(Atom::And { operands: inner, mask: inner_mask })) => {
                    operands.extend(inner.iter().cloned());
                    mask &= inner_mask;
                }
                _ => {
                    operands.insert(part.clone());
                }
            }
        }
        let has_all_bits = |operand: &Self| mask | !operand.possible_bits() == u64::MAX;
        match operands.first() {
            None => Self::constant(mask),
            Some(_) if mask == 0 => Self::constant(0),
            Some(only) if operands.len() == 1 && has_all_bits(only) => only.clone(),
            Some(_) => Self::of(Atom::And { operands, mask }),
        }
    }

    /// Returns the value with zeros above the lowest `bytes` bytes, which are 4 or 8.
    #[must_use]
    pub fn low(&self, bytes: u32) -> Self {
        if bytes == 8 { self.clone() } else { self.and(&Self::constant(LOW_HALF)) }
    }

    /// Returns the value if it is a constant.
    #[must_use]
    pub fn as_constant(&self) -> Option<u64> {
        self.terms.is_empty().then_some(self.constant)
    }

    /// Returns the atom if the expression is just one.
    #[must_use]
    pub fn as_atom(&self) -> Option<&Atom> {
        let (atom, &factor) = self.terms.first_key_value()?;
        (self.terms.len() == 1 && factor == 1 && self.constant == 0).then_some(atom)
    }

    /// Returns the register's name if the expression is just its initial value.
    #[must_use]
    pub fn as_register(&self) -> Option<&'static str> {
        match self.as_atom() {
            Some(&Atom::Register(name)) => Some(name),
            _ => None,
        }
    }

    /// Returns a mask that contains all bits that the value can have.
    fn possible_bits(&self) -> u64 {
        match self.as_atom() {
            Some(Atom::Load { bytes: 4, .. }) => LOW_HALF,
            _ => u64::MAX,
        }
    }
}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Register(name) => f.write_str(name),
            Self::ThreadPointer => f.write_str("thread"),
            Self::Load { number, .. } => write!(f, "load{number}"),
            Self::And { operands, mask } => {
                let mut parts: Vec<String> = operands.iter().map(in_brackets).collect();
                if *mask != u64::MAX {
                    parts.push(format!("{mask:#x}"));
                }
                f.write_str(&parts.join(" & "))
            }
        }
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Constants below this size are written as decimal numbers.
        const SMALL: u64 = 1024;
        let mut is_first = true;
        let mut write = |factor: u64, what: &str| {
            let (sign, size) =
                if factor.cast_signed() < 0 { ("-", factor.wrapping_neg()) } else { ("+", factor) };
            let sign = match (std::mem::take(&mut is_first), sign) {
                (true, "+") => String::new(),
                (true, sign) => sign.to_owned(),
                (false, sign) => format!(" {sign} "),
            };
            match (size, what) {
                (SMALL.., "") => write!(f, "{sign}{size:#x}"),
                (_, "") => write!(f, "{sign}{size}"),
                (1, _) => write!(f, "{sign}{what}"),
                _ => write!(f, "{sign}{size} * {what}"),
            }
        };
        for (atom, &factor) in &self.terms {
            let is_alone = factor == 1 && self.as_atom().is_some();
            let is_short = is_alone || !matches!(atom, Atom::And { .. });
            write(factor, &if is_short { atom.to_string() } else { format!("({atom})") })?;
        }
        if self.constant != 0 || self.terms.is_empty() {
            write(self.constant, "")?;
        }
        Ok(())
    }
}

/// Returns the text of an operand, in brackets unless it is one word.
fn in_brackets(operand: &Expression) -> String {
    if operand.as_atom().is_some() { operand.to_string() } else { format!("({operand})") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn register(name: &'static str) -> Expression {
        Expression::of(Atom::Register(name))
    }

    #[test]
    fn sums_cancel_and_wrap() {
        let sum = register("a").plus(&register("b")).offset(8);
        assert_eq!(sum.minus(&register("b")).offset(8_u64.wrapping_neg()), register("a"));
        assert_eq!(sum.minus(&sum).as_constant(), Some(0));
        assert_eq!(register("a").minus(&register("b")).to_string(), "a - b");
        assert_eq!(register("a").times(1 << 63).times(2).as_constant(), Some(0));
    }

    #[test]
    fn a_mask_of_the_lower_half_covers_the_lower_half() {
        let mask = Expression::constant(0x7ff_ffff);
        assert_eq!(register("a").low(4).and(&mask), register("a").and(&mask));
        let narrow = Expression::of(Atom::Load { number: 1, bytes: 4 });
        assert_eq!(narrow.low(4), narrow);
        let wide = Expression::of(Atom::Load { number: 1, bytes: 8 });
        assert_ne!(wide.low(4), wide);
        assert_ne!(narrow.and(&mask), narrow);
    }

    #[test]
    fn conjunctions_have_no_order() {
        let (a, b) = (register("a").plus(&register("c")), register("b"));
        assert_eq!(a.and(&b), b.and(&a));
        assert_ne!(a.and(&b), a.and(&register("c")));
        assert_eq!(a.and(&Expression::constant(0)).as_constant(), Some(0));
    }
}

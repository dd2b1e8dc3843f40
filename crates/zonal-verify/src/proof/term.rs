//! Terms in the table: how they are read, resolved and changed.
//!
//! A term is a number, a name, a read of a variable, or an operation. Names that the table defines are replaced when a term
//! is read, so that only variables, bound names and numbers are left. Booleans and enum values are numbers, too.
//!
//! Related files: `table.rs` reads the table, `smt.rs` writes terms for solvers, and `worlds.rs` evaluates them.

use std::collections::BTreeMap;
use std::fmt;

/// An operation on terms.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Op {
    /// At least one operand holds.
    Or,
    /// All operands hold.
    And,
    /// The first operand does not hold, or the second does.
    Implies,
    /// The operand does not hold.
    Not,
    /// The operands are equal.
    Equal,
    /// The first operand is less than the second.
    Less,
    /// The first operand is at most the second.
    AtMost,
    /// The sum of the operands.
    Add,
    /// The first operand less the second.
    Subtract,
    /// `if a then b else c`.
    If,
}

/// A resolved term.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Term {
    /// A number; false is 0 and true is 1.
    Number(i64),
    /// A value of an enum, by the names that the enum and the value have.
    Value(String, String),
    /// A name that a row or an invariant binds, or `me`.
    Bound(String),
    /// The value of a variable or constant at its indices.
    Read(String, Vec<Term>),
    /// An operation and its operands.
    Apply(Op, Vec<Term>),
}

impl Term {
    /// Returns the term that is true.
    pub fn truth() -> Self {
        Self::Number(1)
    }

    /// Returns the conjunction of terms.
    pub fn all(terms: impl IntoIterator<Item = Self>) -> Self {
        let mut terms: Vec<_> = terms.into_iter().collect();
        match terms.len() {
            0 => Self::truth(),
            1 => terms.remove(0),
            _ => Self::Apply(Op::And, terms),
        }
    }

    /// Returns the conjuncts of a term.
    pub fn conjuncts(&self) -> Vec<Self> {
        match self {
            Self::Apply(Op::And, parts) => parts.iter().flat_map(Self::conjuncts).collect(),
            other => vec![other.clone()],
        }
    }

    /// Replaces each bound name for which `with` has a term.
    #[must_use]
    pub fn bind(&self, with: &BTreeMap<String, Self>) -> Self {
        self.map(&|term| match term {
            Self::Bound(name) => with.get(name).cloned(),
            _ => None,
        })
    }

    /// Rebuilds the term from its leaves upwards; `change` replaces what it returns a term for.
    #[must_use]
    pub fn map(&self, change: &impl Fn(&Self) -> Option<Self>) -> Self {
        let rebuilt = match self {
            Self::Read(name, at) => {
                Self::Read(name.clone(), at.iter().map(|term| term.map(change)).collect())
            }
            Self::Apply(op, of) => Self::Apply(*op, of.iter().map(|term| term.map(change)).collect()),
            leaf => leaf.clone(),
        };
        change(&rebuilt).unwrap_or(rebuilt)
    }

    /// Calls `each` for the term and all terms in it.
    pub fn visit<'t>(&'t self, each: &mut impl FnMut(&'t Self)) {
        each(self);
        if let Self::Read(_, of) | Self::Apply(_, of) = self {
            of.iter().for_each(|term| term.visit(each));
        }
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Value(_, name) | Self::Bound(name) => f.write_str(name),
            Self::Read(name, at) if at.is_empty() => f.write_str(name),
            Self::Read(name, at) => {
                let at: Vec<_> = at.iter().map(ToString::to_string).collect();
                write!(f, "{name}[{}]", at.join(", "))
            }
            Self::Apply(Op::Not, of) => write!(f, "not {}", of[0]),
            Self::Apply(Op::If, of) => write!(f, "if {} then {} else {}", of[0], of[1], of[2]),
            Self::Apply(op, of) => {
                let sign = match op {
                    Op::Or => " or ",
                    Op::And => " and ",
                    Op::Implies => " => ",
                    Op::Less => " < ",
                    Op::AtMost => " <= ",
                    Op::Add => " + ",
                    Op::Subtract => " - ",
                    Op::Equal | Op::Not | Op::If => " = ",
                };
                let of: Vec<_> = of.iter().map(|term| format!("({term})")).collect();
                f.write_str(&of.join(sign))
            }
        }
    }
}

/// Extends `chosen` by every combination of values for some names, each of which has the values of its sort.
pub fn choices(
    chosen: BTreeMap<String, Term>,
    over: &[(String, String)],
    values: impl Fn(&str) -> Vec<Term>,
) -> Vec<BTreeMap<String, Term>> {
    let mut all = vec![chosen];
    for (name, sort) in over {
        let values = values(sort);
        let with = |chosen: &BTreeMap<String, Term>, value: &Term| {
            let mut chosen = chosen.clone();
            chosen.insert(name.clone(), value.clone());
            chosen
        };
        all = all.iter().flat_map(|chosen| values.iter().map(move |value| with(chosen, value))).collect();
    }
    all
}

/// What a name in a term stands for.
pub trait Names {
    /// Returns the term that `name` stands for, with these indices; `None` if the name is unknown there.
    fn resolve(&self, name: &str, at: Vec<Term>) -> Option<Term>;
    /// Returns the body of a definition with its parameter replaced; `None` if there is none of that name.
    fn define(&self, name: &str, of: &Term) -> Option<Term>;
}

/// Reads a term.
///
/// # Errors
/// Returns what is wrong, with the rest of the text from there.
pub fn read(text: &str, names: &impl Names) -> Result<Term, String> {
    let tokens = tokens(text)?;
    let mut reader = Reader { tokens: &tokens, at: 0, names };
    let term = reader.implication()?;
    match reader.peek() {
        None => Ok(term),
        Some(rest) => Err(format!("`{rest}` in `{text}` begins no operation")),
    }
}

fn tokens(text: &str) -> Result<Vec<String>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let word = |c: char| c.is_alphanumeric() || c == '_';
        let signs = ["=>", ":=", "!=", "<=", "=", "<", "+", "-", "(", ")", "[", "]", ","];
        let len = if word(first) {
            rest.find(|c| !word(c)).unwrap_or(rest.len())
        } else {
            let sign = signs.iter().find(|sign| rest.starts_with(**sign));
            sign.ok_or_else(|| format!("`{first}` in `{text}` is no sign of a term"))?.len()
        };
        tokens.push(rest[..len].to_owned());
        rest = rest[len..].trim_start();
    }
    Ok(tokens)
}

struct Reader<'a, N> {
    tokens: &'a [String],
    at: usize,
    names: &'a N,
}

impl<N: Names> Reader<'_, N> {
    fn peek(&self) -> Option<&str> {
        self.tokens.get(self.at).map(String::as_str)
    }

    fn takes(&mut self, token: &str) -> bool {
        let is = self.peek() == Some(token);
        self.at += usize::from(is);
        is
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        if self.takes(token) {
            return Ok(());
        }
        Err(format!("expected `{token}` before `{}`", self.tokens[self.at..].join(" ")))
    }

    fn implication(&mut self) -> Result<Term, String> {
        let left = self.disjunction()?;
        if self.takes("=>") {
            return Ok(Term::Apply(Op::Implies, vec![left, self.implication()?]));
        }
        Ok(left)
    }

    fn disjunction(&mut self) -> Result<Term, String> {
        let mut of = vec![self.conjunction()?];
        while self.takes("or") {
            of.push(self.conjunction()?);
        }
        Ok(if of.len() == 1 { of.remove(0) } else { Term::Apply(Op::Or, of) })
    }

    fn conjunction(&mut self) -> Result<Term, String> {
        let mut of = vec![self.negation()?];
        while self.takes("and") {
            of.push(self.negation()?);
        }
        Ok(Term::all(of))
    }

    fn negation(&mut self) -> Result<Term, String> {
        if self.takes("not") {
            return Ok(Term::Apply(Op::Not, vec![self.negation()?]));
        }
        self.comparison()
    }

    fn comparison(&mut self) -> Result<Term, String> {
        let left = self.sum()?;
        for (sign, op) in [("=", Op::Equal), ("<=", Op::AtMost), ("<", Op::Less)] {
            if self.takes(sign) {
                return Ok(Term::Apply(op, vec![left, self.sum()?]));
            }
        }
        if self.takes("!=") {
            let equal = Term::Apply(Op::Equal, vec![left, self.sum()?]);
            return Ok(Term::Apply(Op::Not, vec![equal]));
        }
        Ok(left)
    }

    fn sum(&mut self) -> Result<Term, String> {
        let mut left = self.atom()?;
        loop {
            let op = if self.takes("+") {
                Op::Add
            } else if self.takes("-") {
                Op::Subtract
            } else {
                return Ok(left);
            };
            left = Term::Apply(op, vec![left, self.atom()?]);
        }
    }

    fn atom(&mut self) -> Result<Term, String> {
        if self.takes("(") {
            let inner = self.implication()?;
            self.expect(")")?;
            return Ok(inner);
        }
        if self.takes("if") {
            let condition = self.implication()?;
            self.expect("then")?;
            let then = self.implication()?;
            self.expect("else")?;
            return Ok(Term::Apply(Op::If, vec![condition, then, self.implication()?]));
        }
        let negative = self.takes("-");
        let token = self.peek().ok_or("the term ends too early")?.to_owned();
        self.at += 1;
        if let Ok(number) = token.parse::<i64>() {
            return Ok(Term::Number(if negative { -number } else { number }));
        }
        if negative {
            return Err(format!("`-{token}` is no number"));
        }
        if self.takes("(") {
            let of = self.implication()?;
            self.expect(")")?;
            return self.names.define(&token, &of).ok_or_else(|| format!("`{token}(...)` is not defined"));
        }
        let mut at = Vec::new();
        if self.takes("[") {
            at.push(self.implication()?);
            while self.takes(",") {
                at.push(self.implication()?);
            }
            self.expect("]")?;
        }
        self.names.resolve(&token, at).ok_or_else(|| format!("`{token}` is not known here"))
    }
}

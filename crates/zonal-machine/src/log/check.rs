//! A decided rule: its inputs with their origin, its outcome, and the verdict of the log.

use zonal::units::NodeId;

use super::report::LoggedKind;
use super::rules::Rule;

/// Where an input comes from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Origin {
    /// It is in the log.
    Printed,
    /// It follows from what is in the log.
    Computed,
    /// The log does not have it, or the rules of the kernel version were never compared with such a kernel.
    Assumed,
}

impl Origin {
    /// Returns the name in documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Printed => "printed",
            Self::Computed => "computed",
            Self::Assumed => "assumed",
        }
    }
}

/// The value of an input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// A number with a unit.
    Number(i64, Unit),
    /// A name, a list of nodes, or blocks.
    Text(String),
}

/// The unit of a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Pages.
    Pages,
    /// kB, as printed.
    Kib,
    /// Microseconds between two lines.
    Microseconds,
    /// A number without a unit.
    None,
}

impl Unit {
    /// Returns the name in documents.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::Pages => Some("pages"),
            Self::Kib => Some("kB"),
            Self::Microseconds => Some("us"),
            Self::None => None,
        }
    }
}

/// An input of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Input {
    /// Its name; for printed values, the log's.
    pub name: &'static str,
    /// Its value.
    pub value: Value,
    /// Where it comes from.
    pub from: Origin,
}

impl Input {
    pub(super) fn pages(name: &'static str, pages: u64, from: Origin) -> Self {
        Self { name, value: Value::Number(i64::try_from(pages).unwrap_or(i64::MAX), Unit::Pages), from }
    }

    pub(super) fn text(name: &'static str, text: impl Into<String>, from: Origin) -> Self {
        Self { name, value: Value::Text(text.into()), from }
    }
}

/// What a rule decides about a zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The zone may serve the request as far as this rule is concerned.
    Passes,
    /// The zone may not serve it.
    Refuses,
    /// An input is missing.
    Unknown,
}

impl Outcome {
    /// Returns the name in documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Passes => "passes",
            Self::Refuses => "refuses",
            Self::Unknown => "unknown",
        }
    }
}

/// The outcome held against what the log shows: that no zone served the request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Verdict {
    /// They agree: this rule or a later one refuses the zone.
    Predicted,
    /// The report shows the state after the decision, and the difference is within what may happen in between.
    Undecided,
    /// They cannot both be right.
    Contradicted,
}

impl Verdict {
    /// Returns the name in documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Predicted => "predicted",
            Self::Undecided => "undecided",
            Self::Contradicted => "contradicted",
        }
    }
}

/// A zone, or a node whose zones were not printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The node; `None` if the log does not say which nodes were left out.
    pub node: Option<NodeId>,
    /// The zone; `None` for a node as a whole.
    pub kind: Option<LoggedKind>,
}

/// A decided rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Check {
    /// The zone; `None` for a rule about the whole report.
    pub place: Option<Place>,
    /// The rule.
    pub rule: Rule,
    /// The inputs that it adds.
    pub inputs: Vec<Input>,
    /// What it decides.
    pub outcome: Outcome,
    /// Whether the log agrees.
    pub verdict: Verdict,
    /// Pages above what the rule requires; at zero and below it refuses.
    pub margin: Option<i64>,
}

//! Parsers of options that choose the allocator's rules.
//!
//! Related files: `run/allocator.rs` and `machine.rs` define the options. `zonal::settings` has the names, except those
//! for zoned counters, which are no setting of the table.

use std::fmt;
use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use zonal::rules::stat_threshold::{
    CounterRules, FoldRule, MAX_STAT_THRESHOLD, PressureRule, ThresholdRule, TotalsRule,
};
use zonal::settings::NamedRule;
use zonal_history::FirstPosting;

/// Returns the parser of an option that selects a rule by its name in the settings table.
pub(crate) fn rule<R: NamedRule>() -> impl TypedValueParser<Value = R> {
    let names = PossibleValuesParser::new(R::names().iter().copied());
    names.try_map(|name| R::from_name(&name))
}

/// The rules of zoned counters: the threshold rule, and those other rules that differ from the defaults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Counters(pub(crate) CounterRules);

const SCALED: &str = "scaled";
const FIRST_POSTING: &str = "first-posting";
const FIXED: &str = "fixed:";
const TO_ZERO: &str = "to-zero";
const AND_MACHINE: &str = "and-machine";
const UNCHANGED: &str = "unchanged";

impl FromStr for Counters {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut rules = CounterRules::default();
        let mut parts = text.split(',').map(str::trim);
        rules.threshold = threshold(parts.next().unwrap_or_default())?;
        for part in parts {
            match part {
                TO_ZERO => rules.fold = FoldRule::ToZero,
                AND_MACHINE => rules.totals = TotalsRule::AndMachine,
                UNCHANGED => rules.pressure = PressureRule::Unchanged,
                _ => {
                    return Err(format!(
                        "`{part}` is not an option of counters; after the threshold, allowed are {TO_ZERO}, {AND_MACHINE} and {UNCHANGED}"
                    ));
                }
            }
        }
        Ok(Self(rules))
    }
}

fn threshold(text: &str) -> Result<ThresholdRule, String> {
    let fixed = |digits: &str| {
        let threshold = digits.parse().ok().filter(|threshold| (1..=MAX_STAT_THRESHOLD).contains(threshold));
        let wrong = || format!("the threshold `{digits}` is not a number from 1 to {MAX_STAT_THRESHOLD}");
        threshold.map(ThresholdRule::Fixed).ok_or_else(wrong)
    };
    match text {
        SCALED => Ok(ThresholdRule::Scaled),
        FIRST_POSTING => Ok(FirstPosting::RULE),
        _ => match text.strip_prefix(FIXED) {
            Some(digits) => fixed(digits),
            None => Err(format!(
                "`{text}` is not a threshold; allowed are {SCALED}, {FIRST_POSTING} and {FIXED}N with N from 1 to \
                 {MAX_STAT_THRESHOLD}"
            )),
        },
    }
}

/// Formats the rules in the form that the option accepts.
impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CounterRules { threshold, fold, totals, pressure } = self.0;
        match threshold {
            ThresholdRule::Scaled => f.write_str(SCALED)?,
            ThresholdRule::Form(form) => f.write_str(form.name())?,
            ThresholdRule::Fixed(threshold) => write!(f, "{FIXED}{threshold}")?,
        }
        for (is_set, name) in [
            (fold == FoldRule::ToZero, TO_ZERO),
            (totals == TotalsRule::AndMachine, AND_MACHINE),
            (pressure == PressureRule::Unchanged, UNCHANGED),
        ] {
            if is_set {
                write!(f, ",{name}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_read_back() {
        let rules = |text: &str| text.parse::<Counters>().map(|Counters(rules)| rules);
        let default = CounterRules::default();
        assert_eq!(rules("scaled"), Ok(default));
        let first = CounterRules { threshold: FirstPosting::RULE, ..default };
        assert_eq!(rules("first-posting"), Ok(first));
        let before_2006 = CounterRules {
            threshold: ThresholdRule::Fixed(32),
            fold: FoldRule::ToZero,
            totals: TotalsRule::AndMachine,
            pressure: PressureRule::Unchanged,
        };
        assert_eq!(rules("fixed:32, unchanged, to-zero,and-machine"), Ok(before_2006));
        for text in [
            "scaled",
            "first-posting",
            "fixed:1",
            "fixed:125",
            "scaled,to-zero",
            "first-posting,and-machine",
            "fixed:32,to-zero,and-machine,unchanged",
        ] {
            assert_eq!(text.parse::<Counters>().unwrap().to_string(), text);
        }
        for (text, named) in [
            ("", "``"),
            ("fixed", "`fixed`"),
            ("fixed:", "the threshold ``"),
            ("fixed:0", "the threshold `0` is not a number from 1 to 125"),
            ("fixed:126", "`126`"),
            ("fixed:-1", "`-1`"),
            ("to-zero", "`to-zero` is not a threshold"),
            ("scaled,scaled", "`scaled` is not an option of counters"),
            ("scaled,", "`` is not an option"),
        ] {
            let error = rules(text).unwrap_err();
            assert!(error.contains(named) && !error.contains('\n'), "{text}: {error}");
        }
    }
}

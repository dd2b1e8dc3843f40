//! Names of the allocator's rules. Options accept these names and reports print them.
//!
//! Related files: `run/allocator.rs` and `machine.rs` define the options.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use zonal::config::{InvalidFree, ZonelistCache};
use zonal::rules::fallback_order::NodeLoad;
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::rules::stat_threshold::{
    CounterRules, FoldRule, MAX_STAT_THRESHOLD, PressureRule, ThresholdRule, TotalsRule,
};

/// How node load grows.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum NodeLoadArg {
    /// Add one each time (from 5.18)
    Accumulate,
    /// Add the number of nodes left (the published patch, 5.16 and 5.17)
    Remaining,
    /// Set to the number of nodes left (before 5.16)
    Assign,
}

/// How the size of per-CPU pagesets is tuned.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum TuningArg {
    Depth,
    DepthPublished,
    Stepwise,
    Fixed,
}

/// How full zones are remembered.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum CacheArg {
    On,
    Published,
    CacheFirst,
    Original,
    Off,
}

/// How invalid frees are detected.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum InvalidFreeArg {
    /// Plain loads and stores: an invalid free that races with a valid one may be detected late
    Checked,
    /// One atomic exchange per free: exactly one of several concurrent frees of a block succeeds
    Exact,
}

/// Returns the name with which an option selects a rule.
pub(crate) fn name_of<A: ValueEnum + Copy + Into<Rule>, Rule: PartialEq>(rule: Rule) -> String {
    let arg = A::value_variants().iter().find(|&&arg| arg.into() == rule);
    let name = arg.and_then(ValueEnum::to_possible_value).expect("every rule has an argument");
    name.get_name().to_owned()
}

impl NodeLoadArg {
    /// Returns the name with which the option selects a rule.
    pub(crate) fn name(rule: NodeLoad) -> String {
        name_of::<Self, _>(rule)
    }
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
        FIRST_POSTING => Ok(ThresholdRule::FirstPosting),
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
            ThresholdRule::FirstPosting => f.write_str(FIRST_POSTING)?,
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

impl From<NodeLoadArg> for NodeLoad {
    fn from(arg: NodeLoadArg) -> Self {
        match arg {
            NodeLoadArg::Accumulate => Self::Accumulate,
            NodeLoadArg::Remaining => Self::AccumulateRemaining,
            NodeLoadArg::Assign => Self::Assign,
        }
    }
}

impl From<TuningArg> for PagesetTuning {
    fn from(arg: TuningArg) -> Self {
        match arg {
            TuningArg::Depth => Self::Depth,
            TuningArg::DepthPublished => Self::DepthPublished,
            TuningArg::Stepwise => Self::Stepwise,
            TuningArg::Fixed => Self::Fixed,
        }
    }
}

impl From<CacheArg> for ZonelistCache {
    fn from(arg: CacheArg) -> Self {
        match arg {
            CacheArg::On => Self::On,
            CacheArg::Published => Self::Published,
            CacheArg::CacheFirst => Self::CacheFirst,
            CacheArg::Original => Self::Original,
            CacheArg::Off => Self::Off,
        }
    }
}

impl From<InvalidFreeArg> for InvalidFree {
    fn from(arg: InvalidFreeArg) -> Self {
        match arg {
            InvalidFreeArg::Checked => Self::Checked,
            InvalidFreeArg::Exact => Self::Exact,
        }
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
        let first = CounterRules { threshold: ThresholdRule::FirstPosting, ..default };
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

    #[test]
    fn rules_have_the_names_of_their_options() {
        assert_eq!(name_of::<NodeLoadArg, _>(NodeLoad::AccumulateRemaining), "remaining");
        assert_eq!(name_of::<TuningArg, _>(PagesetTuning::DepthPublished), "depth-published");
        assert_eq!(name_of::<CacheArg, _>(ZonelistCache::CacheFirst), "cache-first");
        assert_eq!(name_of::<InvalidFreeArg, _>(InvalidFree::Checked), "checked");
    }
}

//! Finds mechanisms in which the compared variants differ but which never acted in any run.
//!
//! Related files: `experiment/answer.rs` puts the sentences into the answer; `outcome.rs` has the counts.

use super::results::Results;
use crate::figures;

/// The setting that chooses how pagesets are tuned.
const TUNING: &str = "config.tuning";
/// The time after which a pageset has adapted to what it saw in the first second.
const ADAPTED_AFTER_SECONDS: f64 = 2.0;

/// A mechanism: the settings that choose it, the events that it causes, and why there are none.
struct Mechanism {
    name: &'static str,
    settings: &'static [&'static str],
    events: &'static [&'static str],
    why: &'static str,
}

const MECHANISMS: [Mechanism; 4] = [
    Mechanism {
        name: "the zonelist cache",
        settings: &["config.zonelist_cache"],
        events: &["marks"],
        why: "it found no zone full",
    },
    Mechanism {
        name: "the pagesets",
        settings: &[TUNING, "config.high_fraction"],
        events: &["refills", "drains"],
        why: "none was refilled or drained",
    },
    Mechanism {
        name: "node reclaim",
        settings: &["config.node_reclaim"],
        events: &["node_reclaim_no_scan", "node_reclaim_full", "node_reclaim_some", "node_reclaim_success"],
        why: "no request needed it",
    },
    Mechanism {
        name: "background reclaim",
        settings: &[
            "config.min_free_kbytes",
            "config.watermark_scale_factor",
            "config.watermark_boost_factor",
        ],
        events: &["background_wakes"],
        why: "no zone fell below its `low` watermark",
    },
];

/// Returns a sentence for each mechanism that never acted.
pub(super) fn mechanisms(results: &Results) -> Vec<String> {
    let (Some(compared), Some(baseline)) = (results.compared(), results.baseline()) else {
        return Vec::new();
    };
    let place = |name: &str| results.variants.iter().position(|variant| variant.name == name);
    let (Some(own), Some(before)) = (place(&compared.name), place(&baseline.name)) else { return Vec::new() };
    let differs = |setting: &&&str| {
        results
            .effective
            .iter()
            .any(|one| one.name == **setting && one.values.get(own) != one.values.get(before))
    };
    let count = |event: &str| -> u64 {
        let runs = results.runs.iter().filter(|run| [&compared.name, &baseline.name].contains(&&run.variant));
        runs.filter_map(|run| run.outcome.events.get(event)).sum()
    };
    let is_idle = |one: &&Mechanism| {
        one.settings.iter().find(differs).is_some() && one.events.iter().all(|event| count(event) == 0)
    };
    let idle = MECHANISMS.iter().filter(is_idle);
    let sentences = idle.map(|one| format!("In no run did {} act: {}.", one.name, one.why));
    sentences.chain(too_short(results, [own, before])).collect()
}

/// Returns a sentence if one variant adapts pagesets once a second, the other does not, and all runs end before.
fn too_short(results: &Results, variants: [usize; 2]) -> Option<String> {
    let tuning = results.effective.iter().filter(|one| one.name == TUNING);
    let adapts =
        |values: &[String]| variants.map(|at| values.get(at).is_some_and(|value| value.contains("depth")));
    let is_compared = tuning.map(|one| adapts(&one.values)).any(|[own, before]| own != before);
    let longest = results.runs.iter().map(|run| run.outcome.seconds).fold(0.0, f64::max);
    (is_compared && longest > 0.0 && longest < ADAPTED_AFTER_SECONDS).then(|| {
        format!(
            "Tuning from depth adapts pagesets once a second, and the longest run took {} s: its full effect is not shown.",
            figures::number(longest)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::results::{Effective, Role, RunResult, VariantInfo};
    use super::*;
    use crate::outcome::Outcome;

    #[test]
    fn runs_that_are_too_short_for_tuning_are_named() {
        let info = |name: &str, role| VariantInfo { name: name.to_owned(), role, about: String::new() };
        let sentences = |tuning: [&str; 2], seconds| {
            let values = tuning.map(str::to_owned).to_vec();
            let events = [("refills", 1), ("drains", 1)].into();
            let outcome = Outcome { seconds, events, ..Outcome::default() };
            mechanisms(&Results {
                variants: vec![info("old", Role::Baseline), info("new", Role::Ours)],
                effective: vec![Effective { name: TUNING.to_owned(), part: None, values, differs: true }],
                runs: vec![RunResult { case: Vec::new(), variant: "new".to_owned(), outcome }],
                ..Results::default()
            })
        };
        let expected = "Tuning from depth adapts pagesets once a second, and the longest run took 0.5 s: its full effect is \
                        not shown.";
        assert_eq!(sentences(["fixed", "depth"], 0.5), [expected]);
        assert!(sentences(["fixed", "depth"], 3.0).is_empty());
        assert!(sentences(["fixed", "stepwise"], 0.5).is_empty());
    }
}

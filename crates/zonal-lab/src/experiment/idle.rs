//! Finds mechanisms in which the compared variants differ but which never acted in any run.
//!
//! Related files: `experiment/answer.rs` puts the sentences into the answer; `outcome.rs` has the counts.

use super::results::Results;

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
        settings: &["config.tuning", "config.high_fraction"],
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
    idle.map(|one| format!("In no run did {} act: {}.", one.name, one.why)).collect()
}

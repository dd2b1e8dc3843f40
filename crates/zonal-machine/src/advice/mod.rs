//! Advice that an experienced administrator would give about a machine, with the figures that support it.
//!
//! Every piece of advice has a condition that ordinary machines do not meet.
//!
//! Related files: `advice/topology.rs` checks nodes, distances and fallback orders, and `advice/memory.rs` checks zones
//! and settings.

mod memory;
mod topology;

use zonal::units::PageCount;
use zonal_model::{MachineModel, Rules, ZoneModel};

use crate::predict::{Prediction, ZonePrediction};
use crate::report::{Advice, Balance, Severity, readable_size};

/// The data that advice is based on.
struct View<'a> {
    model: &'a MachineModel,
    rules: &'a Rules,
    prediction: &'a Prediction,
    balance: &'a [Balance],
}

type AdviceRule = fn(&View<'_>) -> Option<Advice>;

const ADVICE_RULES: &[AdviceRule] = &[
    topology::node_load_defect,
    topology::shared_first_fallback,
    topology::asymmetric_distances,
    topology::without_memory,
    topology::without_cpus,
    topology::node_reclaim_on,
    topology::node_reclaim_off,
    memory::present_but_not_managed,
    memory::min_free_large,
    memory::min_free_small,
    memory::watermarks_too_close,
    memory::pagesets_hold_too_much,
    memory::unusable_behind_reserve,
    memory::tiny_zones,
    memory::counters_drift,
];

/// Returns all advice that applies, the most serious first.
pub(crate) fn advise(
    model: &MachineModel,
    rules: &Rules,
    prediction: &Prediction,
    balance: &[Balance],
) -> Vec<Advice> {
    let view = View { model, rules, prediction, balance };
    let mut advice: Vec<Advice> = ADVICE_RULES.iter().filter_map(|rule| rule(&view)).collect();
    advice.sort_by_key(|advice| std::cmp::Reverse(advice.severity));
    advice
}

fn warn(text: String) -> Option<Advice> {
    Some(Advice { severity: Severity::Warn, text })
}

fn info(text: String) -> Option<Advice> {
    Some(Advice { severity: Severity::Info, text })
}

impl View<'_> {
    fn zones(&self) -> impl Iterator<Item = (&ZoneModel, &ZonePrediction)> {
        let both = self.model.zones.iter().zip(&self.prediction.zones);
        both.filter(|(zone, _)| zone.managed > PageCount::ZERO)
    }

    /// Formats a size for reading.
    fn size(&self, pages: PageCount) -> String {
        readable_size(pages, self.model.page_bytes)
    }
}

/// Lists the first few elements, and the number of the others.
fn list_first(things: &[String]) -> String {
    const SHOWN: usize = 4;
    let shown = things[..things.len().min(SHOWN)].join(", ");
    match things.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn zone_name(zone: &ZoneModel) -> String {
    format!("node {} {}", zone.node, zone.kind)
}

//! Mechanisms that cannot act on a machine or for a load, and what limits their figures.

use zonal::Config;
use zonal::rules::fallback_order::NodeLoad;
use zonal_machine::{KernelVersion, MachineModel, Rules, predict};

use super::effect::Figures;
use super::mechanisms::Mechanism;

/// The time after which a pageset has adapted to what it saw in the first second.
const ADAPTS_AFTER_SECONDS: f64 = 2.0;

/// Returns the mechanisms that cannot act, each with the reason. `runs` are those of the configuration as it is, and then
/// those without each mechanism.
pub(super) fn idle(model: &MachineModel, config: &Config, runs: &[&[Figures]]) -> Vec<(Mechanism, String)> {
    let mut idle = Vec::new();
    let mut say = |mechanism, why: &str| idle.push((mechanism, why.to_owned()));
    if model.zones.len() < 2 {
        say(Mechanism::ZonelistCache, "the machine has one zone, so there is no list to scan");
    } else if runs[0].iter().all(|run| run.marks == 0) {
        say(Mechanism::ZonelistCache, "no request found a zone full, so nothing was ever cached");
    }
    if runs[0].iter().chain(runs[2]).all(|run| run.moves == 0) {
        say(Mechanism::PagesetTuning, "no pageset was refilled or drained");
    }
    if !config.node_reclaim.is_on() {
        say(Mechanism::CacheBeforeReclaim, "node reclaim is off here (zone_reclaim_mode = 0)");
    }
    let orders = |load: NodeLoad| {
        let rules = Rules { node_load: load, ..Rules::of(KernelVersion::NEWEST) };
        predict(model, &rules).orders
    };
    if orders(NodeLoad::Accumulate) == orders(NodeLoad::Assign) {
        say(Mechanism::FallbackOrder, "both rules give this machine the same fallback orders");
    }
    idle
}

/// Returns what limits the figures of mechanisms. `runs` have the configuration as it is.
pub(super) fn notes(runs: &[Figures]) -> Vec<(Mechanism, String)> {
    let forms = "the default always has this mechanism, so the forms of 2011 are compared: zonelist_cache original and published";
    let mut notes = vec![(Mechanism::CacheBeforeReclaim, forms.to_owned())];
    if runs.iter().all(|run| run.seconds < ADAPTS_AFTER_SECONDS) {
        let short = "pagesets adapt once a second, and the runs end before (--operations), so the full effect is not shown";
        notes.push((Mechanism::PagesetTuning, short.to_owned()));
    }
    notes
}

//! Contention on counters with more CPUs than this machine has, measured in the simulator.
//!
//! The simulated machine, its access costs and its program are those of the experiment `zoned-counters-2006`, which
//! was calibrated with published figures. Only the nodes and the memory that each process touches are smaller, so
//! that the measurement takes seconds. Related files: `mechanisms/m4.rs` measures natively.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use zonal::rules::stat_threshold::{CounterRules, TotalsRule};
use zonal::units::{CpuId, PageCount};
use zonal_lab::experiment::results::{CaseValue, Results};
use zonal_lab::experiment::{CaseFilter, Options, Plan, Run, Source, built_in, load, run};
use zonal_lab::workload::Workload;
use zonal_machine::MachineModel;

use super::super::measure::{Better, Table};
use super::super::{Sizes, stops};
use super::{RULES, counters};

/// The experiment and the variant whose settings are used.
const EXPERIMENT: &str = "zoned-counters-2006";
const BASIS: &str = "fixed32";
/// Name of the column that distinguishes the experiment's cases.
const COLUMN: &str = "cpus";
/// Memory per node in bytes: the smallest amount with the same scaled threshold as the real machine, 125.
const NODE_BYTES: u64 = 2 << 30;
/// Memory of a node without processes, in bytes. Nothing is allocated there.
const IDLE_NODE_BYTES: u64 = 16 << 20;
/// Host memory for concurrent simulations, in bytes. A single simulation may use more.
const HOST_BYTES: u64 = 2 << 30;

/// Adds the wall time per page of each process, under each rule and with each number of CPUs.
pub(super) fn measure(table: &mut Table, sizes: &Sizes, stop: &AtomicBool) -> Option<()> {
    let plan = plan(sizes);
    let jobs = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let options = Options { seed: sizes.seed, jobs, memory_bytes: HOST_BYTES };
    let results = run(&plan, &options, |_| (), stop).expect("the experiment runs");
    if stops(stop) || results.missing > 0 {
        return None;
    }
    let cpus = &sizes.simulated_cpus;
    for &cpus in cpus {
        add(table, cpus, TotalsRule::AndMachine, &results, sizes);
    }
    if let Some(&cpus) = cpus.iter().max() {
        add(table, cpus, TotalsRule::PerNode, &results, sizes);
    }
    Some(())
}

/// Returns the plan of the experiment, with the rules of M4 as its variants.
fn plan(sizes: &Sizes) -> Plan {
    let known = built_in(EXPERIMENT).expect("the experiment is built in");
    let mut plan = load(&Source::BuiltIn(known)).expect("a built-in experiment is valid");
    let cpus = sizes.simulated_cpus.iter().map(|&cpus| CaseValue::Number(f64::from(cpus)));
    let cases = CaseFilter(vec![(COLUMN.to_owned(), cpus.collect())]);
    plan.keep(&[BASIS.to_owned()], &cases).expect("the experiment has these cases");
    let with_total = |run: &Run| RULES.map(|rule| of_rule(run, rule, TotalsRule::AndMachine, sizes));
    let without = |run: &Run| RULES.map(|rule| of_rule(run, rule, TotalsRule::PerNode, sizes));
    let largest = plan.runs.last().into_iter().flat_map(without);
    plan.runs = plan.runs.iter().flat_map(with_total).chain(largest).collect();
    plan
}

/// Returns an experiment run under one of M4's rules. `totals` selects whether all CPUs also count to a total for the
/// whole machine, as in the published experiment, or not, as by default in zonal.
fn of_rule(run: &Run, rule: super::Rule, totals: TotalsRule, sizes: &Sizes) -> Run {
    let mut run = run.clone();
    let (name, threshold, fold) = rule;
    run.config.counters = CounterRules { totals, ..counters(threshold, fold) };
    run.variant = variant(name, totals);
    let Workload::FirstTouch(program) = &mut run.workload else { return run };
    let MachineModel { nodes, zones, page_bytes, .. } = Arc::make_mut(&mut run.model);
    program.gib_each = f64::from(sizes.simulated_pages) * f64::from(*page_bytes) / f64::from(1 << 30);
    // Processes are on the CPUs with the lowest IDs.
    let has_process = |cpu: &CpuId| cpu.index() < program.cpus;
    for zone in zones {
        let is_used = nodes.iter().any(|node| node.id == zone.node && node.cpus.iter().any(has_process));
        let bytes = if is_used { NODE_BYTES } else { IDLE_NODE_BYTES };
        zone.managed = zone.managed.min(PageCount::new(bytes / u64::from(*page_bytes)));
        (zone.present, zone.spanned) = (zone.managed, zone.managed);
    }
    run
}

fn variant(name: &str, totals: TotalsRule) -> String {
    format!("{name} {totals:?}")
}

/// Adds the figures for one number of CPUs.
fn add(table: &mut Table, cpus: u32, totals: TotalsRule, results: &Results, sizes: &Sizes) {
    let case = CaseFilter(vec![(COLUMN.to_owned(), vec![CaseValue::Number(f64::from(cpus))])]);
    let of = |name: &str| {
        let run =
            results.runs.iter().find(|run| run.variant == variant(name, totals) && case.takes(&run.case));
        let wall = run.and_then(|run| run.outcome.get("wall")).expect("every run has a wall time");
        wall * 1e6 / f64::from(sizes.simulated_pages)
    };
    let (metric, label) = match totals {
        TotalsRule::AndMachine => {
            (format!("first_touch_{cpus}_cpus"), format!("us per page, {cpus} CPUs, one total"))
        }
        TotalsRule::PerNode => (
            format!("first_touch_{cpus}_cpus_no_machine_total"),
            format!("us per page, {cpus} CPUs, no total"),
        ),
    };
    table.simulated(Better::Less, (metric, label, "us"), RULES.map(|(name, ..)| of(name)));
}

#[cfg(test)]
mod tests {
    use super::super::super::{Findings, Mechanism};
    use super::*;

    fn measured(sizes: &Sizes) -> Findings {
        let mut table = Table::new(RULES.map(|(name, ..)| name), "scaled-overstep");
        measure(&mut table, sizes, &AtomicBool::new(false)).unwrap();
        table.finish(Mechanism::M4, String::new())
    }

    #[test]
    fn larger_thresholds_end_the_contention_of_many_cpus() {
        let sizes = Sizes { simulated_cpus: vec![256], simulated_pages: 200, ..Sizes::for_this_machine() };
        let found = measured(&sizes);
        let of = |metric: &str| {
            let measure = found.measures.iter().find(|measure| measure.metric == metric).unwrap();
            assert!(measure.is_simulated());
            measure.values.clone()
        };
        let (with, without) = (of("first_touch_256_cpus"), of("first_touch_256_cpus_no_machine_total"));
        assert!(with[0] > with[1] && with[1] > with[2] && with[0] > 1.5 * with[4], "{with:?}");
        assert!(without.iter().zip(&with).all(|(without, with)| without <= with), "{without:?}");
    }

    #[test]
    fn a_stopped_simulation_returns_nothing() {
        let sizes = Sizes { simulated_cpus: vec![4], ..Sizes::for_this_machine() };
        let mut table = Table::new(RULES.map(|(name, ..)| name), "scaled-overstep");
        assert_eq!(measure(&mut table, &sizes, &AtomicBool::new(true)), None);
    }
}

//! From how many CPUs on one zone mechanisms pay.

use std::sync::atomic::AtomicBool;

use zonal_machine::MachineModel;

use super::effect::Figure;
use super::load::{Job, Load};
use super::mechanisms::Mechanism;
use super::question::{LoadKind, Question, WhatIfError};
use crate::sim::Hardware;

/// The share of the time in the allocator that a mechanism must save to pay.
const PAYS: f64 = 0.05;
/// The mechanisms that depend on how many CPUs share a zone.
const MECHANISMS: [Mechanism; 2] = [Mechanism::PagesetTuning, Mechanism::Counters];

/// From how many CPUs a mechanism pays.
#[derive(Clone, PartialEq, Debug)]
pub struct Scaling {
    /// The mechanism.
    pub mechanism: Mechanism,
    /// By number of CPUs, the share of the time in the allocator that the mechanism saves, in percent.
    pub saved: Vec<(usize, f64)>,
    /// The smallest number from which on it always pays, and the largest smaller number, at which it does not.
    pub pays: Option<(usize, usize)>,
}

impl Scaling {
    /// Returns the finding in words.
    #[must_use]
    pub fn sentence(&self) -> String {
        let name = self.mechanism.name();
        let &(most, saved) = self.saved.last().unwrap_or(&(0, 0.0));
        match self.pays {
            Some((from, below)) => {
                let s = if from == 1 { "" } else { "s" };
                let below = if below > 0 { format!(", not yet with {below}") } else { String::new() };
                format!(
                    "With page faults, {name} pays from {from} CPU{s} on one zone{below}, and saves {saved:.0} % of the time in \
                     the allocator with {most}."
                )
            }
            None => format!("With page faults, {name} does not pay with up to {most} CPUs on one zone."),
        }
    }
}

/// Measures page faults on the node with the most CPUs, with 1, 4, 16 and more of them. Returns also the number of runs.
pub(super) fn scaling(
    question: &Question<'_>,
    stop: &AtomicBool,
    ended: &(impl Fn(usize, usize) + Sync),
) -> Result<(Vec<Scaling>, usize), WhatIfError> {
    let model = largest_node(question.machine);
    let most = model.nodes.iter().map(|node| node.cpus.len()).max().unwrap_or(0);
    let mut counts: Vec<usize> =
        std::iter::successors(Some(1), |count| Some(count * 4)).take_while(|&count| count < most).collect();
    counts.push(most);
    counts.retain(|&count| count > 0);
    let mut all: Vec<Scaling> = Vec::new();
    let mut runs = 0;
    let base = model.config();
    for (at, &cpus) in counts.iter().enumerate() {
        let load = Load::program(LoadKind::PageFaults, &model, None, cpus, question.operations)?;
        let configs = std::iter::once(base).chain(MECHANISMS.map(|mechanism| mechanism.off(&base)));
        let jobs: Vec<Job> =
            configs.map(|config| Job { config, hardware: Hardware::default(), seed: 1 }).collect();
        runs += jobs.len();
        let share = |done: usize, all: usize| ended(at * all + done, counts.len() * all);
        let figures = load.run_all(&jobs, question.jobs, stop, &share)?;
        for (place, mechanism) in MECHANISMS.into_iter().enumerate() {
            let [on, off] = [0, place + 1].map(|run| figures[run].get(Figure::OperationNs));
            let saved = (cpus, if off > 0.0 { (off - on) / off * 100.0 } else { 0.0 });
            match all.iter_mut().find(|known| known.mechanism == mechanism) {
                Some(known) => known.saved.push(saved),
                None => all.push(Scaling { mechanism, saved: vec![saved], pays: None }),
            }
        }
    }
    for scaling in &mut all {
        scaling.pays = pays(&scaling.saved);
    }
    Ok((all, runs))
}

/// Returns the smallest number from which on all larger ones pay, and the number before it.
fn pays(saved: &[(usize, f64)]) -> Option<(usize, usize)> {
    let count = saved.iter().rev().take_while(|(_, percent)| *percent >= PAYS * 100.0).count();
    let first = saved.len() - count;
    let (from, _) = *saved.get(first)?;
    Some((from, first.checked_sub(1).map_or(0, |before| saved[before].0)))
}

/// Returns the machine with only the node that has the most CPUs.
fn largest_node(model: &MachineModel) -> MachineModel {
    let mut one = model.clone();
    let largest = model.nodes.iter().max_by_key(|node| (node.cpus.len(), std::cmp::Reverse(node.id)));
    for node in &model.nodes {
        if largest.is_some_and(|largest| largest.id != node.id)
            && let Ok(left) = one.without(node.id)
        {
            one = left;
        }
    }
    one
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mechanism_pays_from_the_number_on_which_no_larger_one_contradicts() {
        assert_eq!(pays(&[(1, 0.0), (2, 12.0), (4, 3.0), (8, 20.0), (16, 30.0)]), Some((8, 4)));
        assert_eq!(pays(&[(1, 11.0), (2, 12.0)]), Some((1, 0)));
        assert_eq!(pays(&[(1, 11.0), (2, 4.9)]), None);
        assert_eq!(pays(&[]), None);
    }

    #[test]
    fn one_cpu_is_not_several() {
        for (pays, text) in
            [((1, 0), "pays from 1 CPU on"), ((4, 1), "pays from 4 CPUs on one zone, not yet with 1,")]
        {
            let scaling = Scaling { mechanism: Mechanism::ALL[0], saved: vec![(8, 20.0)], pays: Some(pays) };
            assert!(scaling.sentence().contains(text), "{}", scaling.sentence());
        }
    }

    #[test]
    fn the_largest_node_keeps_its_cpus_and_zones() {
        let model = zonal_machine::preset("xeon224").unwrap();
        let one = largest_node(&model);
        assert_eq!(one.online_nodes().count(), 1);
        assert_eq!(one.nodes.iter().map(|node| node.cpus.len()).max(), Some(112));
    }
}

//! From how many CPUs on one zone mechanisms save a noticeable share of the time in the allocator: when they *pay*.

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
        let percent = PAYS * 100.0;
        let (name, time) = (self.mechanism.name(), "of the time in the allocator");
        let &(most, saved) = self.saved.last().unwrap_or(&(0, 0.0));
        let (more, less): (Vec<_>, Vec<_>) = self.saved.iter().partition(|(_, saved)| *saved >= percent);
        let [more, less] =
            [more, less].map(|all| all.into_iter().map(|(cpus, _)| cpus).collect::<Vec<usize>>());
        let found = match self.pays {
            _ if more.is_empty() => {
                format!("less than {percent:.0} % {time} with up to {}", counted(&[most]))
            }
            Some((from, below)) if more.iter().all(|&cpus| cpus >= from) => {
                let below = if below > 0 { format!(", not yet with {below}") } else { String::new() };
                let from = counted(&[from]);
                format!("at least {percent:.0} % {time} from {from} on{below}, and {saved:.0} % with {most}")
            }
            _ => {
                let (more, less) = (counted(&more), counted(&less));
                format!("at least {percent:.0} % {time} with {more}, but less with {less}")
            }
        };
        format!("With page faults on one zone, {name} saves {found}.")
    }
}

/// Formats numbers of CPUs: `1 CPU`, `1, 4 and 16 CPUs`.
fn counted(cpus: &[usize]) -> String {
    let texts: Vec<String> = cpus.iter().map(usize::to_string).collect();
    match &texts[..] {
        [one] if one == "1" => "1 CPU".to_owned(),
        [first @ .., last] if !first.is_empty() => format!("{} and {last} CPUs", first.join(", ")),
        _ => format!("{} CPUs", texts.concat()),
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
    fn sentences_agree_with_their_figures() {
        for (saved, text) in [
            (
                &[(1, 20.0), (8, 30.0)][..],
                "at least 5 % of the time in the allocator from 1 CPU on, and 30 % with 8.",
            ),
            (&[(1, 2.0), (4, 7.0), (8, 20.0)], "from 4 CPUs on, not yet with 1, and 20 % with 8."),
            (&[(1, 5.2), (4, 1.0), (8, -3.0)], "allocator with 1 CPU, but less with 4 and 8 CPUs."),
            (&[(1, 9.0), (2, 8.0), (4, 3.0), (8, 20.0)], "with 1, 2 and 8 CPUs, but less with 4 CPUs."),
            (&[(1, 1.0), (8, 4.9)], "saves less than 5 % of the time in the allocator with up to 8 CPUs."),
            (&[(1, 1.0)], "with up to 1 CPU."),
        ] {
            let scaling = Scaling { mechanism: Mechanism::ALL[0], saved: saved.to_vec(), pays: pays(saved) };
            let sentence = scaling.sentence();
            assert!(
                sentence.starts_with("With page faults on one zone, ") && sentence.ends_with(text),
                "{sentence}"
            );
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

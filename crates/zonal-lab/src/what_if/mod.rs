//! Answers what each mechanism changes for a load on a machine: the load runs with the mechanism and without it, with
//! several seeds, and with each cost a fifth lower and higher.
//!
//! Related files: `question.rs` has what can be asked, `load.rs` runs loads, `mechanisms.rs` switches mechanisms off, and
//! `scaling.rs` finds from how many CPUs two of them pay.

mod bursts;
mod effect;
mod idle;
mod load;
mod mechanisms;
mod question;
mod scaling;

use std::sync::atomic::AtomicBool;

use zonal::Config;

use crate::sim::Hardware;

pub use effect::{Effect, Figure, Verdict};
use effect::{Figures, is_near};
use load::{Job, Load};
pub use mechanisms::Mechanism;
pub use question::{Asked, LoadKind, Question, WhatIfError};
pub use scaling::Scaling;

/// Seeds with which every load runs.
const SEEDS: u64 = 3;
/// How far each cost is changed.
const COST_CHANGES: [(f64, &str); 2] = [(0.8, "-20 %"), (1.2, "+20 %")];

/// A cost of the hardware.
type Cost = fn(&mut Hardware) -> &mut f64;

/// The costs that are changed, by name.
const COSTS: [(&str, Cost); 4] = [
    ("hit_ns", |hardware| &mut hardware.hit_ns),
    ("memory_ns", |hardware| &mut hardware.memory_ns),
    ("transfer_ns", |hardware| &mut hardware.transfer_ns),
    ("distance_weight", |hardware| &mut hardware.distance_weight),
];

/// The answer.
#[derive(Clone, PartialEq, Debug)]
pub struct WhatIf {
    /// The machine's name.
    pub machine: String,
    /// What ran, in words.
    pub load: String,
    /// How many runs were simulated.
    pub runs: usize,
    /// The effect of each mechanism on each figure, in order.
    pub effects: Vec<Effect>,
    /// Why a mechanism cannot act here, if that is known and it changes nothing.
    pub idle: Vec<(Mechanism, String)>,
    /// What limits the figures of mechanisms that can act.
    pub notes: Vec<(Mechanism, String)>,
    /// From how many CPUs on the largest zone mechanisms pay.
    pub scaling: Vec<Scaling>,
    /// The answer in words.
    pub answer: String,
}

/// Simulates the load with and without each mechanism. `progress` gets the share of the runs that ended.
///
/// # Errors
/// [`WhatIfError`] if the load does not suit the machine, if a run fails, and if `stop` becomes true.
pub fn what_if(
    question: &Question<'_>,
    stop: &AtomicBool,
    progress: &(impl Fn(f64) + Sync),
) -> Result<WhatIf, WhatIfError> {
    let load = Load::new(question)?;
    let base = question.machine.config();
    let (configs, pairs) = configurations(&base);
    let of_seeds = |config: &Config| {
        let config = *config;
        (1..=SEEDS).map(move |seed| Job { config, hardware: Hardware::default(), seed })
    };
    let jobs: Vec<Job> = configs.iter().flat_map(of_seeds).collect();
    let share = |ended: usize, all: usize| progress(0.4 * ended as f64 / all as f64);
    let figures = load.run_all(&jobs, question.jobs, stop, &share)?;
    let by_seed: Vec<&[Figures]> = figures.chunks(SEEDS as usize).collect();
    let (names, costs): (Vec<String>, Vec<Hardware>) = hardware().into_iter().unzip();
    // Costs are changed only for mechanisms that change a figure at all.
    let differs = |[off, on]: &[usize; 2]| {
        Figure::ALL.into_iter().any(|figure| is_near(figure, by_seed[*off], by_seed[*on]))
    };
    let mut places: Vec<usize> = pairs.into_iter().filter(differs).flatten().collect();
    places.sort_unstable();
    places.dedup();
    let at_costs = |&place: &usize| {
        let config = configs[place];
        costs.iter().map(move |hardware| Job { config, hardware: hardware.clone(), seed: 1 })
    };
    let more: Vec<Job> = places.iter().flat_map(at_costs).collect();
    let share = |ended: usize, all: usize| progress(0.4 + 0.3 * ended as f64 / all as f64);
    let figures = load.run_all(&more, question.jobs, stop, &share)?;
    let by_cost: Vec<&[Figures]> = figures.chunks(costs.len()).collect();
    let cost_runs = |place: usize| {
        places
            .iter()
            .position(|&known| known == place)
            .and_then(|at| by_cost.get(at).copied())
            .unwrap_or_default()
    };
    let mut effects = Vec::new();
    for (mechanism, places) in Mechanism::ALL.into_iter().zip(pairs) {
        for figure in Figure::ALL {
            let mut effect = Effect::of(mechanism, figure, places.map(|place| by_seed[place]));
            effect.flips_with = effect.flips(&names, places.map(cost_runs));
            effects.push(effect);
        }
    }
    let mut idle = idle::idle(question.machine, &base, &by_seed);
    idle.retain(|(mechanism, _)| {
        effects.iter().all(|effect| effect.mechanism != *mechanism || effect.verdict == Verdict::Same)
    });
    let mut notes = idle::notes(by_seed[0]);
    notes.retain(|(mechanism, _)| idle.iter().all(|(idle, _)| idle != mechanism));
    let share = |ended: usize, all: usize| progress(0.7 + 0.3 * ended as f64 / all as f64);
    let (scaling, of_scaling) = scaling::scaling(question, stop, &share)?;
    let can_act = |effect: &&Effect| idle.iter().all(|(mechanism, _)| *mechanism != effect.mechanism);
    let answer = answer(&effects.iter().filter(can_act).collect::<Vec<_>>(), &scaling);
    Ok(WhatIf {
        machine: question.machine.name.clone(),
        load: load.about(),
        runs: jobs.len() + more.len() + of_scaling,
        effects,
        idle,
        notes,
        scaling,
        answer,
    })
}

/// Returns the configuration as it is and all others that run, and where each mechanism is off and on among them.
fn configurations(base: &Config) -> (Vec<Config>, [[usize; 2]; Mechanism::ALL.len()]) {
    let mut configs = vec![*base];
    let off = Mechanism::ALL.map(|mechanism| {
        configs.push(mechanism.off(base));
        configs.len() - 1
    });
    let on = Mechanism::ALL.map(|mechanism| {
        let on = mechanism.on(base);
        if on == *base {
            return 0;
        }
        configs.push(on);
        configs.len() - 1
    });
    (configs, std::array::from_fn(|at| [off[at], on[at]]))
}

/// Returns the changed costs, with the name of each change.
fn hardware() -> Vec<(String, Hardware)> {
    let mut all = Vec::new();
    for (name, cost) in COSTS {
        for (factor, change) in COST_CHANGES {
            let mut hardware = Hardware::default();
            *cost(&mut hardware) *= factor;
            all.push((format!("{name} {change}"), hardware));
        }
    }
    all
}

/// Returns the answer in words, from the effects of the mechanisms that can act.
fn answer(effects: &[&Effect], scaling: &[Scaling]) -> String {
    let of = |verdict: Verdict| -> Vec<String> {
        let effects =
            effects.iter().filter(|effect| effect.verdict == verdict && effect.flips_with.is_empty());
        effects
            .map(|effect| {
                let (off, on) = (effect.off, effect.on);
                format!(
                    "{} ({}: {off:.1} without, {on:.1} with)",
                    effect.mechanism.name(),
                    effect.figure.name()
                )
            })
            .collect()
    };
    let (gains, losses) = (of(Verdict::Gain), of(Verdict::Loss));
    let mut text = match (gains.is_empty(), losses.is_empty()) {
        (true, true) => {
            "No mechanism makes a difference for this load on this machine that survives all seeds and \
                         costs: leave the settings as they are."
                .to_owned()
        }
        _ => String::new(),
    };
    for (what, found) in [("These help: ", gains), ("These cost: ", losses)] {
        if !found.is_empty() {
            text += &format!("{}{what}{}.", if text.is_empty() { "" } else { " " }, found.join("; "));
        }
    }
    match effects.iter().filter(|effect| !effect.flips_with.is_empty()).count() {
        0 => {}
        1 => text += " 1 verdict changes with an assumed cost and is left out.",
        unsure => text += &format!(" {unsure} verdicts change with an assumed cost and are left out."),
    }
    let is_left_out = |mechanism: Mechanism| {
        let times = effects.iter().filter(|effect| effect.figure == Figure::OperationNs);
        times.clone().any(|effect| effect.mechanism == mechanism && !effect.flips_with.is_empty())
    };
    for scaling in scaling.iter().filter(|scaling| !is_left_out(scaling.mechanism)) {
        text += &format!(" {}", scaling.sentence());
    }
    text
}

#[cfg(test)]
mod tests;

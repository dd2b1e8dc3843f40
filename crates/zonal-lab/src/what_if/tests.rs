//! Checks answers, refusals, and when a difference counts.

use std::num::NonZeroUsize;

use zonal_machine::MachineModel;

use super::*;

const TWO: NonZeroUsize = NonZeroUsize::new(2).unwrap();

fn asked(machine: &MachineModel, kind: LoadKind) -> WhatIf {
    let question = Question { machine, before: None, load: Asked::Kind(kind), operations: 2000, jobs: TWO };
    what_if(&question, &AtomicBool::new(false), &|_| ()).unwrap()
}

fn effect_of(found: &WhatIf, mechanism: Mechanism, figure: Figure) -> &Effect {
    let is_it = |effect: &&Effect| (effect.mechanism, effect.figure) == (mechanism, figure);
    found.effects.iter().find(is_it).unwrap()
}

#[test]
fn a_machine_with_one_node_needs_no_fallback() {
    let machine = zonal_machine::preset("desktop").unwrap();
    let found = asked(&machine, LoadKind::FirstTouch);
    assert_eq!(found.effects.len(), Mechanism::ALL.len() * Figure::ALL.len());
    for mechanism in [Mechanism::CacheBeforeReclaim, Mechanism::FallbackOrder] {
        assert!(found.idle.iter().any(|(idle, _)| *idle == mechanism), "{:?}", found.idle);
        for figure in Figure::ALL {
            assert_eq!(effect_of(&found, mechanism, figure).verdict, Verdict::Same);
        }
    }
    assert_eq!(effect_of(&found, Mechanism::ZonelistCache, Figure::LocalPercent).on, 100.0);
    assert_eq!(found.scaling.len(), 2);
}

/// Runs that end before pagesets have adapted say nothing about tuning.
#[test]
fn mechanisms_that_cannot_act_are_not_in_the_answer() {
    let machine = zonal_machine::preset("desktop").unwrap();
    let found = asked(&machine, LoadKind::Exchange);
    let why = found.idle.iter().find(|(idle, _)| *idle == Mechanism::PagesetTuning);
    assert!(why.unwrap().1.contains("once a second"), "{:?}", found.idle);
    let (verdicts, _) = found.answer.split_once(" With page faults").unwrap();
    assert!(!verdicts.contains("M2"), "{verdicts}");
    let found = asked(&machine, LoadKind::PageFaults);
    assert!(found.idle.iter().all(|(idle, _)| *idle != Mechanism::PagesetTuning), "{:?}", found.idle);
}

/// A machine without free memory is an error, and not a panic.
#[test]
fn a_full_machine_is_refused() {
    let machine = zonal_machine::preset("desktop").unwrap();
    let zones = machine.zones.iter().map(|zone| zonal_machine::state::ZoneSample {
        node: zone.node.get().into(),
        kind: zone.kind.name().to_owned(),
        managed: zone.managed.get(),
        ..Default::default()
    });
    let full = zonal_machine::state::Sample { zones: zones.collect(), ..Default::default() };
    let load = Asked::Kind(LoadKind::PageFaults);
    let question = Question { machine: &machine, before: Some(&full), load, operations: 1000, jobs: TWO };
    let error = what_if(&question, &AtomicBool::new(false), &|_| ()).unwrap_err();
    assert!(error.to_string().contains("too little memory"), "{error}");
}

#[test]
fn the_same_question_has_the_same_answer() {
    let machine = zonal_machine::preset("desktop").unwrap();
    assert_eq!(asked(&machine, LoadKind::Exchange), asked(&machine, LoadKind::Exchange));
}

#[test]
fn loads_that_do_not_suit_the_machine_are_refused() {
    let machine = zonal_machine::preset("desktop").unwrap();
    let load = Asked::Kind(LoadKind::Overflow);
    let question =
        Question { machine: &machine, before: None, load, operations: 1000, jobs: NonZeroUsize::MIN };
    let error = what_if(&question, &AtomicBool::new(false), &|_| ()).unwrap_err();
    assert!(error.to_string().starts_with("overflow: nodes "), "{error}");
    let question = Question { load: Asked::Kind(LoadKind::PageFaults), ..question };
    let stopped = what_if(&question, &AtomicBool::new(true), &|_| ()).unwrap_err();
    assert!(matches!(stopped, WhatIfError::Interrupted), "{stopped}");
}

#[test]
fn differences_count_only_beyond_spread_and_margin() {
    let of = |figure, off, on, spread| Verdict::of(figure, off, on, spread);
    assert_eq!(of(Figure::OperationNs, 100.0, 97.0, 0.5), Verdict::Gain);
    assert_eq!(of(Figure::OperationNs, 100.0, 97.0, 3.5), Verdict::Same);
    assert_eq!(of(Figure::OperationNs, 100.0, 101.0, 0.0), Verdict::Same);
    assert_eq!(of(Figure::LocalPercent, 50.0, 80.0, 1.0), Verdict::Gain);
    assert_eq!(of(Figure::FailedPercent, 0.0, 5.0, 0.0), Verdict::Loss);
}

#[test]
fn verdicts_that_change_with_a_cost_name_it() {
    let run = |operation_ns| Figures::of_time(operation_ns);
    let costs: Vec<String> = hardware().into_iter().map(|(name, _)| name).collect();
    let mut effect =
        Effect::of(Mechanism::PagesetTuning, Figure::OperationNs, [&[run(100.0); 3], &[run(90.0); 3]]);
    assert_eq!((effect.verdict, effect.off, effect.on, effect.spread), (Verdict::Gain, 100.0, 90.0, 0.0));
    let off = vec![run(100.0); costs.len()];
    let mut on = vec![run(90.0); costs.len()];
    on[1] = run(120.0);
    effect.flips_with = effect.flips(&costs, [&off, &on]);
    assert_eq!(effect.flips_with, ["hit_ns +20 %"]);
    assert!(effect.flips(&costs, [&[], &[]]).is_empty());
}

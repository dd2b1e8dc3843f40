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

/// Runs that end before pagesets have adapted show a part of what tuning does.
#[test]
fn every_difference_is_in_the_answer() {
    let machine = zonal_machine::preset("desktop").unwrap();
    let note = |found: &WhatIf| {
        let note = found.notes.iter().find(|(mechanism, _)| *mechanism == Mechanism::PagesetTuning);
        note.map(|(_, note)| note.clone())
    };
    for kind in [LoadKind::Exchange, LoadKind::FirstTouch] {
        let found = asked(&machine, kind);
        let is_idle = found.idle.iter().any(|(idle, _)| *idle == Mechanism::PagesetTuning);
        assert!(is_idle || note(&found).is_some_and(|note| note.contains("once a second")), "{found:?}");
        for effect in &found.effects {
            if effect.verdict == Verdict::Same {
                continue;
            }
            assert!(found.idle.iter().all(|(idle, _)| *idle != effect.mechanism), "{found:?}");
            let name = format!("{} ({}", effect.mechanism.name(), effect.figure.name());
            assert_eq!(found.answer.contains(&name), effect.flips_with.is_empty(), "{found:?}");
        }
    }
    let found = asked(&machine, LoadKind::PageFaults);
    assert_eq!(note(&found), None);
}

#[test]
fn a_mechanism_without_a_verdict_has_no_sentence() {
    let run = |operation_ns| Figures::of_time(operation_ns);
    let effect = |mechanism| Effect::of(mechanism, Figure::OperationNs, [&[run(100.0)], &[run(90.0)]]);
    let mut effects = [effect(Mechanism::PagesetTuning), effect(Mechanism::Counters)];
    let scaling = |mechanism| Scaling { mechanism, saved: vec![(1, 9.0)], pays: Some((1, 0)) };
    let scaling = [scaling(Mechanism::PagesetTuning), scaling(Mechanism::Counters)];
    effects[1].flips_with = vec!["hit_ns +20 %".to_owned()];
    let expected = "These help: M2 pageset tuning (time in the allocator, ns an operation: 100.0 without, 90.0 with). 1 \
                    verdict changes with an assumed cost and is left out. With page faults on one zone, M2 pageset tuning \
                    saves at least 5 % of the time in the allocator from 1 CPU on, and 9 % with 1.";
    assert_eq!(answer(&effects.iter().collect::<Vec<_>>(), &scaling), expected);
}

/// The zonelist cache `original` lacks more than M3 if it is compared with `on`.
#[test]
fn configurations_differ_only_in_their_mechanism() {
    let base = zonal_machine::preset("desktop").unwrap().config();
    for mechanism in Mechanism::ALL {
        let [off, on] = [mechanism.off(&base), mechanism.on(&base)];
        if mechanism == Mechanism::CacheBeforeReclaim {
            let caches = [off.zonelist_cache, on.zonelist_cache].map(zonal::settings::NamedRule::name);
            assert_eq!(caches, ["original", "published"]);
        } else {
            assert_eq!(on, base);
        }
    }
}

#[test]
fn a_trace_has_no_more_events_than_it_has() {
    let machine = zonal_machine::preset("desktop").unwrap();
    let header = crate::replay::tests::header("6.18.1", None);
    for (cpu, about) in [
        (1, "desktop"),
        (900, "desktop, which lacks some of the recorded CPUs: the nth recorded CPU is its nth"),
    ] {
        let mut events = crate::replay::tests::Events::from_second(0);
        (0..100).for_each(|frame| events.alloc(frame));
        let (events, folder) = (events.on(cpu), tempfile::tempdir().unwrap());
        let file = events.write(&zonal_trace::Header { cpus: vec![cpu], ..header.clone() }, folder.path());
        let trace = crate::replay::OwnTrace::open(&file, Some(&machine), None).unwrap();
        let load = Asked::Trace(&trace);
        let question = Question { machine: &machine, before: None, load, operations: 2000, jobs: TWO };
        let found = what_if(&question, &AtomicBool::new(false), &|_| ()).unwrap();
        assert_eq!(found.load, format!("the first 100 events of the trace on {about}"));
    }
}

/// Operations are requests and frees.
#[test]
fn failed_requests_are_a_share_of_requests() {
    let events = [("failures", 10)].into();
    let counts = crate::system::Counts { operations: 50, events, hit: 20, miss: 10 };
    assert_eq!(load::failed_percent(&counts), 25.0);
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

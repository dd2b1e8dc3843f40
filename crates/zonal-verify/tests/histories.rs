//! Long random histories over random machines, against the naive model.
//!
//! A history that fails is cut down to the operations that matter and kept in
//! `proptest-regressions/histories.txt`, to be played first from then on. `PROPTEST_CASES` says how many
//! histories there are, `ZONAL_STRESS_SECONDS` for how long new ones are tried.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, FileFailurePersistence, TestError, TestRunner};
use zonal::Config;
use zonal_verify::Choices;
use zonal_verify::play::{Operation, Plain, Plan, Player, generator};

/// Histories of a plain run.
const CASES: u32 = 24;
/// Operations of a history; each may stand for many of a kind.
const LENGTH: std::ops::Range<usize> = 300..1500;
/// Bytes of a machine and its configuration: as many as the largest needs.
const MACHINE_BYTES: usize = 250;

/// What decides about one operation: more bytes than any needs.
type Group = [u8; 12];

fn machine(data: &[u8]) -> (Plan, Config) {
    let mut choices = Choices::new(data);
    let mut plan = generator::plan(&mut choices);
    let config = generator::config(&mut choices);
    generator::policies(&mut choices, &mut plan);
    (plan, config)
}

/// Plays a history; debug builds check everything after each group.
fn play(mut player: Player<'_, '_, Plain>, plan: &Plan, history: &[Group]) -> Sums {
    let mut sums = Sums { groups: history.len() as u64, ..Sums::default() };
    for group in history {
        generator::operations(&mut Choices::new(group), plan, |operation| {
            sums.operations += 1;
            player.apply(operation);
        });
        if cfg!(debug_assertions) {
            player.check();
        }
    }
    (sums.served, sums.refused) = (player.model.served, player.model.refused);
    player.finish();
    sums
}

/// What histories did together.
#[derive(Default)]
struct Sums {
    groups: u64,
    operations: u64,
    served: u64,
    refused: u64,
}

fn round(cases: u32, sums: &RefCell<Sums>) {
    let file = FileFailurePersistence::Direct("proptest-regressions/histories.txt");
    let cases = Cases {
        cases,
        failure_persistence: Some(Box::new(file)),
        max_shrink_iters: 4000,
        max_shrink_time: 120_000,
        ..Cases::default()
    };
    let inputs = (vec(any::<u8>(), MACHINE_BYTES), vec(any::<Group>(), LENGTH));
    let outcome = TestRunner::new(cases).run(&inputs, |(data, history)| {
        let (plan, config) = machine(&data);
        let played = plan.played_by(&config, |player| play(player, &plan, &history)).unwrap();
        let mut sums = sums.borrow_mut();
        sums.groups += played.groups;
        sums.operations += played.operations;
        sums.served += played.served;
        sums.refused += played.refused;
        Ok(())
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(reason, (data, history))) => {
            let (plan, config) = machine(&data);
            let mut operations: Vec<Operation> = Vec::new();
            for group in &history {
                generator::operations(&mut Choices::new(group), &plan, |operation| {
                    operations.push(operation);
                });
            }
            panic!("{reason}\n{plan:#?}\n{config:#?}\n{operations:#?}");
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn histories() {
    let set = |name| std::env::var(name).ok().and_then(|value: String| value.parse::<u64>().ok());
    let cases = set("PROPTEST_CASES").map_or(CASES, |cases| cases as u32);
    let until = Instant::now() + Duration::from_secs(set("ZONAL_STRESS_SECONDS").unwrap_or(0));
    let sums = RefCell::new(Sums::default());
    round(cases, &sums);
    while Instant::now() < until {
        round(cases, &sums);
    }
    let Sums { groups, operations, served, refused } = sums.into_inner();
    println!("{operations} operations: {served} blocks served, {refused} wrong frees refused");
    assert!(served > operations / 5 && refused > groups / 40, "histories became dull");
}

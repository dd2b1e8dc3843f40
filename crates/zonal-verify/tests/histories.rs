//! Runs long random histories on random machines, and compares the answers with the naive model.
//!
//! A history that fails is reduced to the relevant operations and stored in `proptest-regressions/histories.txt`.
//! Stored histories run first. `PROPTEST_CASES` is the number of histories, and `ZONAL_STRESS_SECONDS` the time for
//! which new ones are tried.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, FileFailurePersistence, TestError, TestRunner};
use zonal::Config;
use zonal_verify::Choices;
use zonal_verify::history::{Executor, Operation, Plain, Plan, generator};

/// Histories of a normal run.
const CASES: u32 = 24;
/// Operation groups in a history. A group may repeat an operation many times.
const LENGTH: std::ops::Range<usize> = 300..1500;
/// Number of bytes that determine a machine and its configuration. It suffices for the largest machine.
const MACHINE_BYTES: usize = 250;

/// The bytes that determine one group of operations. Their number suffices for any group.
type Group = [u8; 12];

fn machine(data: &[u8]) -> (Plan, Config) {
    let mut choices = Choices::new(data);
    let mut plan = generator::plan(&mut choices);
    let config = generator::config(&mut choices);
    generator::policies(&mut choices, &mut plan);
    (plan, config)
}

/// Runs a history. Debug builds check everything after each group.
fn run(mut executor: Executor<'_, '_, Plain>, plan: &Plan, history: &[Group]) -> Sums {
    let mut sums = Sums { groups: history.len() as u64, ..Sums::default() };
    for group in history {
        generator::operations(&mut Choices::new(group), plan, |operation| {
            sums.operations += 1;
            executor.apply(operation);
        });
        if cfg!(debug_assertions) {
            executor.check();
        }
    }
    (sums.served, sums.refused) = (executor.model.served, executor.model.refused);
    executor.finish();
    sums
}

/// Totals of all histories.
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
        let sum_of_one = plan.with_executor(&config, |executor| run(executor, &plan, &history)).unwrap();
        let mut sums = sums.borrow_mut();
        sums.groups += sum_of_one.groups;
        sums.operations += sum_of_one.operations;
        sums.served += sum_of_one.served;
        sums.refused += sum_of_one.refused;
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
    println!("{operations} operations: {served} blocks served, {refused} invalid frees refused");
    assert!(
        served > operations / 5 && refused > groups / 40,
        "histories have too few successful or refused operations"
    );
}

//! Samples a running machine periodically, at no cost in virtual time.
//!
//! Related files: programs add an observer as a background thread and put its series into their outcome.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;

use crate::outcome::{Outcome, Series};
use crate::sim::{Role, RunError, Simulation, Threads, Time, World};
use crate::system::System;

/// Samples in a run of known length.
const LOOKS: u64 = 200;
/// Maximum number of samples. When a run reaches it, every second sample is dropped and the period doubles.
const LOOKS_MAX: usize = 4096;

/// A sampled value: plot, name, unit, value.
pub(super) type Seen = (&'static str, String, &'static str, f64);

/// The samples taken so far.
#[derive(Default)]
pub(super) struct Observer {
    series: RefCell<Vec<Series>>,
}

impl Observer {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Samples at equal intervals from now until `until`. This is the body of a background thread.
    pub(super) fn watch(&self, world: &World, until: Time, look: impl Fn() -> Vec<Seen>) {
        self.watch_every(world, Time::from_ps((until.ps() / LOOKS).max(1)), look);
    }

    /// Samples once in each `step` from now on. In long runs, `step` grows. This is the body of a background thread.
    pub(super) fn watch_every(&self, world: &World, mut step: Time, look: impl Fn() -> Vec<Seen>) {
        let mut looks = 0;
        loop {
            let now = world.now();
            let seen = world.free_of_charge(&look);
            seen.into_iter().enumerate().for_each(|(at, seen)| self.note(now, at, seen));
            looks += 1;
            if looks == LOOKS_MAX {
                looks /= 2;
                step = step + step;
                self.keep_every_other();
            }
            world.sleep_until(now + step);
        }
    }

    /// Drops every second point of each series.
    fn keep_every_other(&self) {
        for series in &mut *self.series.borrow_mut() {
            let mut at = 0;
            series.points.retain(|_| {
                at += 1;
                at % 2 == 1
            });
        }
    }

    /// Records a sample. `place` is the position of the sample among the samples taken at the same time, which is
    /// usually also the index of its series.
    fn note(&self, now: Time, place: usize, (plot, name, unit, value): Seen) {
        let mut all = self.series.borrow_mut();
        let is_it = |series: &Series| series.plot == plot && series.name == name;
        let at = all.get(place).is_some_and(is_it).then_some(place);
        let at = at.or_else(|| all.iter().position(is_it)).unwrap_or_else(|| {
            all.push(Series { plot, name, unit, points: Vec::new() });
            all.len() - 1
        });
        all[at].points.push((now.seconds(), value));
    }

    /// Returns the recorded series.
    pub(super) fn series(&self) -> Vec<Series> {
        self.series.take()
    }
}

/// Samples `high` and the frame count of one pageset per CPU. If the CPU has several pagesets, the one with the largest
/// `high` is used.
pub(super) fn high_of_pagesets(sim: &Simulation<'_, '_>, cpus: &[usize]) -> Vec<Seen> {
    let largest = |cpu: usize| {
        let own = sim.allocator.pagesets().filter(move |pageset| pageset.cpu.index() == cpu);
        own.max_by_key(|pageset| pageset.high)
    };
    let seen = |cpu: usize| {
        let pageset = largest(cpu)?;
        let figures = [("high", pageset.high.get()), ("count", pageset.count.get())];
        Some(figures.map(|(what, value)| ("pageset", format!("{what}, CPU {cpu}"), "pages", value as f64)))
    };
    cpus.iter().filter_map(|&cpu| seen(cpu)).flatten().collect()
}

/// Runs `threads` until all of them have ended, and samples the pagesets of `cpu` meanwhile. Checks the accounting
/// and returns an outcome without metrics.
pub(super) fn run_watching_pagesets<'a>(
    system: &'a System<'_, '_>,
    mut threads: Threads<'a>,
    cpu: usize,
    until: Time,
    stop: &AtomicBool,
) -> Result<Outcome, RunError> {
    let (observer, count) = (Rc::new(Observer::new()), threads.len());
    let watching = Rc::clone(&observer);
    threads.add(cpu, Role::Background, Time::ZERO, move || {
        watching.watch(system.sim.world, until, || high_of_pagesets(system.sim, &[cpu]));
    })?;
    let ended = system.sim.world.run(threads, stop)?;
    system.check_accounting();
    let mut outcome = Outcome::after(system, ended[..count].iter().copied().max().unwrap_or_default());
    outcome.series = observer.series();
    Ok(outcome)
}

//! `zonal bench figures`: measures figures other than the time of a pair (one allocation and one free), and compares
//! them with their goals.

use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use serde::Serialize;
use zonal_bench::{Figure, Figures, Goal, KERNEL_PAGES, Part, Sizes};

use super::{PeerArgs, frames, warn_of_slow_build, watch_for_interrupt};
use crate::layout::Content::{Numbers, Text};
use crate::layout::{self, Grid, Width};
use crate::outcome::{Failure, print, print_message};
use crate::progress::ProgressLine;
use crate::values::{Size, seed};

/// Measure figures other than the time of a pair: fragmentation, scans past full nodes, start-up, metadata
#[derive(Args, Clone, Debug)]
#[command(after_help = examples())]
pub(super) struct FigureArgs {
    /// The figures to measure; see below [default: all]
    #[arg(value_name = "FIGURES", value_parser = part)]
    parts: Vec<Part>,

    #[command(flatten)]
    peers: PeerArgs,

    /// Memory of pools whose fragmentation is measured; goals are for 4GiB [default: 4GiB, or half of the
    /// available memory]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pool: Option<Size>,

    /// Seed of all random choices; goals are for 1
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = seed, allow_hyphen_values = true)]
    seed: u64,

    /// Print the result as one JSON document
    #[arg(long)]
    json: bool,
}

fn examples() -> String {
    let examples = [
        ("zonal bench figures", "all of them, half a minute"),
        ("zonal bench figures starts metadata --json", ""),
        ("zonal bench figures fragmentation --peer bitmap-allocator", ""),
    ];
    let figures = Part::ALL.map(|part| (part.name(), part.summary()));
    format!("Figures:\n{}\nExamples:\n{}", layout::entries(figures), layout::entries(examples))
}

fn part(name: &str) -> Result<Part, String> {
    Part::ALL.into_iter().find(|part| part.name() == name).ok_or_else(|| {
        let names = Part::ALL.map(Part::name).join(", ");
        format!("`{name}` is not a group of figures; groups are {names}")
    })
}

/// Measures the figures and prints them.
pub(super) fn run(args: &FigureArgs) -> Result<(), Failure> {
    let interrupted = watch_for_interrupt()?;
    warn_of_slow_build();
    let parts = Part::ALL.into_iter().filter(|part| args.parts.is_empty() || args.parts.contains(part));
    let parts: Vec<Part> = parts.collect();
    let sizes = Sizes { frames: frames(args.pool)?, seed: args.seed, ..Sizes::default() };
    if let Some(name) = args.peers.peers.iter().find(|name| KERNEL_PAGES.contains(&name.as_str())) {
        return Err(Failure::bad_input(format!(
            "`{name}` has no figures; it is measured by `zonal bench` alone"
        )));
    }
    let peers = zonal_bench::peers().into_iter().filter(|entry| args.peers.select(entry));
    let entries: Vec<_> = [zonal_bench::zonal()].into_iter().chain(peers).collect();
    let line = ProgressLine::begin();
    let mut begun = 0..parts.len() as u64;
    let figures = zonal_bench::figures(&entries, &parts, &sizes, &interrupted, |part| {
        line.show_steps(part.name(), begun.next().unwrap_or(begun.end), begun.end);
    });
    drop(line);
    for line in &figures.skipped {
        print_message(format_args!("note: skipped: {line}"));
    }
    print(&if args.json { json(&figures) } else { text(&figures, Width::of_output()) })?;
    judge(&interrupted)
}

fn judge(interrupted: &AtomicBool) -> Result<(), Failure> {
    // Relaxed: no data is published with the flag.
    if interrupted.load(Ordering::Relaxed) {
        return Err(Failure::interrupted("interrupted; the finished measurements are printed"));
    }
    Ok(())
}

/// A figure for scripts. The keys of this struct and their order are stable.
#[derive(Serialize)]
struct Line<'a> {
    figure: &'a str,
    allocator: &'a str,
    value: f64,
    unit: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    goal: Option<GoalLine>,
}

#[derive(Serialize)]
struct GoalLine {
    /// `at_most` or `at_least`.
    kind: &'static str,
    must: f64,
    aim: f64,
    /// The strictest goal that the value reaches: `aim` or `must`, or none.
    reached: Option<&'static str>,
}

fn json(figures: &Figures) -> String {
    let lines: Vec<Line<'_>> = figures.rows.iter().map(line).collect();
    serde_json::to_string(&lines).expect("numbers and names are always JSON") + "\n"
}

fn line(figure: &Figure) -> Line<'_> {
    let Figure { name, contender, value, unit, goal } = figure;
    Line {
        figure: name,
        allocator: contender,
        value: *value,
        unit,
        goal: goal.map(|goal| goal_line(goal, *value)),
    }
}

fn goal_line(goal: Goal, value: f64) -> GoalLine {
    let (kind, must, aim) = match goal {
        Goal::AtMost(must, aim) => ("at_most", must, aim),
        Goal::AtLeast(must, aim) => ("at_least", must, aim),
    };
    let reaches = |mark: f64| if kind == "at_most" { value <= mark } else { value >= mark };
    let reached = if reaches(aim) { Some("aim") } else { reaches(must).then_some("must") };
    GoalLine { kind, must, aim, reached }
}

fn text(figures: &Figures, width: Width) -> String {
    let keys = [("figure", Text), ("allocator", Text)];
    let columns = [("value", Numbers), ("unit", Text), ("must", Text), ("aim", Text), ("", Text)];
    let mut grid = Grid::new(keys.len(), keys.into_iter().chain(columns));
    let mut last = "";
    for figure in &figures.rows {
        let goal = figure.goal.map(|goal| goal_line(goal, figure.value));
        let [must, aim, verdict] = goal.map_or_else(Default::default, |goal| {
            let sign = if goal.kind == "at_most" { "<=" } else { ">=" };
            let verdict =
                goal.reached.map_or("missed", |which| if which == "aim" { "aim met" } else { "met" });
            [format!("{sign} {}", goal.must), format!("{sign} {}", goal.aim), verdict.to_owned()]
        });
        let name = if figure.name == last { "" } else { &figure.name };
        last = &figure.name;
        let (contender, value) = (figure.contender.clone(), number(figure.value));
        grid.row([name.to_owned(), contender, value, figure.unit.to_owned(), must, aim, verdict]);
    }
    grid.render("", width)
}

fn number(value: f64) -> String {
    if value.fract() == 0.0 || value >= 1000.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_meets_the_aim_the_must_or_neither() {
        let reached = |goal, values: [f64; 3]| values.map(|value| goal_line(goal, value).reached);
        let all = [Some("aim"), Some("must"), None];
        assert_eq!(reached(Goal::AtMost(1.5, 1.2), [1.2, 1.5, 1.51]), all);
        assert_eq!(reached(Goal::AtLeast(927.0, 940.0), [940.0, 927.0, 926.0]), all);
    }
}

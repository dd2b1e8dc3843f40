//! Lists the built-in experiments, as text and as JSON.

use std::fmt::Write;

use serde::Serialize;
use zonal_lab::experiment::Plan;
use zonal_lab::experiment::results::Role;

/// Largest width of a line.
const WIDTH: usize = 100;

#[derive(Serialize)]
struct Listed<'a> {
    name: &'a str,
    title: &'a str,
    source: &'a str,
    about: &'a str,
    machines: &'a [String],
    variants: Vec<Variant<'a>>,
    cases: usize,
    runs: usize,
    published: bool,
}

#[derive(Serialize)]
struct Variant<'a> {
    name: &'a str,
    role: Role,
    about: &'a str,
}

/// Returns the document and a line break.
pub(super) fn json(plans: &[Plan]) -> String {
    let listed = plans.iter().map(|plan| Listed {
        name: &plan.name,
        title: &plan.title,
        source: &plan.source,
        about: &plan.about,
        machines: &plan.machines,
        variants: plan
            .variants
            .iter()
            .map(|info| Variant { name: &info.name, role: info.role, about: &info.about })
            .collect(),
        cases: plan.cases(),
        runs: plan.runs.len(),
        published: plan.has_published(),
    });
    let listed: Vec<Listed<'_>> = listed.collect();
    serde_json::to_string(&listed).expect("names and numbers are always JSON") + "\n"
}

pub(super) fn text(plans: &[Plan]) -> String {
    let mut text = String::new();
    for plan in plans {
        let _ = writeln!(text, "{}: {}", plan.name, plan.title);
        let _ = writeln!(text, "  {}; on {}", plan.source, plan.machines.join(", "));
        let about = textwrap::Options::new(WIDTH).initial_indent("  ").subsequent_indent("  ");
        let _ = writeln!(text, "{}", textwrap::fill(plan.about.trim(), about));
        let _ = writeln!(text, "  {} cases in {} variants:", plan.cases(), plan.variants.len());
        for variant in &plan.variants {
            let _ = writeln!(text, "    {:<14}{}", variant.name, variant.about);
        }
        text.push('\n');
    }
    text + "Run one with `zonal lab run NAME`, all with `zonal lab run all`.\n"
}

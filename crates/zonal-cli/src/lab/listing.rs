//! Lists the built-in experiments, as text and as JSON.

use serde::Serialize;
use zonal_lab::experiment::Plan;
use zonal_lab::experiment::results::Role;

use crate::layout::Width;
use crate::run::text::counted;

/// Width of the column with variant names.
const NAME_COLUMNS: usize = 14;

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

/// Returns the document, followed by a line break.
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

pub(super) fn text(plans: &[Plan], width: Width) -> String {
    let mut text = String::new();
    for plan in plans {
        text += &width.labelled("", &format!("{}: {}", plan.name, plan.title));
        if !plan.source.is_empty() {
            text += &width.labelled("  source    ", &plan.source);
        }
        text += &width.labelled("  machines  ", &plan.machines.join(", "));
        text += &width.paragraph("  ", "  ", plan.about.trim());
        let (cases, variants) = (plan.cases() as u64, plan.variants.len() as u64);
        text += &format!("  {}, {}:\n", counted(cases, "case"), counted(variants, "variant"));
        for variant in &plan.variants {
            text += &width.labelled(&format!("    {:<NAME_COLUMNS$}", variant.name), &variant.about);
        }
        text.push('\n');
    }
    text + &width.labelled("", "Run one with `zonal lab run NAME`, all with `zonal lab run all`.")
}

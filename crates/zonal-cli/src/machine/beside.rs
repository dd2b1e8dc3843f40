//! A machine before and after changes: the values that differ, in one table.

use std::collections::BTreeMap;

use serde::Serialize;
use zonal::units::ZoneKind;
use zonal_machine::{Report, explain};

use super::words::{in_order, ranges, size};
use super::{MachineArgs, machine, rules};
use crate::layout::Content::Text;
use crate::layout::{Grid, Width};
use crate::outcome::Failure;

/// Both reports as a JSON document.
#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    before: &'a Report,
    after: &'a Report,
}

/// Returns the comparison, and the report after the changes.
pub(super) fn compared(args: &MachineArgs) -> Result<(String, Report), Failure> {
    for (given, option) in
        [(args.check, "--check"), (args.export.is_some(), "--export"), (args.html.is_some(), "--html")]
    {
        if given {
            let problem = format!("{option} is about the machine as it is; leave out --set and --without");
            return Err(Failure::bad_input(problem));
        }
    }
    let model = machine(&args.source)?;
    args.changes.check_kernel(&rules(args, &model)?)?;
    let changed = args.changes.machine(&model)?;
    let before = explain(&model, &rules(args, &model)?);
    let after = explain(&changed, &rules(args, &changed)?);
    let output = if args.json {
        let document = Document { schema: "zonal.machine.v1", before: &before, after: &after };
        serde_json::to_string(&document).expect("numbers and names are always JSON") + "\n"
    } else {
        text(args, &before, &after, Width::of_output())
    };
    Ok((output, after))
}

fn text(args: &MachineArgs, before: &Report, after: &Report, width: Width) -> String {
    let (old, new) = (values(before), values(after));
    let all: BTreeMap<&Key, ()> = old.keys().chain(new.keys()).map(|key| (key, ())).collect();
    let mut grid = Grid::new(1, ["value", "before", "after"].map(|title| (title, Text)));
    let mut same = 0;
    for key in all.into_keys() {
        let [was, is] = [&old, &new].map(|values| values.get(key).map_or("-", String::as_str));
        if was == is {
            same += 1;
        } else {
            grid.row([key.1.clone(), was.to_owned(), is.to_owned()]);
        }
    }
    let changed = old.len().max(new.len()).saturating_sub(same);
    let name = zonal_machine::Excerpt::name(&before.name).to_string();
    let heading = match changed {
        0 => format!("{name}: {}, none of its {same} values changes.", args.changes),
        _ => format!("{name}: {}, {changed} values change, and {same} do not.", args.changes),
    };
    let mut out = width.labelled("", &heading);
    if changed > 0 {
        out += &("\n".to_owned() + &grid.render("  ", width));
    }
    out + &advice(before, after, width)
}

/// Returns the advice that comes and goes.
fn advice(before: &Report, after: &Report, width: Width) -> String {
    let missing = |from: &Report, of: &Report, label: &str| {
        let new = of.advice.iter().filter(|advice| !from.advice.contains(advice));
        new.map(|advice| width.labelled(label, &advice.text)).collect::<String>()
    };
    let text = missing(after, before, "  no longer: ") + &missing(before, after, "  new:       ");
    if text.is_empty() { text } else { format!("\nAdvice\n{text}") }
}

/// Position and name of a value. Positions are compared first.
type Key = ((u8, u16, u8, u8), String);

/// Returns the values of a report by name, in the order in which they are shown.
fn values(report: &Report) -> BTreeMap<Key, String> {
    let mut values = BTreeMap::new();
    let mut put = |place, name: String, value: String| values.insert((place, name), value);
    for node in &report.nodes {
        let order = in_order(node.fallback_order.iter().map(|&id| u64::from(id)));
        put((0, node.id, 0, 0), format!("node {} CPUs", node.id), ranges(&node.cpus));
        put((0, node.id, 0, 1), format!("node {} memory", node.id), size(node.managed, report.page_bytes));
        put((0, node.id, 0, 2), format!("node {} fallback order", node.id), order);
    }
    for zone in &report.zones {
        let kind = ZoneKind::ALL.iter().position(|kind| kind.name() == zone.kind).unwrap_or_default() as u8;
        let mut number = |place, name: &str, value: Option<u64>| {
            if let Some(value) = value {
                let name = format!("node {} {} {name}", zone.node, zone.kind);
                put((1, zone.node, kind, place), name, value.to_string());
            }
        };
        number(0, "min", Some(zone.min));
        number(1, "low", Some(zone.low));
        number(2, "high", Some(zone.high));
        for (place, (limit, &reserve)) in
            ["DMA", "DMA32", "Normal", "Movable"].iter().zip(&zone.protection).enumerate()
        {
            number(3 + place as u8, &format!("reserve for {limit}"), Some(reserve));
        }
        number(10, "batch", Some(zone.batch));
        number(11, "pageset.high", zone.pageset_high);
        number(12, "pageset.high_min", zone.pageset_high_min);
        number(13, "pageset.high_max", zone.pageset_high_max);
        number(14, "stat threshold", Some(zone.stat_threshold));
    }
    for balance in &report.balance {
        let times = in_order(balance.times_nth.iter().map(|&times| u64::from(times)));
        let name = format!("node {} is the 1st, 2nd ... fallback of", balance.node);
        put((2, balance.node, 0, 0), name, format!("{times} nodes"));
    }
    values
}

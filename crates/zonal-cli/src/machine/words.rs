//! Sentences and values of the report on a machine, for the text and the page.

use zonal::settings::NamedRule;
use zonal::units::PageCount;
use zonal_machine::ids;
use zonal_machine::{
    Check, Escaped, Filling, KernelVersion, MachineModel, Measured, Report, Rules, ZoneReport, readable_size,
};

/// Maximum number of entries that are shown for a list or row; the rest is omitted.
const ENTRIES_MAX: usize = 32;

/// Returns the size of the machine.
pub(super) fn machine(model: &MachineModel, report: &Report) -> String {
    format!("{}: {}", Escaped(&report.name), sizes(model, report))
}

/// Returns the size of the machine, without its name.
pub(crate) fn sizes(model: &MachineModel, report: &Report) -> String {
    format!(
        "{}, {}, {} in {}, pages of {}",
        counted(report.nodes.len(), "node"),
        counted(model.online_cpus() as usize, "CPU"),
        size(report.nodes.iter().map(|node| node.managed).sum(), report.page_bytes),
        counted(report.zones.len(), "zone"),
        size(1, report.page_bytes),
    )
}

/// Returns the rules that were applied, and whether they are those of the machine's own kernel.
pub(super) fn rules(model: &MachineModel, rules: &Rules) -> String {
    let own = model.observed.as_ref().and_then(|observed| observed.kernel);
    let whose = match own {
        Some(version) if version == rules.version => "its own kernel".to_owned(),
        Some(version) => format!("its own kernel is {version}"),
        None => "its own kernel is unknown".to_owned(),
    };
    format!("Rules of Linux {} ({whose}), node load: {}", rules.version, rules.node_load.name())
}

/// Returns a warning if the rules are assumed.
pub(super) fn assumed(rules: &Rules, report: &Report) -> Option<String> {
    let compared = KernelVersion::COMPARED.map(|version| version.to_string()).join(", ");
    let text = format!(
        "All values are assumed: no kernel {} was compared with these rules, only {compared}",
        rules.version
    );
    report.assumed.then_some(text)
}

/// Returns which node fills first, and why, if there are several.
pub(crate) fn filling(report: &Report) -> Option<String> {
    const SHOWN: usize = 3;
    let [first, _, ..] = &report.filling[..] else { return None };
    let share = |node: &Filling| {
        let each = size(node.frames / u64::from(node.cpus.max(1)), report.page_bytes);
        let memory = size(node.frames, report.page_bytes);
        format!("{} for {memory}, {each} each", counted(node.cpus as usize, "CPU"))
    };
    let used = first.percent_used;
    if report.filling.iter().all(|node| node.percent_used.total_cmp(&used).is_eq()) {
        let nodes = report.filling.len();
        return Some(format!(
            "If all CPUs allocate at the same rate, all {nodes} nodes fill at the same time"
        ));
    }
    let mut text = format!(
        "If all CPUs allocate at the same rate, node {} fills first ({}), when {used} % of all memory is in use",
        first.node,
        share(first)
    );
    let then: Vec<String> = report.filling[1..]
        .iter()
        .take(SHOWN)
        .map(|node| {
            format!(
                "node {} ({} then, {} %)",
                node.node,
                counted(node.cpus as usize, "CPU"),
                node.percent_used
            )
        })
        .collect();
    text += &format!("; then {}", then.join(", "));
    Some(text)
}

pub(super) fn counted(count: usize, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{count} {thing}s") }
}

pub(super) fn size(pages: u64, page_bytes: u32) -> String {
    readable_size(PageCount::new(pages), page_bytes)
}

/// Formats ids in the way that Linux prints sets of ids: `0-3,8`.
pub(super) fn ranges(ids: &[u32]) -> String {
    if ids.is_empty() { "none".to_owned() } else { ids::format(ids.iter().copied()) }
}

pub(super) fn in_order(ids: impl ExactSizeIterator<Item = u64>) -> String {
    let count = ids.len();
    let shown: Vec<String> = ids.take(ENTRIES_MAX).map(|id| id.to_string()).collect();
    match count.saturating_sub(ENTRIES_MAX) {
        0 => shown.join(" "),
        more => format!("{} ... {more} more", shown.join(" ")),
    }
}

/// Formats the limits of a zone's pagesets.
pub(super) fn pageset_high(zone: &ZoneReport) -> String {
    match (zone.pageset_high, zone.pageset_high_min, zone.pageset_high_max) {
        (Some(high), _, _) => high.to_string(),
        (None, Some(least), Some(most)) => format!("{least}..{most}"),
        _ => String::new(),
    }
}

pub(super) fn measured(value: &Measured) -> String {
    match value {
        Measured::One(one) => one.to_string(),
        Measured::Row(row) => in_order(row.iter().copied()),
    }
}

/// Returns how many checks agree exactly.
pub(crate) fn checks(report: &Report) -> String {
    let (total, same) = (report.checks.len(), report.checks.iter().filter(|check| check.same).count());
    format!("{same} of {total} values that its kernel reported are predicted exactly")
}

/// Returns which predicted values could not be checked, if there are any.
pub(super) fn unchecked(report: &Report) -> Option<String> {
    let names = report.unchecked.iter().map(|lacking| format!("{} of {}", lacking.value, lacking.count));
    let names = names.collect::<Vec<_>>().join(", ");
    let total: usize = report.unchecked.iter().map(|lacking| lacking.count).sum();
    (total > 0).then(|| format!("{total} predicted values were not reported and not checked: {names}"))
}

/// Returns how many checks agree with the values computed at boot, if some do.
pub(super) fn checks_at_boot(report: &Report) -> Option<String> {
    let differing = report.checks.iter().filter(|check| Check::differs(check)).count();
    report
        .at_boot
        .as_ref()
        .map(|at_boot| format!("{} as computed at boot, {differing} differ", at_boot.explained))
}

/// Explains the values that the kernel computed at boot, and describes how to make the kernel compute them again.
pub(super) fn at_boot(report: &Report) -> Option<String> {
    let at_boot = report.at_boot.as_ref()?;
    let frames = |fewer: u64| format!("{fewer} frames ({})", size(fewer, report.page_bytes));
    let zones: Vec<String> = at_boot
        .zones
        .iter()
        .map(|zone| format!("{} of node {} {}", frames(zone.fewer), zone.node, zone.kind))
        .collect();
    let most = match at_boot.fewer_at_most {
        most if most > at_boot.fewer => format!(" (at most {most}; watermarks are rounded)"),
        _ => String::new(),
    };
    let mut text = format!(
        "The kernel computed these values when it had at least {} fewer{most}: {}. With that many fewer, all of them \
         follow from the rules. Memory used during boot, such as the initial file system, was released to these \
         zones later.",
        frames(at_boot.fewer),
        zones.join(", "),
    );
    if !at_boot.recomputed_by.is_empty() {
        text += &format!(" To recompute them from today's frames: {}.", at_boot.recomputed_by.join("; "));
    }
    Some(text)
}

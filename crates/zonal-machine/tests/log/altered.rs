//! Reports with one figure altered: each must be contradicted.

use zonal_machine::log::{Figure, LogReport, LoggedZone};

use super::{explained, real_logs, text};

/// Whether some report of a log is contradicted.
fn is_contradicted(text: &str) -> bool {
    explained(text).iter().any(|(_, explanation)| explanation.is_contradicted())
}

/// Returns the reports about zones.
fn reports(text: &str) -> Vec<LogReport> {
    let reports = explained(text).into_iter().map(|(report, _)| report);
    reports
        .filter(|report| report.kind.is_some() && report.request.order != Some(-1) && !report.is_of_cgroup())
        .collect()
}

/// Returns an amount far above a zone's marks: its managed memory or more.
fn far_above(zone: &LoggedZone) -> u64 {
    let figure = |figure| zone.figures.get(figure).unwrap_or(0);
    let reserve: u64 = zone.reserve.iter().max().copied().unwrap_or(0) * 16;
    2 * (figure(Figure::Free) + figure(Figure::High) + reserve) + figure(Figure::Managed) + (8 << 20)
}

#[test]
fn free_far_above_the_marks() {
    let mut count = 0;
    for name in real_logs() {
        let before = text(&name);
        for report in reports(&before) {
            for zone in &report.zones {
                let free = zone.figures.get(Figure::Free).unwrap();
                let min = zone.figures.get(Figure::Min).unwrap();
                let (old, new) = (
                    format!("{} free:{free}kB ", zone.kind),
                    format!("{} free:{}kB ", zone.kind, far_above(zone)),
                );
                let after = before.replacen(&old, &new, 1);
                assert_ne!(after, before, "{name}: {old}min {min}");
                assert!(is_contradicted(&after), "{name}: {new}is not contradicted");
                count += 1;
            }
        }
    }
    assert!(count > 100, "{count} figures were altered");
}

#[test]
fn a_block_that_would_have_served() {
    let mut count = 0;
    for name in real_logs() {
        let before = text(&name);
        for report in reports(&before).iter().filter(|report| report.request.order > Some(0)) {
            let page = report.page().unwrap().0;
            let size = page << report.request.order.unwrap();
            for line in before.lines().filter(|line| line.contains(&format!(" 0*{size}kB"))) {
                let altered = line.replace(&format!(" 0*{size}kB"), &format!(" 64*{size}kB (UME)"));
                assert!(is_contradicted(&before.replacen(line, &altered, 1)), "{name}: {altered}");
                count += 1;
            }
        }
    }
    assert!(count >= 10, "{count} lists of blocks were altered");
}

/// With the sum and the free pages altered too, the block itself contradicts the log.
#[test]
fn a_block_in_a_consistent_report() {
    let before = text("guest/6.1-order-9-failure.txt");
    let reports = reports(&before);
    let zone = reports[0].zones.iter().max_by_key(|zone| zone.figures.get(Figure::Free)).unwrap();
    let (free, total) =
        (zone.figures.get(Figure::Free).unwrap(), zone.blocks.as_ref().unwrap().total.unwrap().0);
    let more = 64 * 2048;
    let heading = format!("Node {} {}:", zone.node, zone.kind);
    let list = before.lines().find(|line| line.contains(&heading)).unwrap();
    let altered = list
        .replace(" 0*2048kB", " 64*2048kB (UME)")
        .replace(&format!("= {total}kB"), &format!("= {}kB", total + more));
    let after = before.replacen(list, &altered, 1);
    let after = after.replacen(&format!("free:{free}kB"), &format!("free:{}kB", free + more), 1);
    let explained = explained(&after);
    let block = explained[0].1.checks.iter().find(|check| {
        check.rule == zonal_machine::log::Rule::Block
            && check.verdict == zonal_machine::log::Verdict::Contradicted
    });
    assert!(block.is_some(), "{:?}", explained[0].1.checks);
}

#[test]
fn a_cgroup_far_below_its_limit() {
    let mut count = 0;
    for name in real_logs() {
        let before = text(&name);
        for (report, _) in explained(&before) {
            let Some(counter) = report.cgroup.iter().find(|counter| counter.name == "memory") else {
                continue;
            };
            let after = before.replace(&format!(": usage {}kB", counter.usage.0), ": usage 1024kB");
            assert!(is_contradicted(&after), "{name}: {counter:?}");
            count += 1;
        }
    }
    assert!(count >= 5, "{count} limits");
}

#[test]
fn a_zone_of_an_excluded_node() {
    let before = text("guest/6.1-bind.txt");
    let node = &reports(&before)[0].zones[0].node;
    let after = before.replace(&format!("nodemask={node},"), "nodemask=9,");
    assert!(is_contradicted(&after));
}

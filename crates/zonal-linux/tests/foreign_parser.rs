//! Checks that an independent parser reads the same figures from a pool's files as the pool itself reports. The
//! parser is `jc` from PyPI, with which programs read Linux's `/proc`.
//!
//! The test installs `jc` once, into a virtual environment in the target folder. If that fails, the test is reported
//! as skipped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use zonal::units::{Order, ZoneKind};
use zonal_linux::{Pool, PoolRequest};
use zonal_machine::output::Replace;
use zonal_machine::{preset, write_tree};
use zonal_testing::skipped;

/// Package and version that are known to read these files.
const PACKAGE: &str = "jc==1.26.1";

/// Prints what the parser reads from the files below a folder, as one JSON document.
const SCRIPT: &str = "\
import jc, json, sys
files = ['zoneinfo', 'buddyinfo', 'vmstat', 'meminfo']
print(json.dumps({name: jc.parse('proc_' + name, open(sys.argv[1] + '/proc/' + name).read()) for name in files}))
";

/// Runs a program, and returns its output or the reason why it failed.
fn run(program: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("{}: {error}", program.display()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let last = errors.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    Err(format!("{} {}: {last}", program.display(), arguments.join(" ")))
}

/// Returns a Python interpreter that has the parser installed.
fn python() -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("foreign-parser");
    let python = folder.join("bin/python");
    let version = format!("import jc, sys; sys.exit('{PACKAGE}' != 'jc==' + jc.__version__)");
    if run(&python, &["-c", &version]).is_err() {
        run(Path::new("python3"), &["-m", "venv", "--clear", &folder.display().to_string()])?;
        run(&python, &["-m", "pip", "install", "--quiet", "--disable-pip-version-check", PACKAGE])?;
        run(&python, &["-c", &version])?;
    }
    Ok(python)
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Returns the section of a zone's node, and the section of the zone in it.
fn section(zoneinfo: &Value, node: u16, kind: ZoneKind) -> (&Value, &Value) {
    let nodes = zoneinfo.as_array().unwrap();
    let of_node = nodes.iter().find(|section| number(&section["node"]) == u64::from(node)).unwrap();
    (of_node, &of_node[kind.name()])
}

fn check_zones(pool: &Pool, found: &Value) {
    for zone in pool.zones() {
        let (of_node, section) = section(&found["zoneinfo"], zone.node.get(), zone.kind);
        let (place, pages) = (format!("node {} {}", zone.node, zone.kind), &section["pages"]);
        for (name, expected) in [
            ("free", zone.free),
            ("min", zone.watermarks.min),
            ("low", zone.watermarks.low),
            ("high", zone.watermarks.high),
            ("spanned", zone.span.count),
            ("managed", zone.managed),
            ("nr_free_pages", zone.free),
        ] {
            assert_eq!(number(&pages[name]), expected.get(), "{name} of {place}");
        }
        let protection: Vec<u64> = pages["protection"].as_array().unwrap().iter().map(number).collect();
        let expected: Vec<u64> = zone.reserve.iter().chain(zone.reserve.last()).map(|p| p.get()).collect();
        assert_eq!(protection, expected, "{place}");
        for (name, expected) in [("numa_hit", zone.locality.hit), ("numa_other", zone.locality.other)] {
            assert_eq!(number(&pages[name]), expected, "{name} of {place}");
        }
        let pagesets: Vec<_> = pool.pagesets().filter(|pageset| pageset.zone == zone.id).collect();
        let read = section["pagesets"].as_array().unwrap();
        assert_eq!(read.len(), pagesets.len(), "{place}");
        for (read, pageset) in read.iter().zip(pagesets) {
            let figures = ["cpu", "count", "high", "batch", "high_min", "high_max", "vm stats threshold"];
            let limits = pageset.limits;
            let expected = [pageset.count, pageset.high, limits.batch, limits.high_min, limits.high_max];
            let expected: Vec<u64> = std::iter::once(u64::from(pageset.cpu.get()))
                .chain(expected.map(zonal::units::PageCount::get))
                .chain([u64::from(zone.stat_threshold)])
                .collect();
            assert_eq!(figures.map(|name| number(&read[name])).to_vec(), expected, "{place}");
        }
        let node = pool.nodes().find(|node| node.id == zone.node).unwrap();
        assert_eq!(number(&of_node["zonal_nr_user"]), node.allocated[0].get(), "{place}");
    }
}

fn check_buddies(pool: &Pool, found: &Value) {
    let lines = found["buddyinfo"].as_array().unwrap();
    let zones: Vec<_> = pool.zones().filter(|zone| zone.managed.get() > 0).collect();
    assert_eq!(lines.len(), zones.len());
    for (line, zone) in lines.iter().zip(zones) {
        assert_eq!(
            (number(&line["node"]), line["zone"].as_str()),
            (u64::from(zone.node.get()), Some(zone.kind.name()))
        );
        let blocks: Vec<u64> = line["free_chunks"].as_array().unwrap().iter().map(number).collect();
        assert_eq!(blocks, zone.free_blocks[..blocks.len()], "node {} {}", zone.node, zone.kind);
        assert_eq!(blocks.len(), 11);
    }
}

#[test]
fn foreign_parser_reads_the_same_figures() {
    let python = match python() {
        Ok(python) => python,
        Err(why) => return skipped!("{PACKAGE} cannot be installed: {why}"),
    };
    let model = preset("quad-10-12-32").unwrap();
    let pool = Pool::builder().machine(&model).unwrap().size(256 << 20).build().unwrap();
    let held: Vec<_> = (0..64)
        .filter_map(|cpu| {
            let _acting = pool.act_as(zonal::units::CpuId::new(cpu)).unwrap();
            pool.alloc(&PoolRequest::new(Order::new(cpu as u8 % 7).unwrap())).ok()
        })
        .collect();
    let directory = tempfile::tempdir().unwrap();
    write_tree(pool.snapshot(), directory.path(), Replace::Own).unwrap();
    let printed = run(&python, &["-c", SCRIPT, &directory.path().display().to_string()]).unwrap();
    let found: Value = serde_json::from_str(&printed).unwrap();
    check_zones(&pool, &found);
    check_buddies(&pool, &found);
    let (accounting, locality) = (pool.accounting(), pool.locality());
    for (name, expected) in [
        ("nr_free_pages", accounting.free.get()),
        ("numa_hit", locality.hit),
        ("numa_local", locality.local),
        ("zonal_nr_user", accounting.allocated.get()),
    ] {
        assert_eq!(number(&found["vmstat"][name]), expected, "{name}");
    }
    assert_eq!(number(&found["meminfo"]["MemTotal"]), accounting.managed.get() * 4);
    assert_eq!((held.len(), fs::read_dir(directory.path()).unwrap().count()), (64, 4));
}

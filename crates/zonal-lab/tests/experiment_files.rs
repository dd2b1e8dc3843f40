//! Experiment files. Checks the meaning of valid files, and the line and the reason reported for invalid files.

use std::cell::RefCell;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use zonal::config::{NodeReclaim, ZonelistCache};
use zonal::rules::fallback_order::NodeLoad;
use zonal::rules::stat_threshold::{FoldRule, ThresholdRule, TotalsRule};
use zonal::settings::{Access, Setting, SettingValues};
use zonal::units::PageCount;
use zonal::{Config, Request};
use zonal_lab::experiment::results::case_text;
use zonal_lab::experiment::{BUILT_IN, EXAMPLE, FileError, Plan, Source, keys_text, load};
use zonal_lab::sim::{Hardware, Role, SimulatedMachine, Simulation, Threads, Time};
use zonal_lab::system::System;
use zonal_lab::workload::Workload;
use zonal_machine::MachineModel;
use zonal_testing::Edges;

pub(crate) const SMALL: &str = include_str!("data/small.toml");
pub(crate) const FIGURES: &str = include_str!("data/small.csv");
pub(crate) const MACHINE: &str = include_str!("data/small.json");

/// Loads the small experiment from an experiment file, a table of figures and a machine file with these texts.
pub(crate) fn load_files(experiment: &str, figures: &str, machine: &str) -> Result<Plan, FileError> {
    let directory = tempfile::tempdir().unwrap();
    let texts = [("small.toml", experiment), ("small.csv", figures), ("small.json", machine)];
    for (name, text) in texts {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    load(&Source::File(directory.path().join("small.toml")))
}

/// Replaces `old`, which must be present, with `new`.
pub(crate) fn changed(text: &str, old: &str, new: &str) -> String {
    assert!(text.contains(old), "{old}");
    text.replacen(old, new, 1)
}

pub(crate) fn line_of(text: &str, needle: &str) -> usize {
    1 + text.lines().position(|line| line.contains(needle)).unwrap_or_else(|| panic!("{needle} in\n{text}"))
}

/// Replaces `old` with `new`, and expects an error with this reason in the line that contains `at_fault`.
pub(crate) fn refused(text: &str, (old, new, at_fault, reason): (&str, &str, &str, &str)) {
    let text = changed(text, old, new);
    let error = load_files(&text, FIGURES, MACHINE).err().unwrap_or_else(|| panic!("{new} is taken"));
    assert!(error.file.ends_with("small.toml"), "{error}");
    assert!(error.problem.contains(reason) && !error.problem.contains('\n'), "{new}: {error}");
    assert_eq!(error.line, Some(line_of(&text, at_fault)), "{new}: {error}");
    let start = format!("{}:{}: ", error.file, error.line.unwrap());
    assert!(error.to_string().starts_with(&start), "{error}");
}

#[test]
fn a_file_defines_its_runs() {
    let plan = load_files(SMALL, FIGURES, MACHINE).unwrap();
    assert_eq!((plan.name.as_str(), plan.cases(), plan.runs.len()), ("small", 6, 12));
    assert_eq!(plan.machines, ["small"]);
    let cases: Vec<String> = plan.runs.iter().step_by(2).map(|run| case_text(&run.case)).collect();
    let expected = [
        "workload = touch, cpus = 1, config.node_reclaim = on",
        "workload = touch, cpus = 1, config.node_reclaim = off",
        "workload = touch, cpus = 8, config.node_reclaim = on",
        "workload = touch, cpus = 8, config.node_reclaim = off",
        "workload = hog, case = one",
        "workload = hog, case = all",
    ];
    assert_eq!(cases, expected);
    let Workload::Hog(hog) = &plan.runs[11].workload else { panic!("{:?}", plan.runs[11]) };
    assert_eq!((hog.threads, hog.stride), (8, 4096));
    assert!(plan.runs.iter().all(|run| run.operations > 0.0 && run.host_bytes > 100_000));
}

#[test]
fn variants_of_a_case_share_its_seed() {
    let plan = load_files(SMALL, FIGURES, MACHINE).unwrap();
    let seeds: Vec<u64> = plan.runs.iter().map(|run| run.seed(7)).collect();
    assert!(seeds.chunks(2).all(|pair| pair[0] == pair[1]));
    let mut different: Vec<u64> = seeds.iter().copied().step_by(2).collect();
    different.sort_unstable();
    different.dedup();
    assert_eq!(different.len(), 6);
    assert!(plan.runs.iter().all(|run| run.seed(7) != run.seed(8)));
}

#[test]
fn variants_override_cases_which_override_parts_and_machine_settings() {
    let plan = load_files(SMALL, FIGURES, MACHINE).unwrap();
    let [before, after] = [&plan.runs[2], &plan.runs[3]];
    assert_eq!((&*before.variant, &*after.variant), ("before", "after"));
    assert_eq!(before.config.zonelist_cache, ZonelistCache::Off);
    assert_eq!(after.config.zonelist_cache, ZonelistCache::On);
    assert_eq!(before.config.counters.threshold, ThresholdRule::Fixed(32));
    assert_eq!(before.config.counters.fold, FoldRule::ToZero);
    assert_eq!(before.config.counters.totals, TotalsRule::AndMachine);
    assert_eq!(after.config.counters, Default::default());
    assert_eq!(before.config.node_load, NodeLoad::Assign);
    assert_eq!(before.config.node_reclaim, NodeReclaim::OFF);
    assert_eq!(plan.runs[0].config.node_reclaim, NodeReclaim::ON);
    // The hog does not set node reclaim, so the machine's own setting is used.
    assert_eq!(plan.runs[8].config.node_reclaim, NodeReclaim::ON);
    assert_eq!(plan.runs[8].config.node_load, NodeLoad::default());
    assert_eq!(before.config.min_unmapped_percent, 3);
    assert_eq!(before.config.watermarks.min_free, Some(PageCount::new(512)));
    assert_eq!((before.hardware.transfer_ns, plan.runs[8].hardware.transfer_ns), (145.0, 60.0));
    let own = changed(SMALL, "node_load = \"assign\"", "min_free_kbytes = 4096\nfree_areas = \"one\"");
    let config = load_files(&own, FIGURES, MACHINE).unwrap().runs[0].config;
    assert_eq!(config.watermarks.min_free, Some(PageCount::new(1024)));
    assert_eq!(config.free_area_min, PageCount::new(32768));
}

/// An experiment file can set everything in the table of settings, within the same ranges.
#[test]
fn every_setting_of_the_table_is_a_key() {
    for setting in Setting::ALL.into_iter().filter(|setting| setting.info().access != Access::WriteOnly) {
        let info = setting.info();
        let key = match setting {
            Setting::PagesetTuning => "tuning",
            Setting::ZoneReclaimMode => "node_reclaim",
            Setting::PercpuPagelistHighFraction => "high_fraction",
            _ => info.name,
        };
        let quote = if info.values.range().is_some() { "" } else { "\"" };
        let load = |text: &str| {
            // The last run's hog and variant set nothing, so its part's key is used.
            let part = "name = \"hog\"\nmachine = \"small.json\"\n";
            let set = format!("{part}config.{key} = {quote}{text}{quote}\n");
            load_files(&changed(SMALL, part, &set), FIGURES, MACHINE)
        };
        let names: &[&str] = if let SettingValues::Names(names) = info.values { names } else { &[] };
        let Edges { right, wrong } = Edges::of(info.values.range(), names);
        for text in right {
            match load(&text) {
                Ok(plan) => assert_eq!(plan.runs[11].config.get(setting).to_string(), text, "{setting}"),
                // More than the machine has.
                Err(error) => assert!(setting == Setting::MinFreeKbytes, "{error}"),
            }
        }
        for text in wrong {
            let error = load(&text).unwrap_err().problem;
            let allowed = if setting == Setting::ZoneReclaimMode {
                "must be \"on\", \"off\" or a mode from 0 to 7".to_owned()
            } else {
                info.values.to_string()
            };
            let is_number = text.parse::<i64>().is_ok();
            assert!(error.contains(key) && (error.contains(&allowed) || !is_number), "{error}");
        }
    }
}

/// Returns the machine of the small experiment, to be simulated.
fn machine() -> SimulatedMachine {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("small.json");
    std::fs::write(&file, MACHINE).unwrap();
    SimulatedMachine { model: MachineModel::read(&file).unwrap(), hardware: Hardware::default() }
}

#[test]
fn simulated_cpus_fold_their_counters_at_the_interval_of_the_file() {
    let second = Time::from_ns(1.001e9);
    let readings = |text: &str| {
        let config = load_files(text, FIGURES, MACHINE).unwrap().runs[3].config;
        let run = |sim: &Simulation<'_, '_>| {
            let (system, readings) = (System::new(sim), RefCell::new(Vec::new()));
            let mut threads = Threads::new();
            let program = || {
                for _ in 0..6 {
                    system.alloc(&Request::page()).unwrap();
                    sim.world.spend(second);
                    system.checkpoint();
                    readings.borrow_mut().push(sim.allocator.allocated_approximate()[0].get());
                }
            };
            threads.add(0, Role::Foreground, Time::ZERO, program).unwrap();
            sim.world.run(threads, &AtomicBool::new(false)).unwrap();
            readings.take()
        };
        machine().simulate(&config, 1, run).unwrap()
    };
    assert_eq!(readings(SMALL), [1, 2, 3, 4, 5, 6]);
    let every = |seconds: u32| {
        let set = format!("node_load = \"assign\"\nstat_interval = {seconds}");
        readings(&changed(SMALL, "node_load = \"assign\"", &set))
    };
    assert_eq!(every(3), [0, 0, 3, 3, 3, 6]);
    assert_eq!(every(1), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn thresholds_of_the_first_posting_reach_the_simulated_allocator() {
    let first = changed(SMALL, "threshold = 32", "threshold = \"first-posting\"");
    let machine = machine();
    let runs = load_files(&first, FIGURES, MACHINE).unwrap().runs;
    let thresholds = |config: &Config| {
        let all =
            |sim: &Simulation<'_, '_>| sim.allocator.zones().map(|z| z.stat_threshold).collect::<Vec<_>>();
        machine.simulate(config, 1, all).unwrap()
    };
    assert_eq!(runs[2].config.counters.threshold, zonal_history::FirstPosting::RULE);
    // The zone's threshold depends on its size in units of 128 MiB, which is 1 for present pages and less than 1 for
    // managed pages: 2 * fls(8) * (1 + fls(1)) with present pages, 2 * fls(8) with managed pages.
    assert_eq!(thresholds(&runs[2].config), [16; 4]);
    assert_eq!(thresholds(&runs[3].config), [8; 4]);
}

#[test]
fn parameters_report_the_values_of_the_file() {
    let plan = load_files(SMALL, FIGURES, MACHINE).unwrap();
    let found: Vec<_> = plan.parameters.iter().map(|p| (&*p.name, p.value, p.calibrated)).collect();
    assert_eq!(found, [("hardware.memory_ns", 90.0, false), ("touch.workload.fault_ns", 1000.0, true)]);
    let wrong = [
        ("hardware.cpu_gb_s", "differs between parts; write PART.hardware.cpu_gb_s"),
        ("hardware.memory", "unknown field; hardware has arbitration, atomic_transactions"),
        ("hardware.lock", "is not a number"),
        ("touch.workload.cpus", "not set in the part's workload, which has gib_each, fault_ns"),
        ("touching.workload.fault_ns", "is not a parameter; write hardware.FIELD"),
        ("fault_ns", "is not a parameter"),
        ("touch.workload.fault_ns", "is defined twice"),
    ];
    for (name, reason) in wrong {
        let text = changed(SMALL, "hardware.memory_ns", name);
        let error = load_files(&text, FIGURES, MACHINE).unwrap_err();
        assert!(error.problem.contains(reason), "{error}");
        let twice = text.matches("touch.workload.fault_ns").count() == 2;
        let written = format!("name = \"{name}\"");
        let line = line_of(&text, &written) + if twice { 5 } else { 0 };
        assert_eq!(error.line, Some(line), "{error}");
    }
}

#[test]
fn calibration_uses_only_figures_of_its_variant() {
    let plan = load_files(SMALL, FIGURES, MACHINE).unwrap();
    let calibration = plan.calibration.unwrap();
    assert_eq!(calibration.about, "wall of one process");
    let rows = calibration.rows.rows();
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].metric.as_str(), rows[0].value), ("wall", 0.02));
    let all = changed(SMALL, "only = { cpus = 1 }\nabout = \"wall of one process\"\n", "");
    let calibration = load_files(&all, FIGURES, MACHINE).unwrap().calibration.unwrap();
    assert_eq!(calibration.about, "wall of variant before");
    let values: Vec<f64> = calibration.rows.rows().iter().map(|row| row.value).collect();
    assert_eq!(values, [0.02, 0.025]);
    let of_part = |metric: &str| {
        let text = changed(&all, "metrics = [\"wall\"]", &format!("metrics = [\"{metric}\"]"));
        let plan = load_files(&text, FIGURES, MACHINE).map_err(|error| error.problem)?;
        Ok(plan.calibration.unwrap().rows.rows().iter().map(|row| row.value).collect::<Vec<f64>>())
    };
    assert_eq!((of_part("touch.wall"), of_part("hog.real")), (Ok(vec![0.02, 0.025]), Ok(vec![0.5])));
    let missing: Result<_, String> = of_part("hog.wall");
    assert_eq!(missing, Err("there is no published figure `hog.wall` of variant `before`".to_owned()));
}

#[test]
fn built_in_experiments_and_the_example_load() {
    for known in BUILT_IN {
        let plan = load(&Source::BuiltIn(known)).unwrap();
        assert_eq!(plan.name, known.name);
        assert_eq!(plan.has_published(), !known.files.is_empty());
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("example.toml");
    std::fs::write(&file, EXAMPLE).unwrap();
    assert_eq!(load(&Source::File(file)).unwrap().runs.len(), 6);
}

#[test]
fn published_tables_have_the_same_format() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/published");
    let mut figures = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        assert!(text.starts_with("# "), "{text}");
        let mut lines = text.lines().filter(|line| !line.starts_with('#'));
        let header = lines.next().unwrap();
        assert!(header.ends_with(",variant,metric,unit,value"), "{header}");
        for line in lines {
            assert_eq!(line.split(',').count(), header.split(',').count(), "{line}");
            assert!(line.rsplit(',').next().unwrap().parse::<f64>().unwrap().is_finite(), "{line}");
            figures += 1;
        }
    }
    assert!(figures > 150, "{figures}");
}

#[test]
fn the_documentation_has_every_kind_and_key() {
    let page =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/lab.md")).unwrap();
    let tables = keys_text();
    assert!(page.contains(&tables), "docs/lab.md must contain this text:\n{tables}");
}

/// Old text, new text, the text whose line the error must report, and a part of the reason.
const BAD: [(&str, &str, &str, &str); 41] = [
    ("title = \"A", "title \"A", "title \"A", "expected"),
    ("title = \"A small machine\"", "", "name = \"small\"", "`title` is missing"),
    ("source = ", "origin = ", "origin = ", "unknown key `origin`; keys here are name, title, source"),
    (
        "source = \"made up\"",
        "source = 7",
        "source = 7",
        "source: invalid type: integer `7`, expected a string",
    ),
    ("name = \"small\"", "name = \"../small\"", "../small", "letters, digits"),
    ("name = \"small\"", "name = \"small\"\nname = \"again\"", "again", "duplicate key"),
    ("machine = \"small.json\"", "machine = \"sun\"", "\"sun\"", "presets are: desktop, quad-10-12-32"),
    (
        "machine = \"small.json\"",
        "machine = \"sun.json\"",
        "sun.json",
        "sun.json: cannot be read: No such file",
    ),
    ("machine = \"small.json\"", "machine = 4", "machine = 4", "expected a string"),
    ("name = \"touch\"\n", "", "[[part]]", "no `name`"),
    ("name = \"hog\"\n", "name = \"touch\" # again\n", "# again", "part `touch` is defined twice"),
    (
        "transfer_ns = 145.0",
        "transfer_us = 145.0",
        "transfer_us",
        "unknown field `transfer_us`, expected one of `hit_ns`, `memory_ns`",
    ),
    ("transfer_ns = 145.0", "transfer_ns = nan", "transfer_ns = nan", "transfer_ns = NaN, must be a number"),
    (
        "transfer_ns = 145.0",
        "transfer_ns = \"far\"",
        "\"far\"",
        "transfer_ns: invalid type: string \"far\", expected a number",
    ),
    ("list_work_ns = 0.0", "list_work_ns = -1.0", "list_work_ns = -1.0", "list_work_ns = -1"),
    (
        "node_load = \"assign\"",
        "node_loads = 1",
        "node_loads",
        "unknown field `node_loads`, expected one of `tuning`",
    ),
    (
        "node_load = \"assign\"",
        "node_load = \"more\"",
        "\"more\"",
        "node_load: cannot be `more`; allowed: accumulate, remaining, assign",
    ),
    ("node_load = \"assign\"", "min_free_kbytes = 99999999", "9999", "min_free_kbytes: min_free is"),
    ("node_load = \"assign\"", "min_unmapped_ratio = 101", "ratio = 101", "101"),
    (
        "node_load = \"assign\"",
        "stat_interval = 0",
        "val = 0",
        "stat_interval: cannot be 0; allowed: a number from 1 to 4294967295",
    ),
    (
        "threshold = 32",
        "threshold = 126",
        "= 126",
        "the counter threshold is 126; allowed values are 1 to 125",
    ),
    (
        "threshold = 32",
        "threshold = \"deep\"",
        "\"deep\"",
        "must be \"scaled\", \"first-posting\" or a number from 1 to 125",
    ),
    (
        "kind = \"first-touch\"",
        "kind = \"paint\"",
        "paint",
        "unknown kind of workload `paint`; kinds are first-touch, hog",
    ),
    ("kind = \"first-touch\"\n", "", "[part.workload]", "`kind` is missing"),
    (
        "gib_each = 0.004",
        "gib = 0.01",
        "gib = 0.01",
        "unknown field `gib`, expected one of `cpus`, `gib_each`",
    ),
    ("gib_each = 0.004\n", "", "[part.workload]", "missing field `gib_each`"),
    ("gib_each = 0.004", "gib_each = nan", "= nan", "gib_each: is NaN, must be a number"),
    ("gib_each = 0.004", "gib_each = true", "= true", "gib_each: invalid type: boolean `true`"),
    ("cpus = [1, 8]", "cpus = [\n1,\n9,\n]", "cpus = [", "cpus: 9 threads, each pinned"),
    (
        "cpus = [1, 8]",
        "cpus = [\n1,\n1.5,\n]",
        "1.5",
        "cpus: invalid type: floating point `1.5`, expected a whole number",
    ),
    ("cpus = [1, 8]", "cpus = [1,\n1]", "1]", "`cpus` has 1 twice"),
    ("cpus = [1, 8]", "cpus = []", "cpus = []", "`cpus` has no value"),
    ("cpus = [1, 8]", "cpus = [[1, 2]]", "[[1, 2]]", "list [[part.case]] with `case = ...`"),
    ("cpus = [1, 8]", "cpu = [1, 8]", "cpu = [", "unknown field `cpu`"),
    ("cpus = [1, 8]", "unit = [1, 8]", "unit = [", "column of that name"),
    ("case = \"all\"", "case = \"one\" # again", "# again", "workload = hog, case = one is listed twice"),
    ("name = \"after\"", "name = \"before\" # again", "# again", "variant `before` is defined twice"),
    (
        "role = \"ours\"",
        "role = \"theirs\"",
        "theirs",
        "role: unknown variant `theirs`, expected one of `baseline`",
    ),
    (
        "role = \"baseline\"",
        "role = \"published\"",
        "variant = \"before\"",
        "no variant has `role = \"baseline\"`",
    ),
    (
        "metrics = [\"wall\"]",
        "metrics = [\"speed\"]",
        "speed",
        "no published figure `speed` of variant `before`",
    ),
    ("only = { cpus = 1 }", "only = { cpu = 1 }", "cpu = 1 ", "unknown column `cpu`"),
];

#[test]
fn errors_in_experiment_files_name_the_line() {
    BAD.into_iter().for_each(|bad| refused(SMALL, bad));
}

#[test]
fn experiments_have_a_limit_of_runs() {
    let values = |count: usize| (1..=count).map(|value| format!("{value}.0")).collect::<Vec<_>>().join(", ");
    let axis = |key: &str, count| format!("{key} = [{}]\n", values(count));
    let with = |axes: &str| changed(SMALL, "cpus = [1, 8]\nconfig.node_reclaim = [\"on\", \"off\"]\n", axes);
    let product = format!("cpus = 1\n{}{}", axis("fault_ns", 64), axis("user_ns", 65));
    let error = load_files(&with(&product), FIGURES, MACHINE).unwrap_err();
    assert!(error.problem.contains("`user_ns` raises the product of all axes above 4096 cases"), "{error}");
    assert_eq!(error.line, Some(line_of(&with(&product), "user_ns = [")));
    // Each case runs with both variants.
    let product = format!("cpus = 1\n{}{}", axis("fault_ns", 64), axis("user_ns", 33));
    let error = load_files(&with(&product), FIGURES, MACHINE).unwrap_err();
    assert!(error.problem.contains("4224 runs"), "{error}");
    assert_eq!(error.line, Some(line_of(&with(&product), "[[part]]")));
}

#[test]
fn endless_files_are_refused() {
    let endless = changed(SMALL, "file = \"small.csv\"", "file = \"/dev/zero\"");
    let error = load_files(&endless, FIGURES, MACHINE).unwrap_err().to_string();
    assert!(error.contains("/dev/zero") && error.contains("a relative path"), "{error}");
}

#[test]
fn errors_in_tables_name_the_line() {
    let bad = [
        ("unit,value", "unit", "workload", "the header must be the columns of cases"),
        (
            "touch,1,on,,before,wall",
            "touch,1,on,,never,wall",
            "never",
            "the variant is not one of small, which has before, after",
        ),
        (
            "workload,cpus",
            "workload,threads",
            "touch,1",
            "in a column that the case does not have; in small, workload is one of touch, hog",
        ),
        (
            "touch,8,on,,after",
            "touch,9,on,,after",
            "touch,9",
            "there is no such case; in small, workload is one of",
        ),
        ("wall,s,0.024", "wall,s,nan", "nan", "the value must be a finite number"),
        ("wall,s,0.024", "wall,s,", "after", "the value must be a finite number"),
        ("wall,s,0.024", "wall,s,1,2", "1,2", "9 cells; there must be 8"),
        ("wall,s,0.024", ",s,1", "after", "the metric is missing"),
        ("touch,8,on,,after", "touch,8,on,,before", "0.024", "the same figure as in line 4"),
    ];
    for (old, new, at_fault, reason) in bad {
        let figures = changed(FIGURES, old, new);
        let error = load_files(SMALL, &figures, MACHINE).err().unwrap_or_else(|| panic!("{new} is taken"));
        assert!(error.file.ends_with("small.csv"), "{error}");
        assert!(error.problem.contains(reason), "{new}: {error}");
        assert_eq!(error.line, Some(line_of(&figures, at_fault)), "{new}: {error}");
    }
    // Figures that `only` excludes are not checked. Without `only`, all figures must belong to a case.
    let all = changed(SMALL, "only = { workload = [\"touch\", \"hog\"] }\n", "");
    let error = load_files(&all, FIGURES, MACHINE).unwrap_err();
    assert!(error.problem.contains("there is no such case"), "{error}");
}

#[test]
fn errors_in_machine_files_name_the_field() {
    let machine = changed(MACHINE, "\"3\": 32}},", "\"9\": 32}},");
    let error = load_files(SMALL, FIGURES, &machine).unwrap_err();
    assert_eq!(error.line, Some(line_of(SMALL, "machine = ")));
    assert!(error.problem.contains("small.json: nodes[0].distances: this value is impossible"), "{error}");
    let machine = changed(MACHINE, ", \"distances\": {\"0\": 10, \"1\": 12, \"2\": 32, \"3\": 32}", "");
    let error = load_files(SMALL, FIGURES, &machine).unwrap_err();
    assert!(
        error.problem.contains("small.json:3:") && error.problem.contains("not valid in a machine"),
        "{error}"
    );
    let missing = load(&Source::File("no/such.toml".into())).unwrap_err().to_string();
    assert!(missing.starts_with("no/such.toml: cannot be read: "), "{missing}");
}

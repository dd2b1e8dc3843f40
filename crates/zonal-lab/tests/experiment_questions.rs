//! Questions, open figures and lists of programs in experiment files. Checks their meaning, and the errors of invalid files.
//!
//! Related files: `experiment_files.rs` checks everything else in experiment files.

use zonal_lab::experiment::results::case_text;
use zonal_lab::workload::Workload;

use crate::experiment_files::{FIGURES, MACHINE, SMALL, changed, load_files, refused};

#[test]
fn open_figures_and_the_question_are_read_and_checked() {
    let more = "[question]\ntext = \"Is it faster?\"\nmetrics = [\"touch.wall\", \"real\"]\nvariant = \"after\"\n\
                margin_pct = 1.0\n\n[[open]]\nvariant = \"after\"\nmetrics = [\"wall\"]\nwhy = \"made up\"\n\n\
                [[fitted]]\nvariant = \"before\"\nmetrics = [\"hog.real\"]\nwhy = \"tried\"\n";
    let text = SMALL.to_owned() + more;
    let plan = load_files(&text, FIGURES, MACHINE).unwrap();
    assert_eq!((plan.open.len(), &*plan.open[0].what, &*plan.open[0].why), (1, "wall of after", "made up"));
    assert_eq!(
        (plan.fitted.len(), &*plan.fitted[0].what, &*plan.fitted[0].why),
        (1, "hog.real of before", "tried")
    );
    assert_eq!((plan.question.metrics.len(), plan.question.margin_pct), (2, Some(1.0)));
    let wrong = [
        ("\"real\"]", "\"speed\"]", "speed", "no run has a figure `speed`"),
        ("\"touch.wall\"", "\"pig.wall\"", "pig.wall", "no run has a figure `pig.wall`"),
        (
            "variant = \"after\"\nmargin",
            "variant = \"before\" # own\nmargin",
            "# own",
            "those that can are after",
        ),
        (
            "margin_pct = 1.0",
            "margin_pct = 101.0",
            "margin_pct",
            "margin_pct is 101, must be a number from 0 to 100",
        ),
        (
            "metrics = [\"wall\"]\nwhy",
            "metrics = [\"sys\"]\nwhy",
            "[\"sys\"]",
            "no published figure `sys` of variant `after`",
        ),
        ("[\"hog.real\"]", "[\"hog.sys\"]", "hog.sys", "no published figure `hog.sys` of variant `before`"),
        ("why = \"tried\"", "", "[[fitted]]", "`why` is missing"),
        ("why = \"made up\"", "", "[[open]]", "`why` is missing"),
    ];
    wrong.into_iter().for_each(|wrong| refused(&text, wrong));
    load_files(
        &changed(&text, "variant = \"after\"\nmetrics", "variant = \"before\"\nmetrics"),
        FIGURES,
        MACHINE,
    )
    .unwrap();
}

/// Two programs on a machine with 4 nodes of 2 CPUs.
const PROGRAMS: &str = "name = \"both\"\ntitle = \"t\"\n[[part]]\nmachine = \"small.json\"\n\n[[part.program]]\nname = \"web\"\n\
    on_cpus = \"0-3\"\nkind = \"first-touch\"\ncpus = 4\ngib_each = 0.002\nfault_ns = 100.0\nuser_ns = 10.0\n\n\
    [[part.program]]\nname = \"data\"\non_cpus = \"4-7\"\nkind = \"hog\"\nthreads = 2\nmem_gb = 0.01\nrounds = 1.0\n\
    shared_map = 0\nfault_ns = 100.0\nstride = 4096\nstore_ns = 10.0\nunmap_ns = 10.0\n\n[part.cases]\nweb.cpus = [2, 4]\n\n\
    [[variant]]\nname = \"ours\"\nrole = \"ours\"\n";

#[test]
fn programs_of_a_part_have_cpus_and_cases_of_their_own() {
    let plan = load_files(PROGRAMS, FIGURES, MACHINE).unwrap();
    assert_eq!(case_text(&plan.runs[1].case), "web.cpus = 4");
    let Workload::Together(together) = &plan.runs[0].workload else { panic!("{:?}", plan.runs[0]) };
    let names: Vec<&str> = together.programs.iter().map(|program| &*program.name).collect();
    assert_eq!(names, ["web", "data"]);
    let Workload::FirstTouch(web) = &together.programs[0].workload else { panic!("{together:?}") };
    assert_eq!((web.cpus, &*together.programs[1].on_cpus), (2, &[4, 5, 6, 7][..]));
    assert_eq!(plan.runs[0].workload.unit_of("data.real"), Some("s"));
    assert_eq!(plan.runs[0].workload.unit_of("real"), None);
    let asked = |metric: &str| format!("{PROGRAMS}[question]\nmetrics = [\"{metric}\"]\n");
    for metric in ["real", "data.real", "wall"] {
        assert_eq!(load_files(&asked(metric), FIGURES, MACHINE).unwrap().question.metrics, [metric]);
    }
    refused(&asked("real"), ("\"real\"", "\"speed\"", "speed", "no run has a figure `speed`"));
    let wrong = [
        (
            "on_cpus = \"4-7\"",
            "on_cpus = \"3-7\"",
            "on_cpus = \"3-7\"",
            "CPU 3 is also that of program `web`",
        ),
        (
            "on_cpus = \"4-7\"",
            "on_cpus = \"4-8\"",
            "on_cpus = \"4-8\"",
            "on_cpus names 5 CPUs, of which machine small has 4",
        ),
        ("on_cpus = \"4-7\"", "on_cpus = \"many\"", "many", "must be ids of CPUs, as in"),
        (
            "threads = 2",
            "threads = 5",
            "threads = 5",
            "data.threads: 5 threads, each pinned to a CPU of its own, but machine small has 4",
        ),
        ("web.cpus = [2, 4]", "www.cpus = [2, 4]", "www", "unknown key `www.cpus`; write PROGRAM.KEY"),
        ("web.cpus = [2, 4]", "web.cpu = [2, 4]", "web.cpu =", "unknown field `cpu`"),
        ("name = \"data\"", "name = \"web\" # again", "# again", "program `web` is defined twice"),
        ("name = \"data\"", "name = \"config\"", "name = \"config\"", "not the name of a table of settings"),
        ("kind = \"hog\"", "kind = \"pig\"", "pig", "unknown kind of workload `pig`"),
        (
            "[[part.program]]\nname = \"web\"",
            "[part.workload]\n[[part.program]]\nname = \"web\"",
            "[part.workload]",
            "either a workload or a list",
        ),
    ];
    wrong.into_iter().for_each(|wrong| refused(PROGRAMS, wrong));
}

//! Experiments from untrusted sources. The files that an experiment names must be ordinary files in its folder or
//! below, and errors must not quote any other file.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use zonal_lab::experiment::{EXAMPLE, Source, load};
use zonal_machine::MachineModel;
use zonal_testing::within_patience;

const TABLE: &str = "cpus,variant,metric,unit,value\n";

/// Creates a folder with an experiment that names the files `published` and `machine`, and a secret file outside this
/// folder.
fn planted(published: &str, machine: &str) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("mine/data")).unwrap();
    fs::write(root.path().join("secret"), "hunter2,or=not\n").unwrap();
    fs::write(root.path().join("secret.csv"), "hunter2,or=not\n").unwrap();
    fs::write(root.path().join("secret.json"), "{\"hunter2\": 1}").unwrap();
    let text = format!("{EXAMPLE}\n[published]\nfile = {published:?}\n");
    let machine_line = EXAMPLE.lines().find(|line| line.starts_with("machine =")).unwrap();
    let text = text.replacen(machine_line, &format!("machine = {machine:?}"), 1);
    fs::write(root.path().join("mine/experiment.toml"), text).unwrap();
    root
}

fn error(root: &TempDir) -> String {
    let path = root.path().join("mine/experiment.toml");
    let error = within_patience("loading", move || load(&Source::File(path)).unwrap_err().to_string());
    assert!(!error.contains("hunter2") && !error.contains("or=not"), "{error}");
    error
}

#[test]
fn published_figures_lie_beside_the_experiment() {
    let outside = tempfile::tempdir().unwrap();
    let absolute = outside.path().join("secret");
    fs::write(&absolute, "hunter2,or=not\n").unwrap();
    for published in
        ["../secret", "../mine/../secret", "data/../../secret", absolute.to_str().unwrap(), "/dev/zero"]
    {
        let error = error(&planted(published, "quad-10-12-32"));
        assert!(error.contains(published) && error.contains("a relative path without `..`"), "{error}");
    }
    for link in ["figures.csv", "data/figures.csv"] {
        let root = planted(link, "quad-10-12-32");
        symlink(root.path().join("secret"), root.path().join("mine").join(link)).unwrap();
        assert!(error(&root).contains("leads out of"), "{}", error(&root));
    }
    let root = planted("elsewhere/secret.csv", "quad-10-12-32");
    symlink(root.path(), root.path().join("mine/elsewhere")).unwrap();
    assert!(error(&root).contains("leads out of"), "{}", error(&root));
    // Files in the experiment's folder, or in a folder below it, are read.
    for file in ["figures.csv", "./figures.csv", "data/figures.csv"] {
        let root = planted(file, "quad-10-12-32");
        fs::write(root.path().join("mine").join(file), TABLE).unwrap();
        load(&Source::File(root.path().join("mine/experiment.toml"))).unwrap();
    }
}

/// Checks an experiment that is stored among private files.
#[test]
fn errors_do_not_show_contents_of_nearby_files() {
    let secret = "https://alice:token@example.org";
    for (file, problem) in [
        (".secret.csv", "hidden files are not read"),
        (".ssh/id.csv", "hidden files are not read"),
        ("notes.csv", "header must be"),
    ] {
        let root = planted(file, "quad-10-12-32");
        let path = root.path().join("mine").join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, secret).unwrap();
        let error = error(&root);
        assert!(error.contains(problem) && !error.contains("alice"), "{error}");
    }
}

/// Checks files that are valid except for one cell in a table of figures or one value in a machine file.
#[test]
fn errors_do_not_show_cells_of_tables() {
    let columns = "workload,variant,metric,unit,value";
    for rows in [
        "a,baseline,wall,s,hunter2".to_owned(),
        "a,hunter2,wall,s,1".to_owned(),
        "hunter2,one,wall,s,1".to_owned(),
        "a,\"hunter2,wall,s,1".to_owned(),
    ] {
        let root = planted("figures.csv", "quad-10-12-32");
        fs::write(root.path().join("mine/figures.csv"), format!("{columns}\n{rows}\n")).unwrap();
        assert!(error(&root).contains("figures.csv:"), "{}", error(&root));
    }
    let root = planted("figures.csv", "quad-10-12-32");
    fs::write(root.path().join("mine/figures.csv"), format!("hunter2,{columns}\n1,a,one,wall,s,1\n"))
        .unwrap();
    error(&root);
    // An error about a filter by an unknown column must not reveal the existing columns.
    let path = root.path().join("mine/experiment.toml");
    let text = fs::read_to_string(&path).unwrap() + "only = { nothing = 1 }\n";
    fs::write(&path, text).unwrap();
    assert!(error(&root).contains("unknown column `nothing`"), "{}", error(&root));
}

#[test]
fn errors_do_not_show_values_of_machine_files() {
    let good = MachineModel::read(&small("small.json")).unwrap().to_json();
    let observed = r#","observed":{"kernel":"hunter2"}}"#;
    for text in [
        "\"hunter2\"".to_owned(),
        "hunter2".to_owned(),
        "{\"hunter2\": 1}".to_owned(),
        "{\"schema\": \"hunter2\"}".to_owned(),
        "{\"name\": {\"hunter2\": 1}}".to_owned(),
        "{\"name\": \"a\", \"page_bytes\": \"hunter2\"}".to_owned(),
        good.replacen("\"nodes\"", "\"hunter2\"", 1),
        good.replacen("Normal", "hunter2", 1),
        good.replacen("\"0\":", "\"hunter2\":", 1),
        good.replacen("4096", "40961", 1).replace("small", "hunter2"),
        good.trim_end().trim_end_matches('}').to_owned() + "}" + observed,
        good.trim_end().strip_suffix('}').unwrap().to_owned() + observed,
        good.trim_end().strip_suffix('}').unwrap().to_owned()
            + r#","observed":{"fallback_order":{"4711":[0]}}}"#,
    ] {
        let root = planted("figures.csv", "machine.json");
        fs::write(root.path().join("mine/machine.json"), text).unwrap();
        let error = error(&root);
        assert!(error.contains("machine.json:") && error.contains("zonal machine --file"), "{error}");
        assert!(!error.contains("40961") && !error.contains("4711"), "{error}");
    }
}

#[test]
fn tables_must_end_in_csv() {
    let root = planted("notes.txt", "quad-10-12-32");
    fs::write(root.path().join("mine/notes.txt"), format!("{TABLE}\n")).unwrap();
    assert!(error(&root).contains("notes.txt: the name of such a file must end in .csv"), "{}", error(&root));
}

fn small(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(file)
}

#[test]
fn machine_files_must_end_in_json() {
    let root = planted("figures.csv", "../secret.json");
    assert!(error(&root).contains("a relative path without `..`"), "{}", error(&root));
    let root = planted("figures.csv", "link.json");
    symlink("../secret.json", root.path().join("mine/link.json")).unwrap();
    assert!(error(&root).contains("leads out of"), "{}", error(&root));
}

#[test]
fn fifos_are_refused_without_blocking() {
    let fifo = |path: &Path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    let root = planted("figures.csv", "quad-10-12-32");
    fifo(&root.path().join("mine/figures.csv"));
    assert!(error(&root).contains("figures.csv: cannot be read: it is a FIFO"), "{}", error(&root));
    fs::remove_file(root.path().join("mine/experiment.toml")).unwrap();
    fifo(&root.path().join("mine/experiment.toml"));
    assert!(error(&root).contains("experiment.toml: cannot be read: it is a FIFO"), "{}", error(&root));
    let device =
        within_patience("loading", || load(&Source::File("/dev/zero".into())).unwrap_err().to_string());
    assert!(device.contains("a character device; it must be a regular file"), "{device}");
}

#[test]
fn experiment_files_have_a_size_limit() {
    let root = planted("figures.csv", "quad-10-12-32");
    let table = fs::File::create(root.path().join("mine/figures.csv")).unwrap();
    table.set_len((4 << 20) + 1).unwrap();
    assert!(error(&root).contains("larger than 4 MiB"), "{}", error(&root));
}

#[test]
fn tables_have_a_size_limit() {
    let root = planted("figures.csv", "quad-10-12-32");
    let row = |metric: usize| format!("1,one-lock,m{metric},s,1\n");
    let table = |rows: usize| TABLE.to_owned() + &(0..rows).map(row).collect::<String>();
    fs::write(root.path().join("mine/figures.csv"), table(65_536)).unwrap();
    load(&Source::File(root.path().join("mine/experiment.toml"))).unwrap();
    fs::write(root.path().join("mine/figures.csv"), table(65_537)).unwrap();
    assert!(error(&root).contains("figures.csv:65538: more than 65536 figures"), "{}", error(&root));
    let path = root.path().join("mine/experiment.toml");
    fs::write(&path, "# ".repeat(4 << 20)).unwrap();
    assert!(error(&root).contains("larger than 4 MiB"), "{}", error(&root));
}

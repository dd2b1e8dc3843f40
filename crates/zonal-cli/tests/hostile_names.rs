//! Checks names from untrusted sources in every place where a command prints them. No character of a name may control
//! the terminal, and no name may start a new line.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::paths::{PathArgument, paths};
use crate::common::readers;
use crate::common::supplies::{TRACE, reads_trace, supply};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Contains a colour sequence, a bell, C1 controls, a right-to-left override, an isolate, characters of zero width, a
/// tag, four kinds of line breaks, and a delete character.
const HOSTILE: &str =
    "a\u{1b}[31m\u{7}\u{9b}32m\u{202e}\u{2066}\u{200b}\u{feff}\u{e0041}\u{2028}\u{85}\rforged\nforged\u{7f}";

/// Runs the command in an empty folder. The command must not create files there.
fn zonal<S: AsRef<OsStr>>(arguments: &[S]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_zonal"));
    let output = command.args(arguments).current_dir(folder.path()).output().unwrap();
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
    output
}

/// Returns the hostile name with the escapes that both JSON and TOML accept.
fn quoted() -> String {
    let escaped = HOSTILE.chars().map(|letter| match letter {
        ' '..='~' => letter.to_string(),
        _ => letter.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect(),
    });
    format!("\"{}\"", escaped.collect::<String>())
}

/// Returns [`quoted`] for TOML, which has no surrogates.
fn toml_quoted() -> String {
    quoted().replace("\\udb40\\udc41", "\\U000e0041")
}

/// Checks that the command ended with exit code `code`, and that its output contains no control characters except
/// line breaks. Returns the output.
fn check(output: &Output, code: i32, what: &str) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{what}: {errors}");
    let [output, errors] = [&output.stdout, &output.stderr].map(|stream| {
        let text = String::from_utf8(stream.clone()).unwrap_or_else(|error| panic!("{what}: {error}"));
        is_harmless(&text, what);
        text
    });
    output + &errors
}

/// Fails if a text has control characters except line breaks, or a line that the hostile name begins.
fn is_harmless(text: &str, what: &str) {
    assert!(!text.contains("panicked"), "{what}: {text}");
    let acts = |letter: &char| {
        let formats = matches!(*letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e0fff}');
        letter.is_control() && *letter != '\n' || formats
    };
    let found: Vec<char> = text.chars().filter(acts).collect();
    assert!(found.is_empty(), "{what}: {found:?} in {text:?}");
    assert!(
        !text.lines().any(|line| line.trim_start().starts_with("forged")),
        "{what}: a forged line in {text:?}"
    );
}

/// Runs `zonal` and checks its exit code and its output, which must contain the hostile name. Returns the output.
fn shown(arguments: &[&str], code: i32) -> String {
    let text = check(&zonal(arguments), code, &format!("{arguments:?}"));
    assert!(text.contains("32m"), "{arguments:?}: the name is not there: {text}");
    text
}

/// Creates a machine file with a hostile name, in a folder with a hostile name.
fn machine_file() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join(HOSTILE);
    fs::create_dir(&folder).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../zonal-lab/tests/data/small.json");
    let text = fs::read_to_string(source).unwrap().replacen("\"small\"", &quoted(), 1);
    let file = folder.join("machine.json");
    fs::write(&file, text).unwrap();
    (directory, file)
}

fn captured_tree() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let zoneinfo =
        "Node 0, zone   Normal\n        spanned  4096\n        present  4096\n        managed  4000\n";
    for (file, text) in [("proc/zoneinfo", zoneinfo), ("proc/sys/kernel/hostname", HOSTILE)] {
        let path = root.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}

/// Answers every request of a pool's clients with hostile names, until the test ends.
fn hostile_pool(path: &Path) {
    let zeros = |names: &str| -> Value {
        names
            .split_whitespace()
            .map(|name| (name.to_owned(), json!(0)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let mut zone = zeros("id node managed free in_pagesets retired stat_threshold");
    zone["managed"] = json!(1);
    zone["kind"] = json!("Normal");
    zone["watermarks"] = zeros("min low high");
    zone["locality"] = zeros("hit miss foreign interleave_hit local other");
    zone["free_blocks"] = json!([]);
    let events = zeros(
        "probes marks wipes node_reclaim_no_scan node_reclaim_full node_reclaim_some node_reclaim_success \
         background_wakes background_reclaimed direct_stalls direct_reclaimed direct_ns retired failures refills drains \
         remote_drains",
    );
    let setting = json!({ "name": HOSTILE, "value": HOSTILE, "default": HOSTILE, "allowed": HOSTILE,
        "access": HOSTILE, "summary": HOSTILE });
    let answer = json!({
        "zonal": 1,
        "settings": [setting],
        "set": { "name": HOSTILE, "value": HOSTILE },
        "snapshot": {
            "program": { "pid": 1, "name": HOSTILE }, "page_bytes": 4096, "events": events,
            "nodes": [{ "id": 0, "allocated": zeros("user cache kernel") }], "zones": [zone], "pagesets": [],
        },
    });
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let mut request = String::new();
            let _ = BufReader::new(&client).read_line(&mut request);
            let _ = writeln!(&client, "{answer}");
        }
    });
}

/// Every command that reads a path prints no name from there raw: names in machine files and experiments, the name of a
/// host, and all names that a pool can give.
#[test]
fn names_of_every_source() {
    let shows = |path: &PathArgument, at: &Path, folder: &Path| {
        let what = format!("{path:?}");
        let (code, text) = readers::run(path, at, folder);
        assert!((0..=2).contains(&code), "{what}: {code}: {text}");
        match text.split_once("HTTP/1.1 ") {
            // Pages may have other line breaks and have their own test.
            Some((printed, _)) => is_harmless(printed, &what),
            None => is_harmless(&text, &what),
        }
        (code, text)
    };
    let folder = tempfile::tempdir().unwrap();
    for path in paths("tree") {
        let root = captured_tree();
        shows(&path, root.path(), folder.path());
    }
    let (_machine, machine) = machine_file();
    let (_experiment, experiment) = experiment();
    for path in paths("reads").into_iter().chain(paths("loads")) {
        for file in [&machine, &experiment] {
            shows(&path, file, folder.path());
        }
    }
    let socket = folder.path().join(HOSTILE);
    hostile_pool(&socket);
    for path in paths("socket") {
        let (code, text) = shows(&path, &socket, folder.path());
        // The pool has no answer for explanations; the error names the socket.
        let right = i32::from(path.command == ["explain"]);
        assert!(code == right && text.contains("32m"), "{path:?}: {code}: {text}");
    }
}

#[test]
fn names_of_machines() {
    let root = captured_tree();
    let tree = root.path().to_str().unwrap();
    let json = shown(&["machine", "--sysfs", tree, "--json"], 0);
    let (_folder, file) = machine_file();
    let file = file.to_str().unwrap();
    let out = root.path().join(HOSTILE);
    let page = root.path().join(format!("page {HOSTILE}"));
    for (arguments, code) in [
        (&["machine", "--sysfs", tree][..], 0),
        (&["machine", "--file", file], 0),
        (&["machine", "--file", file, "--json"], 0),
        (&["machine", "--file", file, "--check"], 2),
        (&["machine", "--file", file, "--html", page.to_str().unwrap()], 0),
        (&["machine", "--file", file, "--export", out.to_str().unwrap(), "--json"], 0),
    ] {
        shown(arguments, code);
    }
    // Scripts receive the unchanged name.
    let document = json.lines().find(|line| line.starts_with('{')).unwrap();
    let document: Value = serde_json::from_str(document).unwrap();
    assert_eq!(document["name"].as_str(), Some(HOSTILE.trim()));
}

#[test]
fn bad_machine_files() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("bad.json");
    let path = file.to_str().unwrap();
    let (_folder, good) = machine_file();
    let good = fs::read_to_string(good).unwrap();
    for (old, new) in [
        ("\"page_bytes\"", format!("{}: 1, \"page_bytes\"", quoted())),
        ("\"Normal\"", quoted()),
        ("4096", quoted()),
        ("\"zones\"", format!("\"observed\": {{\"kernel\": {}}}, \"zones\"", quoted())),
    ] {
        let text = good.replacen(old, &new, 1);
        assert_ne!(text, good);
        fs::write(&file, text).unwrap();
        let text = shown(&["machine", "--file", path], 2);
        assert_eq!(text.lines().count(), 1, "{text}");
        shown(&["run", "--machine", path], 2);
    }
}

#[test]
fn arguments_and_names_of_files() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join(HOSTILE).join("missing.toml");
    let (missing, name) = (missing.to_str().unwrap(), HOSTILE);
    let pool = ["--pool", "16MiB", "--seconds", "0.01", "--threads", "1"];
    for arguments in [
        &[name][..],
        &["run", name],
        &["run", "--policy", name],
        &["run", "--node", name],
        &["run", "--machine", missing],
        &["run", "--counters", name],
        &["machine", "--file", missing],
        &["machine", "--sysfs", missing],
        &["machine", "--preset", name],
        &["machine", "--rules", name],
        &["machine", "--node-load", name],
        &["machine", "--preset", "desktop", "--export", missing],
        &["bench", name],
        &["bench", "--peer", name],
        &["bench", "--threads", name],
        &["bench", "figures", name],
        &["mechanisms", name],
        &["lab", name],
        &["lab", "run", name],
        &["lab", "run", missing],
        &["lab", "run", "zoned-counters-2006", "--variant", name],
        &["lab", "run", "zoned-counters-2006", "--case", name],
    ] {
        shown(arguments, 2);
    }
    // The command creates the missing folder and its parents.
    shown(&[&["run", "pair", "--export-tree", missing][..], &pool].concat(), 0);
    // This name is not valid UTF-8.
    let bytes = OsStr::from_bytes(b"\x1b[31m\xff\x9b\n.json");
    for arguments in
        [[OsStr::new("machine"), OsStr::new("--file"), bytes], [OsStr::new("lab"), OsStr::new("run"), bytes]]
    {
        check(&zonal(&arguments), 2, "bytes");
    }
}

/// Every command with `--json` and a path prints a document whatever the bytes of the path. Those of names are any except
/// zero and slashes, and a JSON document is UTF-8.
#[test]
fn documents_with_paths_that_are_not_utf_8() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../zonal-lab/tests/data");
    let experiment = data.join("small.toml");
    let experiment = experiment.to_str().unwrap();
    // Without published figures, which belong to machines of their own.
    let own = data.join("own.toml");
    let own = own.to_str().unwrap();
    let machine = data.join("small.json");
    let machine = machine.to_str().unwrap();
    let pool = zonal_linux::Pool::builder().size(32 << 20).fake_nodes(1).build().unwrap();
    let short = ["pair", "--pool", "16MiB", "--seconds", "0.01", "--threads", "1"];
    let mut checked = Vec::new();
    for way in ["reads", "tree", "socket", "writes", "binds"] {
        for path in paths(way) {
            let help = zonal(&[&path.command[..], &["--help"]].concat());
            if !String::from_utf8(help.stdout).unwrap().contains("--json") {
                continue;
            }
            let folder = tempfile::tempdir().unwrap();
            let at = folder.path().join(OsStr::from_bytes(b"a\xff"));
            let published = supply(&path, way, &at, &pool);
            let more: &[&[&str]] = match path.command[..] {
                ["bench"] => &[&short, &["--peer", "none", "--rounds", "1", "--warm-up", "0.001"]],
                ["run"] => &[&short],
                ["set"] => &[&["stat_interval=3"]],
                ["top"] => &[&["--interval", "0.1"]],
                ["machine"] if way == "writes" => &[&["--preset", "desktop"]],
                ["trace", "info"] if way == "writes" => &[&[TRACE]],
                ["trace", "replay"] if reads_trace(&path) => &[&["--machine", machine]],
                ["trace", "replay"] => &[&[TRACE]],
                ["lab", "what-if"] if reads_trace(&path) => &[&["--operations", "500", "--machine", machine]],
                ["lab", "what-if"] => &[&["--operations", "500"]],
                ["lab", ..] if path.argument == "--capture" => &[&[own]],
                ["lab", ..] if way == "writes" => &[&[experiment, "--case", "case=one"]],
                _ => &[],
            };
            let mut arguments: Vec<&OsStr> = path.before().into_iter().map(OsStr::new).collect();
            arguments.push(at.as_os_str());
            arguments.extend(more.concat().iter().map(|&argument| OsStr::new(argument)));
            arguments.push(OsStr::new("--json"));
            let mut command = Command::new(env!("CARGO_BIN_EXE_zonal"));
            let output = command.args(&arguments).current_dir(folder.path()).output().unwrap();
            if path.command == ["lab", "run"] && path.argument == "experiments" {
                // Experiments are named by texts.
                assert!(check(&output, 2, "lab").contains("invalid UTF-8"));
                continue;
            }
            let text = check(&output, 0, &format!("{arguments:?}"));
            let first = text.lines().next().unwrap_or_default();
            assert!(serde_json::from_str::<Value>(first).is_ok(), "{arguments:?}: {text}");
            drop(published);
            checked.push(path.command.join(" "));
        }
    }
    for command in [
        "bench",
        "explain",
        "lab run",
        "machine",
        "run",
        "set",
        "settings",
        "top",
        "trace info",
        "trace replay",
    ] {
        assert!(checked.iter().any(|other| other == command), "{command}: {checked:?}");
    }
}

/// Creates the small experiment with hostile names wherever a name is allowed, in a folder with a hostile name.
fn experiment() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join(HOSTILE);
    fs::create_dir(&folder).unwrap();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../zonal-lab/tests/data");
    let mut text = fs::read_to_string(data.join("small.toml")).unwrap();
    for old in [
        "\"A small machine\"",
        "\"made up\"",
        "\"Two parts, ended in no time.\"",
        "\"none\"",
        "\"hog\"\nmachine",
        "\"after\"",
        "\"with a cache\"",
        "\"one\"",
        "\"what is usual\"",
        "\"wall of one process\"",
    ] {
        assert_eq!(text.matches(old).count(), 1, "{old}");
        let end = if old.ends_with("machine") { "\nmachine" } else { "" };
        text = text.replacen(old, &(toml_quoted() + end), 1);
    }
    text = text.replacen("[\"touch\", \"hog\"]", "[\"touch\"]", 1);
    fs::write(folder.join("small.toml"), text).unwrap();
    let table =
        fs::read_to_string(data.join("small.csv")).unwrap().replace(",after,", &format!(",\"{HOSTILE}\","));
    fs::write(folder.join("small.csv"), table).unwrap();
    let (_machine, machine) = machine_file();
    fs::copy(machine, folder.join("small.json")).unwrap();
    let file = folder.join("small.toml");
    (directory, file)
}

#[test]
fn names_of_an_experiment() {
    let (directory, file) = experiment();
    let out = directory.path().join("out");
    let arguments = ["lab", "run", file.to_str().unwrap(), "--out", out.to_str().unwrap()];
    let text = shown(&arguments, 0);
    assert!(text.contains("written to "), "{text}");
    // The page and its charts must not contain control characters, many of which are not valid in XML.
    for entry in fs::read_dir(out.join("small")).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        if path.extension().is_some_and(|ending| ending != "json") {
            let is_sound = |letter: char| {
                letter == '\n'
                    || !letter.is_control()
                        && !matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
            };
            assert!(text.chars().all(is_sound), "{}", path.display());
        }
    }
    let json = zonal(&[&arguments[..], &["--json"]].concat());
    let text = check(&json, 0, "--json");
    let document: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!(document[0]["machine"].as_str(), Some(HOSTILE));
    let variants = document[0]["rows"].as_array().unwrap().iter().map(|row| row["variant"].as_str().unwrap());
    assert!(variants.into_iter().any(|variant| variant == HOSTILE));
}

#[test]
fn bad_experiments() {
    let (directory, file) = experiment();
    let (path, out) = (file.to_str().unwrap(), directory.path().join("out"));
    let run = ["lab", "run", path, "--out", out.to_str().unwrap()];
    let good = fs::read_to_string(&file).unwrap();
    let quoted = toml_quoted();
    for (old, new) in [
        ("name = \"small\"", format!("name = {quoted}")),
        ("title =", format!("{quoted} = 1\ntitle =")),
        ("machine = \"small.json\"", format!("machine = {quoted}")),
        ("kind = \"first-touch\"", format!("kind = {quoted}")),
        ("kind = \"hog\"", format!("kind = \"hog\"\n{quoted} = 1")),
        ("config.node_reclaim = [\"on\", \"off\"]", format!("config.node_reclaim = [{quoted}]")),
        ("zonelist_cache = \"off\"", format!("zonelist_cache = {quoted}")),
        ("file = \"small.csv\"", format!("file = {quoted}")),
        ("only = { workload = [\"touch\"] }", format!("only = {{ {quoted} = [\"touch\"] }}")),
        ("variant = \"before\"", format!("variant = {quoted}")),
        ("name = \"touch.workload.fault_ns\"", format!("name = {quoted}")),
    ] {
        let text = good.replacen(old, &new, 1);
        assert_ne!(text, good, "{old}");
        fs::write(&file, text).unwrap();
        shown(&run, 2);
    }
    // The error of a failed run names the case and the variant.
    fs::write(&file, good.replacen("gib_each = 0.004", "gib_each = 0.25", 1)).unwrap();
    shown(&[&run[..], &["--variant", HOSTILE]].concat(), 1);
    fs::write(&file, &good).unwrap();
    for table in [
        format!("\"{HOSTILE}\",variant,metric,unit,value\n1,before,wall,s,1\n"),
        format!("cpus,variant,metric,unit,value\n1,\"{HOSTILE}x\",wall,s,1\n"),
        format!("cpus,variant,metric,unit,value\n\"{HOSTILE}\",before,wall,s,1\n"),
        format!("cpus,variant,metric,unit,value\n1,before,wall,s,\"{HOSTILE}\"\n"),
    ] {
        fs::write(file.with_file_name("small.csv"), &table).unwrap();
        // The table might be a file that does not belong to the experiment, so the error must not quote it.
        let text = check(&zonal(&run), 2, &table);
        let (_, problem) = text.rsplit_once("small.csv").unwrap_or_else(|| panic!("{text}"));
        assert!(!problem.contains("32m"), "{text}");
    }
    assert!(!out.exists());
}

/// Checks that errors are short even if they quote long names.
#[test]
fn long_names() {
    let directory = tempfile::tempdir().unwrap();
    // The name of a file has at most 255 bytes, and an argument has at most 128 KiB.
    let long = format!("{HOSTILE}{}", "ab".repeat(50_000));
    let file = |name: &str, text: String| {
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let key = file("key.json", format!("{{\"{}\": 1}}", "ab".repeat(500_000)));
    let value = file("value.json", format!("{{\"name\": 1, \"page_bytes\": \"{}\"}}", "ab".repeat(500_000)));
    let experiment = file("long.toml", format!("name = \"{}!\"\n", "ab".repeat(500_000)));
    for arguments in [
        &["machine", "--file", &key][..],
        &["machine", "--file", &value],
        &["machine", "--preset", &long],
        &["machine", "--rules", &long],
        &["machine", "--sysfs", &long],
        &["run", "--machine", &key],
        &["lab", "run", &long],
        &["lab", "run", &experiment],
        &[&long],
    ] {
        let text = check(&zonal(arguments), 2, arguments[0]);
        assert!(text.len() < 2100 && text.lines().count() == 1, "{}: {text:.3000}", arguments[0]);
    }
    // The allowed values must not be cut off.
    let text = check(&zonal(&["machine", "--file", &key]), 2, "key");
    assert!(text.contains("expected one of `name`, `page_bytes`") && text.len() < 1200, "{text}");
}

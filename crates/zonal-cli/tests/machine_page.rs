//! Checks `zonal machine --html`: the contents of the page, the names in it, its combination with other arguments, and
//! paths that cannot be written.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn machine(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_zonal")).arg("machine").args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn oracle(name: &str) -> String {
    let crates: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    crates.join("zonal-machine/tests/oracle").join(name).display().to_string()
}

/// Writes the page of a machine. Returns the page and the output of the command.
fn page(args: &[&str]) -> (String, Output) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("page.html");
    let path = file.to_str().unwrap();
    let output = machine(&[args, &["--html", path]].concat());
    let errors = text(&output.stderr);
    assert!(errors.ends_with(&format!("zonal: wrote page {path}\n")), "{args:?}: {errors}");
    (fs::read_to_string(file).unwrap(), output)
}

/// Calls `check` with the parsed body of a page.
fn with_body(page: &str, check: impl FnOnce(&roxmltree::Document<'_>)) {
    let body = &page[page.find("<body>").unwrap()..page.find("</html>").unwrap()];
    // XML requires a value for each attribute.
    let body = body.replace("<details open>", "<details open=\"\">");
    check(&roxmltree::Document::parse(&body).unwrap_or_else(|error| panic!("{error}: {body}")));
}

/// Returns the number of elements with an attribute.
fn count(document: &roxmltree::Document<'_>, attribute: &str) -> usize {
    document.descendants().filter(|node| node.has_attribute(attribute)).count()
}

/// Returns the cells in the table row that begins with `head`.
fn row(page: &str, head: &str) -> Vec<String> {
    let mut cells = Vec::new();
    with_body(page, |document| {
        let head =
            document.descendants().find(|node| node.has_tag_name("th") && node.text() == Some(head)).unwrap();
        cells.extend(head.next_siblings().skip(1).map(|cell| cell.text().unwrap_or_default().to_owned()));
    });
    cells
}

/// Checks that a page loads nothing, has no scripts, and has unique ids.
fn check_self_contained(page: &str, name: &str) {
    for word in ["<script", "<link", "<img", "<iframe", "src=", "href=", "url(", "@import", "http:", "https:"]
    {
        assert!(!page.contains(word), "{name}: {word}");
    }
    assert!(page.contains("content=\"default-src 'none'; style-src 'unsafe-inline'\""), "{name}");
    with_body(page, |document| {
        let ids = document.descendants().filter_map(|node| node.attribute("id"));
        let mut ids: Vec<&str> = ids.collect();
        let all = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), all, "{name}: {ids:?}");
        for labelled in document.descendants().filter_map(|node| node.attribute("aria-labelledby")) {
            assert!(ids.contains(&labelled), "{name}: no {labelled}");
        }
        for table in document.descendants().filter(|node| node.has_tag_name("table")) {
            assert!(
                table.children().any(|child| child.has_tag_name("caption")),
                "{name}: a table has no caption"
            );
        }
        for picture in document.descendants().filter(|node| node.has_tag_name("svg")) {
            let hidden = |node: roxmltree::Node<'_, '_>| {
                let is_image = node.attribute("role") == Some("img") && node.has_attribute("aria-label");
                is_image || node.attribute("aria-hidden") == Some("true")
            };
            assert!(picture.ancestors().any(hidden), "{name}: a picture has no text alternative");
        }
    });
}

#[test]
fn pages_of_small_and_huge_machines() {
    for (preset, nodes, zones, numbers) in [
        ("desktop", 1, 3, 0),
        ("quad-10-12-32", 4, 6, 4 * 4),
        ("epyc8-nps4", 8, 10, 8 * 8),
        ("altix28", 28, 28, 28 * 28),
        ("altix512", 512, 512, 0),
        ("mesh1024", 1024, 1025, 0),
    ] {
        let (page, output) = page(&["--preset", preset]);
        assert_eq!(output.status.code(), Some(0));
        assert!(
            text(&output.stdout).starts_with(&format!("{preset}: {nodes} node")),
            "the text is printed as well"
        );
        assert!(page.len() < 2_000_000, "{preset}: {}", page.len());
        check_self_contained(&page, preset);
        with_body(&page, |document| {
            assert_eq!(count(document, "data-cpus"), nodes, "{preset}");
            assert_eq!(count(document, "data-zone"), zones, "{preset}");
            assert_eq!(count(document, "data-from"), numbers, "{preset}");
            let headings = document.descendants().filter(|node| node.has_tag_name("h2"));
            let headings: Vec<&str> = headings.filter_map(|node| node.text()).collect();
            let expected = match nodes {
                1 => &["Advice", "Node", "Watermarks", "Settings"][..],
                _ => &[
                    "Advice",
                    "Nodes and distances",
                    "Fallback orders and balance",
                    "Watermarks",
                    "Settings",
                ],
            };
            assert_eq!(headings, expected);
        });
    }
}

#[test]
fn values_of_a_captured_machine() {
    let (page, _) = page(&["--file", &oracle("linux-5.10-quad-10-12-32.json")]);
    assert!(page.contains("Rules of Linux 5.10 (its own kernel), node load: assign."));
    assert!(page.contains("27 of 27 values that its kernel reported are predicted exactly."));
    with_body(&page, |document| {
        let cell = |names: [(&str, &str); 2]| {
            let mut cells = document.descendants().filter(|node| node.has_tag_name("td"));
            let cell =
                cells.find(|node| names.iter().all(|(name, value)| node.attribute(*name) == Some(*value)));
            cell.unwrap_or_else(|| panic!("no cell {names:?}")).text().unwrap().to_owned()
        };
        assert_eq!(cell([("data-from", "1"), ("data-to", "2")]), "32");
        assert_eq!(cell([("data-requests-of", "3"), ("data-node", "0")]), "3");
        assert_eq!(cell([("data-place", "2nd"), ("data-node", "0")]), "2");
        let node = document.descendants().find(|node| node.attribute("data-cpus") == Some("4-5")).unwrap();
        assert_eq!(node.attribute("data-managed-bytes"), Some((257_879 * 4096).to_string().as_str()));
        let labels = document.descendants().filter(|node| node.has_tag_name("strong"));
        assert_eq!(labels.filter_map(|node| node.text()).collect::<Vec<_>>(), ["warning", "info"]);
    });
}

#[test]
fn zones_with_equal_values_share_a_bar() {
    let (page, _) = page(&["--preset", "mesh1024"]);
    assert!(page.contains("nodes 1-1023\n"));
}

/// A name that would end each context in which the page could contain it.
#[test]
fn names_cannot_add_elements() {
    const NAME: &str =
        "</title></style></svg>--><script>alert(1)</script>\"'&lt;<img src=x onerror=alert(1)>";
    let source = fs::read_to_string(oracle("linux-6.1-quad-low.json")).unwrap();
    let mut file: Value = serde_json::from_str(&source).unwrap();
    file["name"] = NAME.into();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hostile.json");
    fs::write(&path, file.to_string()).unwrap();
    let (page, output) = page(&["--file", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0));
    assert!(!page.contains("<script") && !page.contains("<img"), "{page}");
    assert_eq!(page.matches("</title>").count(), page.matches("<title>").count());
    assert_eq!(page.matches("</style>").count(), 1);
    with_body(&page, |document| {
        let heading = document.descendants().find(|node| node.has_tag_name("h1")).unwrap();
        assert_eq!(heading.text(), Some(NAME));
    });
}

#[test]
fn a_page_and_json_at_once() {
    let source = ["--preset", "cxl4", "--rules", "6.1", "--node-load", "assign"];
    let (alone, _) = page(&source);
    let (with_json, output) = page(&[&source[..], &["--json"]].concat());
    assert_eq!(alone, with_json);
    assert!(alone.contains("Rules of Linux 6.1 (its own kernel is unknown), node load: assign."));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["schema"], "zonal.machine.v1");
}

#[test]
fn a_failed_check_is_on_the_page_and_nothing_to_check_is_not() {
    let file = oracle("linux-6.1-quad-low.json");
    let (page, output) = page(&["--file", &file, "--check", "--rules", "5.10"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(page.contains("<p class=\"warning\">6 values that its kernel reported differ; see Checks.</p>"));
    assert_eq!(row(&page, "fallback_order node 3"), ["3 2 0 1", "3 2 1 0"]);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("page.html");
    let output = machine(&["--preset", "desktop", "--check", "--html", path.to_str().unwrap()]);
    assert_eq!((output.status.code(), path.exists()), (Some(2), false));
}

#[test]
fn values_computed_at_boot_are_explained() {
    let (page, output) = page(&["--file", &oracle("../boot_memory/linux-6.12-quad-initrd.json"), "--check"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(page.contains("16 as computed at boot, 0 differ.") && !page.contains("class=\"warning\""));
    assert!(page.contains("when it had at least 13286 frames (51.9 MiB) fewer"));
    assert_eq!(row(&page, "min node 3 DMA32"), ["6231", "5829"]);
}

#[test]
fn paths_that_cannot_be_written() {
    let directory = tempfile::tempdir().unwrap();
    let (folder, foreign) = (directory.path().join("folder"), directory.path().join("notes.html"));
    let both = directory.path().join("both").display().to_string();
    fs::create_dir(&folder).unwrap();
    fs::write(&foreign, "<!DOCTYPE html>mine").unwrap();
    let (folder, foreign) = (folder.to_str().unwrap(), foreign.to_str().unwrap());
    let export = directory.path().join("machine.json");
    for (path, expected) in [
        ("/no/such/page.html", "cannot write /no/such/page.html: No such file or directory"),
        (folder, "it exists and is neither a file nor a link; choose another name"),
        (foreign, "this file was not written by zonal for this purpose; choose another name, or use --force"),
        ("/proc/page.html", "files cannot be written there; choose another directory"),
        ("/", "this is not a file name; add one"),
    ] {
        let output = machine(&["--preset", "desktop", "--html", path]);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{path}: {errors}");
        assert!(errors.contains(expected) && errors.contains(path), "{path}: {errors}");
        assert_eq!((errors.lines().count(), text(&output.stdout).as_str()), (1, ""), "{path}");
    }
    // Both paths are checked before either file is written.
    let output = machine(&["--preset", "desktop", "--export", export.to_str().unwrap(), "--html", foreign]);
    assert_eq!((output.status.code(), export.exists()), (Some(2), false));
    let output = machine(&["--preset", "desktop", "--export", &both, "--html", &both]);
    assert_eq!((output.status.code(), Path::new(&both).exists()), (Some(2), false));
    assert!(text(&output.stderr).contains("--export and --html both name "), "{}", text(&output.stderr));
    // A page of zonal is replaced; any other file only with --force.
    let output = machine(&["--preset", "desktop", "--html", foreign, "--force"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(machine(&["--preset", "cxl4", "--html", foreign]).status.code(), Some(0));
    assert!(fs::read_to_string(foreign).unwrap().contains("<h1>cxl4</h1>"));
}

/// Checks a limit with which no byte can be written, as on a full disk. The arguments are valid, so the exit code is 1.
#[test]
fn a_failed_write_of_a_page_exits_with_1() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("page.html");
    let script = "trap '' XFSZ; ulimit -f 0; exec \"$0\" machine --preset desktop --html \"$1\"";
    let mut command = Command::new("sh");
    let output = command.args(["-c", script, env!("CARGO_BIN_EXE_zonal")]).arg(&file).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), file.exists()), (Some(1), false), "{errors}");
    assert!(errors.contains("cannot write ") && errors.lines().count() == 1, "{errors}");
}

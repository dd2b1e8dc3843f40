//! Checks that the manual and the completions have all commands and options of the help texts.

use std::process::Command;

/// Runs `zonal` on an output of `columns`. Returns the exit code, the output and the errors.
fn zonal(arguments: &[&str], columns: &str) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zonal"));
    let ran = command.args(arguments).env("COLUMNS", columns).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (ran.status.code(), text(ran.stdout), text(ran.stderr))
}

fn succeeds(arguments: &[&str]) -> String {
    let (code, output, errors) = zonal(arguments, "100");
    assert_eq!(code, Some(0), "{arguments:?}: {errors}");
    output
}

/// Returns the long options that begin a line of a help text.
fn options(help: &str) -> Vec<&str> {
    let words = help.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('-')));
    let first = words.filter(|word| word.starts_with("--"));
    first.map(|word| word.trim_end_matches(',')).filter(|word| help.contains(&format!("  {word}"))).collect()
}

#[test]
fn pages_have_the_options_of_the_help_texts() {
    let list = succeeds(&["man", "--list"]);
    let pages: Vec<&str> = list.lines().collect();
    assert!(pages.contains(&"zonal-run") && pages.contains(&"zonal-lab-run"), "{pages:?}");
    for page in pages.iter().filter(|page| **page != "zonal") {
        // The name of a page joins the words of a command, one of which has a hyphen itself.
        let command = page.split_once('-').map_or("", |(_, command)| command);
        let arguments: Vec<&str> = match command {
            "lab-what-if" => vec!["lab", "what-if", "--help"],
            command => command.split('-').chain(["--help"]).collect(),
        };
        let help = succeeds(&arguments);
        let text = succeeds(&["man", page]).replace("\\-", "-");
        for option in options(&help) {
            assert!(text.contains(&format!("\\fB{option}\\fR")), "{page} has no {option}: {text}");
        }
    }
    assert!(options(&succeeds(&["run", "--help"])).contains(&"--tuning"));
}

#[test]
fn commands_of_the_help_text_have_pages_and_completions() {
    let help = succeeds(&["--help"]);
    let commands = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let names = commands.lines().filter(|line| !line.starts_with("   "));
    let names: Vec<&str> = names.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.len() >= 10, "{names:?}");
    for name in names.into_iter().filter(|name| *name != "help") {
        assert!(succeeds(&["man", &format!("zonal-{name}")]).contains(&format!("\n.TH zonal-{name} 1 ")));
        for shell in ["bash", "zsh", "fish"] {
            assert!(succeeds(&["completions", shell]).contains(name), "{shell} does not complete {name}");
        }
    }
}

#[test]
fn pages_do_not_depend_on_the_width_of_the_output() {
    for page in succeeds(&["man", "--list"]).lines() {
        let [narrow, wide] = ["40", "200"].map(|columns| zonal(&["man", page], columns).1);
        assert_eq!(narrow, wide, "{page}");
    }
}

#[test]
fn all_pages_are_written_to_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let new = folder.path().join("share/man1");
    for path in [new.as_path(), folder.path()] {
        assert_eq!(succeeds(&["man", path.to_str().unwrap()]), "");
        for page in succeeds(&["man", "--list"]).lines() {
            let written = std::fs::read_to_string(path.join(format!("{page}.1"))).unwrap();
            assert_eq!(written, succeeds(&["man", page]), "{page}");
        }
    }
    let file = new.join("zonal.1/pages");
    let (code, _, errors) = zonal(&["man", file.to_str().unwrap()], "100");
    assert_eq!(code, Some(2));
    assert!(errors.contains("cannot write") && errors.contains("zonal.1/pages"), "{errors}");
}

#[test]
fn pages_and_shells_that_do_not_exist_are_bad_input() {
    let (code, output, errors) = zonal(&["man", "run"], "100");
    assert_eq!((code, &*output), (Some(2), ""));
    assert!(
        errors.starts_with("zonal: there is no page `run`; the pages are: zonal, zonal-run,"),
        "{errors}"
    );
    let (code, _, errors) = zonal(&["completions", "tcsh"], "100");
    assert_eq!(code, Some(2));
    assert!(errors.contains("'tcsh'") && errors.contains("bash, zsh, fish"), "{errors}");
}

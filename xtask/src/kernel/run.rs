//! Runs the kernel under QEMU and evaluates its output and its exit status.

use std::fs::{self, File};
use std::path::{Component, Path};
use std::process::{ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::machine::{self, PASSED, Shape};
use super::patience;
use crate::numa::boot::Running;

/// Beginning of the kernel's fault report.
const FAULT: &str = "failed on CPU ";
/// Beginning of the line before each file, and the line after the last.
const FILE: &str = "file ";
const END_OF_FILES: &str = "end of files";

/// The way in which a run ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The kernel passed.
    Passed,
    /// The kernel reported a fault.
    Caught(String),
    /// The kernel did not come to its end.
    Broken(String),
}

/// The result of a run.
pub(super) struct Seen {
    pub(super) ended: Ended,
    /// The lines of the console.
    pub(super) lines: Vec<String>,
}

/// Runs a kernel and stores all that it prints in `log`.
pub(super) fn run(kernel: &Path, shape: &Shape, seconds: u64, log: &Path) -> Result<Seen, String> {
    let place = |error: std::io::Error| format!("{}: {error}", log.display());
    let output = File::create(log).map_err(place)?;
    let mut command = machine::boot(kernel, shape, &format!("seconds={seconds}"), "multi");
    command.stdin(Stdio::null()).stdout(output);
    let mut running = Running(command.spawn().map_err(|error| format!("QEMU does not start: {error}"))?);
    let (begin, patience) = (Instant::now(), patience(seconds));
    let status = loop {
        match running.0.try_wait().map_err(|error| error.to_string())? {
            Some(status) => break Some(status),
            None if begin.elapsed() > patience => break None,
            None => sleep(Duration::from_millis(50)),
        }
    };
    drop(running);
    let text = fs::read(log).map_err(place)?;
    let lines: Vec<String> =
        String::from_utf8_lossy(&text).lines().map(|line| line.trim_end_matches('\r').to_owned()).collect();
    let ended = judge(status, &lines, patience);
    Ok(Seen { ended, lines })
}

fn judge(status: Option<ExitStatus>, lines: &[String], patience: Duration) -> Ended {
    let fault = lines.iter().position(|line| line.starts_with(FAULT));
    let passed = lines.last().is_some_and(|line| line == "passed");
    match (status, fault) {
        (_, Some(at)) => Ended::Caught(lines[at..].join(" ")),
        (Some(status), None) if status.code() == Some(PASSED) && passed => Ended::Passed,
        (Some(status), None) => Ended::Broken(format!("the kernel ended with {status} and no report")),
        (None, None) => Ended::Broken(format!("the kernel did not end within {} s", patience.as_secs())),
    }
}

/// Whether a line belongs to the summary of a run.
pub(super) fn is_summary(line: &str) -> bool {
    ["zonal: ", "count ", "pressure "].iter().any(|start| line.contains(start))
        || line.contains(" managed = ")
}

/// Writes the files that the kernel printed below `folder`, which is emptied first.
pub(super) fn write_files(lines: &[String], folder: &Path) -> Result<(), String> {
    let place = |error: std::io::Error| format!("{}: {error}", folder.display());
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(place)?;
    }
    let end = lines.iter().position(|line| line == END_OF_FILES).ok_or("the kernel printed no files")?;
    let mut file = None;
    for line in &lines[..end] {
        if let Some(path) = line.strip_prefix(FILE) {
            let is_plain = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
            if !is_plain {
                return Err(format!("the kernel printed a file with the path `{path}`"));
            }
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap_or(folder)).map_err(place)?;
            file = Some((path, String::new()));
        } else if let Some((path, text)) = &mut file {
            text.push_str(line);
            text.push('\n');
            fs::write(path, text.trim_end().to_owned() + "\n").map_err(place)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn the_end_of_a_run_depends_on_the_report_and_the_status() {
        let (passed, other) = (ExitStatus::from_raw(PASSED << 8), ExitStatus::from_raw(1 << 8));
        let judge = |status, text| judge(status, &lines(text), Duration::from_secs(9));
        assert_eq!(judge(Some(passed), "a\npassed"), Ended::Passed);
        assert!(matches!(judge(Some(passed), "a"), Ended::Broken(_)));
        assert!(matches!(judge(Some(other), "a\npassed"), Ended::Broken(_)));
        assert_eq!(
            judge(Some(other), "a\nfailed on CPU 1: b\nc"),
            Ended::Caught("failed on CPU 1: b c".into())
        );
        assert_eq!(judge(None, "a"), Ended::Broken("the kernel did not end within 9 s".into()));
    }

    #[test]
    fn printed_files_are_written_below_the_folder_only() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("files");
        write_files(&lines("x\nfile a/b\n1\n2\n\nfile c\n3\n\nend of files\nmore"), &at).unwrap();
        assert_eq!(fs::read_to_string(at.join("a/b")).unwrap(), "1\n2\n");
        assert_eq!(fs::read_to_string(at.join("c")).unwrap(), "3\n");
        assert!(write_files(&lines("file ../a\n1\nend of files"), &at).unwrap_err().contains("../a"));
        assert!(write_files(&lines("file /a\n1\nend of files"), &at).is_err());
        assert!(write_files(&lines("file a\n1"), &at).unwrap_err().contains("no files"));
    }
}

//! Runs one guest: packs its file system, starts QEMU, and reads its output until the guest ends or times out.
//!
//! Related files: `numa/machine.rs` has QEMU's arguments, and `numa/console.rs` evaluates the lines.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::console::{Line, Report};
use super::initramfs::Initramfs;
use super::kernels::{Arch, Image};
use super::programs::{Programs, tools};
use crate::steps::target_folder;

/// A guest that is ready to boot. Its file system is removed when it is dropped.
pub(super) struct Guest {
    command: std::process::Command,
    initramfs: PathBuf,
    log: PathBuf,
}

/// The content of a guest's file system.
pub(super) struct Content<'a> {
    pub(super) arch: Arch,
    /// The script that the guest runs as its first process.
    pub(super) script: String,
    pub(super) programs: &'a Programs,
    /// More files, with their paths in the guest.
    pub(super) files: Vec<(String, Vec<u8>)>,
}

/// The result of running a guest.
pub(super) struct Seen {
    pub(super) report: Report,
    /// Time until the programs of the guest began to run, if they did.
    pub(super) up: Option<Duration>,
    /// Time until the guest was switched off.
    pub(super) total: Duration,
    /// The file with all output of the guest.
    pub(super) log: PathBuf,
}

/// A QEMU process. Dropping it kills the process, so that it never outlives its reader.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Both calls fail only if the process has already ended.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Guest {
    /// Packs the file system of a guest, which the command that `boot` returns then boots.
    pub(super) fn new(
        root: &Path,
        label: &str,
        image: &Image,
        content: &Content<'_>,
        boot: impl FnOnce(&Path) -> std::process::Command,
    ) -> Result<Self, String> {
        let folder = target_folder(root).join("numa");
        let folder = std::path::absolute(&folder).unwrap_or(folder);
        let tools = tools(content.arch, &folder);
        let mut files = Initramfs::default();
        for empty in ["proc", "sys", "dev", "tmp", "run", "root"] {
            files.add_folder(empty);
        }
        files.add("init", content.script.clone().into_bytes());
        files.add_program("bin/busybox", &image.busybox, &tools)?;
        for program in content.programs.iter() {
            files.add_program(&program.place, &program.file, &tools)?;
        }
        for (place, data) in &content.files {
            files.add(place, data.clone());
        }
        let initramfs = folder.join(format!("{label}.cpio"));
        std::fs::write(&initramfs, files.archive()).map_err(|e| format!("{}: {e}", initramfs.display()))?;
        let command = boot(&initramfs);
        Ok(Self { command, initramfs, log: folder.join(format!("{label}.log")) })
    }

    /// Boots the guest and reads its output until it is switched off. It is killed after `limit`.
    pub(super) fn run(mut self, limit: Duration) -> Result<Seen, String> {
        let mut log = File::create(&self.log).map_err(|error| format!("{}: {error}", self.log.display()))?;
        let begin = Instant::now();
        self.command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut running =
            Running(self.command.spawn().map_err(|error| format!("QEMU does not start: {error}"))?);
        let lines = lines_of(running.0.stdout.take().ok_or("QEMU has no output")?);
        let mut seen =
            Seen { report: Report::default(), up: None, total: Duration::ZERO, log: self.log.clone() };
        loop {
            match lines.recv_timeout(limit.saturating_sub(begin.elapsed())) {
                Ok(line) => {
                    writeln!(log, "{}", line.trim_end()).map_err(|error| error.to_string())?;
                    if seen.report.read(&line) == Line::Up {
                        seen.up = Some(begin.elapsed());
                    }
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    seen.report.failed.push(format!("not off after {} s", limit.as_secs()));
                    break;
                }
            }
        }
        drop(running);
        seen.total = begin.elapsed();
        Ok(seen)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        std::fs::remove_file(&self.initramfs).ok(); // the file is large, and is created anew for each run
    }
}

/// Reads lines on a separate thread, so that waiting for a line can time out. Replaces invalid UTF-8.
fn lines_of(output: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
            line.clear();
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a shell script instead of QEMU.
    fn seen(script: &str, limit: Duration) -> Seen {
        let mut command = std::process::Command::new("sh");
        command.arg("-c").arg(script);
        let folder = tempfile::tempdir().unwrap();
        let (initramfs, log) = (folder.path().join("cpio"), folder.path().join("log"));
        std::fs::write(&initramfs, "").unwrap();
        let seen = Guest { command, initramfs: initramfs.clone(), log: log.clone() }.run(limit).unwrap();
        assert!(!initramfs.exists() && log.exists());
        seen
    }

    #[test]
    fn a_guest_that_ends_is_read_to_its_end() {
        let text = "printf 'up\\r\\nok a\\n\\377\\nskipped b: c\\nlog: Linux version 6\\ndone 1 0 1\\n'";
        let Seen { report, up, .. } = seen(text, Duration::from_secs(120));
        assert_eq!((report.verdict(&["b: "]), report.held, report.skipped.len()), (Ok(()), 1, 1));
        assert!(up.is_some());
    }

    #[test]
    fn a_guest_that_hangs_is_turned_off() {
        let Seen { report, up, .. } = seen("echo ok a; exec sleep 1000", Duration::from_millis(200));
        let why = report.verdict(&[]).unwrap_err();
        assert!(why.contains("not off after") && why.contains("did not come to its end"), "{why}");
        assert_eq!(up, None);
    }

    #[test]
    fn a_guest_that_ends_early_is_noticed() {
        let Seen { report, .. } = seen("echo up; echo ok a", Duration::from_secs(120));
        assert_eq!(report.verdict(&[]), Err("it did not come to its end".into()));
    }
}

//! tracefs: where it is mounted, and an instance of our own in it.
//!
//! An instance has its own ring buffers and enabled events, so recording changes nothing for other users of tracing. An
//! instance's name has its recorder's process id and when that process began, so the next recorder recognises what a killed
//! one left. The kernel refuses to remove an instance whose files are open.
//!
//! Related files: `record/mod.rs` records with an instance.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use zonal_machine::input::{self, Limit};

use crate::error::TraceError;

/// How the name of an instance begins.
const PREFIX: &str = "zonal-";

/// Where debugfs has tracefs, on systems that mount it there on demand.
const IN_DEBUGFS: &str = "/sys/kernel/debug/tracing";

/// The longest text in tracefs, and the size of a read.
const TEXT_BYTES_MAX: usize = 1 << 20;
const READ_BYTES: usize = 64 << 10;

/// A mounted tracefs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Tracefs(PathBuf);

impl Tracefs {
    /// Finds the mounted tracefs.
    pub(super) fn find() -> Result<Self, TraceError> {
        let mounts = input::read(Path::new("/proc/self/mountinfo"), Limit::Log);
        let mounts =
            mounts.map_err(|source| TraceError::System { what: "read /proc/self/mountinfo", source })?;
        let mounted = mounted(&String::from_utf8_lossy(&mounts));
        let found = mounted.or_else(|| {
            let path = Path::new(IN_DEBUGFS);
            path.join("instances").exists().then(|| path.to_owned())
        });
        let found = Self(found.ok_or(TraceError::NoTracefs)?);
        let instances = found.instances();
        match fs::read_dir(&instances) {
            Ok(_) => Ok(found),
            Err(source) => Err(failed(instances, source)),
        }
    }

    fn instances(&self) -> PathBuf {
        self.0.join("instances")
    }

    /// Removes the instances that killed recorders left. Returns their number.
    pub(super) fn clean(&self) -> usize {
        let entries = fs::read_dir(self.instances()).into_iter().flatten().flatten();
        let is_left =
            |name: &str| owner(name).is_some_and(|(process, began)| began_at(process) != Some(began));
        let left = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_left));
        // Another recorder may remove it meanwhile, and one in another namespace may still use it.
        left.filter(|entry| fs::remove_dir(entry.path()).is_ok()).count()
    }
}

/// Returns where the first tracefs in a list of mounts is.
fn mounted(mounts: &str) -> Option<PathBuf> {
    let place = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let is_tracefs = after.split(' ').next() == Some("tracefs");
        before.split(' ').nth(4).filter(|_| is_tracefs).map(unescaped)
    };
    mounts.lines().find_map(place)
}

/// Replaces the escapes of spaces, tabs, line breaks and backslashes in a mount list's path.
fn unescaped(path: &str) -> PathBuf {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(path.to_owned(), |path, (escape, letter)| path.replace(escape, letter)).into()
}

/// Returns the process id in an instance's name, and when that process began.
fn owner(name: &str) -> Option<(u32, u64)> {
    let (process, began) = name.strip_prefix(PREFIX)?.split_once('-')?;
    Some((process.parse().ok()?, began.parse().ok()?))
}

/// Returns when a process began, in ticks since the system did; `None` if it does not exist.
fn began_at(process: u32) -> Option<u64> {
    let stat =
        input::read(&Path::new("/proc").join(process.to_string()).join("stat"), Limit::Setting).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The name of the program may contain spaces and parentheses.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Reads a file with large reads. `events/header_page` has its text for the first read only, whatever that returns.
fn read_at_once(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = OpenOptions::new().read(true).open(path)?;
    let mut text = Vec::new();
    while text.len() <= TEXT_BYTES_MAX {
        let done = text.len();
        text.resize(done + READ_BYTES, 0);
        let read = file.read(&mut text[done..])?;
        text.truncate(done + read);
        if read == 0 {
            return Ok(text);
        }
    }
    Err(io::Error::new(ErrorKind::FileTooLarge, "it is larger than 1 MiB, the limit for such a file"))
}

/// Returns the error for a file of tracefs.
pub(super) fn failed(path: PathBuf, source: io::Error) -> TraceError {
    match source.kind() {
        ErrorKind::PermissionDenied => TraceError::NotPermitted { path, source },
        _ => TraceError::Tracefs { path, source },
    }
}

/// An instance of our own, which is removed when it is dropped.
#[derive(Debug)]
pub(super) struct Instance(PathBuf);

impl Instance {
    /// Creates an instance, with tracing off.
    pub(super) fn create(tracefs: &Tracefs) -> Result<Self, TraceError> {
        let process = std::process::id();
        let began = began_at(process).unwrap_or(0);
        let path = tracefs.instances().join(format!("{PREFIX}{process}-{began}"));
        match fs::create_dir(&path) {
            Ok(()) => {}
            Err(source) => return Err(failed(path, source)),
        }
        let made = Self(path);
        made.write("tracing_on", "0")?;
        Ok(made)
    }

    /// Writes a file of the instance.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<(), TraceError> {
        let path = self.0.join(name);
        let written = OpenOptions::new().write(true).open(&path);
        written.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|source| failed(path, source))
    }

    /// Reads a file of the instance.
    pub(super) fn read(&self, name: &str) -> Result<String, TraceError> {
        let path = self.0.join(name);
        match read_at_once(&path) {
            Ok(text) => Ok(String::from_utf8_lossy(&text).into_owned()),
            Err(source) => Err(failed(path, source)),
        }
    }

    /// Whether the instance has a file.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.join(name).exists()
    }

    /// Returns the path of a file, for errors.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Opens the raw pages of a CPU's ring buffer. Reads return immediately.
    pub(super) fn pages(&self, cpu: u32) -> Result<File, TraceError> {
        let path = self.0.join(format!("per_cpu/cpu{cpu}/trace_pipe_raw"));
        let flags = OFlags::NONBLOCK.bits() as i32;
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(&path);
        opened.map_err(|source| failed(path, source))
    }

    /// Returns the events of a CPU that were overwritten or dropped.
    pub(super) fn lost(&self, cpu: u32) -> Result<u64, TraceError> {
        let stats = self.read(&format!("per_cpu/cpu{cpu}/stats"))?;
        let numbers = stats.lines().filter_map(|line| {
            let (name, number) = line.split_once(':')?;
            let is_loss = matches!(name, "overrun" | "dropped events");
            is_loss.then(|| number.trim().parse::<u64>().ok())?
        });
        Ok(numbers.sum())
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // Removal ends tracing too. An error has no other place to be reported; the next recorder tries again.
        let _ = self.write("tracing_on", "0");
        let _ = fs::remove_dir(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_by_their_type() {
        let mounts = "\
29 22 0:26 / /sys/kernel/debug rw,nosuid - debugfs debugfs rw
37 22 0:12 / /sys/kernel\\040odd/tracing rw,nosuid shared:1 - tracefs tracefs rw
";
        assert_eq!(mounted(mounts), Some(PathBuf::from("/sys/kernel odd/tracing")));
        assert_eq!(mounted("1 2 0:1 / /tracefs rw - ext4 tracefs rw\n"), None);
        assert_eq!(mounted("garbage\n\n - tracefs"), None);
    }

    #[test]
    fn names_of_instances_have_their_process() {
        let process = std::process::id();
        let began = began_at(process).unwrap();
        assert_eq!(owner(&format!("zonal-{process}-{began}")), Some((process, began)));
        for name in ["zonal-1", "zonal-x-1", "zonal-1-x", "other-1-1", "zonal-1-1-1"] {
            assert_eq!(owner(name), None, "{name}");
        }
        assert_eq!(began_at(u32::MAX), None);
    }
}

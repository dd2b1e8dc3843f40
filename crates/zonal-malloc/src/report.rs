//! The report at exit: what is placed where. The numbers are measured when the program calls `exit` or returns from
//! `main`, before its memory is released.

use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::FromRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::{fs, panic, process};

use zonal_linux::{Backing, Pool, Residency};

use crate::arenas;
use crate::mimalloc::{self, MiOption};
use crate::options::Destination;

/// An opened destination.
#[derive(Debug)]
pub(crate) enum Output {
    /// A copy of the descriptor, because programs close their own before this library's function runs, and the file that
    /// it refers to.
    Copy(File, (u64, u64)),
    File(PathBuf),
}

/// What was known when the pool was built.
#[derive(Debug)]
struct Facts {
    output: Output,
    /// The process that built the pool.
    process: u32,
    pool_bytes: u64,
    placement: String,
    /// Start and end of each pool mapping.
    mappings: Vec<Range<usize>>,
    warnings: Vec<String>,
}

static FACTS: OnceLock<Facts> = OnceLock::new();

/// Bytes that must be available for a report to be written.
const MEMORY: usize = 1 << 20;

/// A number of bytes, printed in MiB.
struct MiB(u64);

impl fmt::Display for MiB {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} MiB", self.0 as f64 / f64::from(1 << 20))
    }
}

/// Checks at start-up that the destination can be written.
///
/// # Errors
/// Names the destination and the reason.
pub(crate) fn open(destination: &Destination) -> Result<Output, String> {
    match destination {
        Destination::Stderr => copy_of_stderr().map_err(|error| {
            format!("ZONAL_MALLOC_REPORT is stderr, which cannot be written: {error}; right is a file")
        }),
        Destination::File(file) => match append(file, "") {
            Ok(()) => Ok(Output::File(file.clone())),
            Err(error) => Err(format!(
                "ZONAL_MALLOC_REPORT is {file:?}, which cannot be written: {error}; right is stderr or another file"
            )),
        },
    }
}

/// Copies the descriptor to a number that programs rarely use.
fn copy_of_stderr() -> io::Result<Output> {
    let copy = [500, 3].into_iter().find_map(|least| {
        // SAFETY: the call only makes a new descriptor.
        let copy = unsafe { libc::fcntl(libc::STDERR_FILENO, libc::F_DUPFD_CLOEXEC, least) };
        (copy >= 0).then_some(copy)
    });
    let copy = copy.ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the descriptor was made just now, and has no other owner.
    let file = unsafe { File::from_raw_fd(copy) };
    let identity = identity(&file)?;
    Ok(Output::Copy(file, identity))
}

fn identity(file: &File) -> io::Result<(u64, u64)> {
    let found = file.metadata()?;
    Ok((found.dev(), found.ino()))
}

/// Arranges for the report to be written when the process exits.
///
/// # Errors
/// The C library has no memory for a function that runs at exit.
pub(crate) fn at_exit(pool: &Pool, output: Output) -> Result<(), String> {
    let mappings = pool.ranges().filter_map(|zone| {
        let start = pool.ptr_of(zone.frames.start)?.as_ptr().addr();
        Some(start..start + zone.frames.count.get() as usize * pool.page_bytes())
    });
    FACTS.get_or_init(|| Facts {
        output,
        process: process::id(),
        pool_bytes: pool.frames().get() * pool.page_bytes() as u64,
        placement: pool.placement().to_string(),
        mappings: mappings.collect(),
        warnings: pool.warnings().iter().map(ToString::to_string).collect(),
    });
    // SAFETY: the function is part of this library, which is never unloaded.
    let error = unsafe { libc::atexit(write_at_exit) };
    if error == 0 {
        Ok(())
    } else {
        Err("ZONAL_MALLOC_REPORT: the C library refused a function at exit".into())
    }
}

extern "C" fn write_at_exit() {
    // Children made by `fork` write no report.
    let Some(facts) = FACTS.get().filter(|_| !mimalloc::is_child()) else { return };
    // No failure of the report may end the program, which is exiting with a status of its own. The report needs memory
    // although the pool may be full.
    mimalloc::set_option(MiOption::DisallowOsAlloc, 0);
    if Vec::<u8>::new().try_reserve(MEMORY).is_err() {
        return;
    }
    let _ = panic::catch_unwind(|| write(&facts.output, &facts.text()));
}

/// Writes that there is no pool, because no size is set and too little memory is known to be available and allowed.
pub(crate) fn write_without_pool(output: &Output) {
    let (program, process) = (program(), process::id());
    // The program runs as well without the line.
    let _ = write(
        output,
        &format!(
            "zonal-malloc: {program}, process {process}: no pool, because less than 256 MiB are known to be available and allowed\n"
        ),
    );
}

/// Writes without an effect on the program other than the output.
fn write(output: &Output, text: &str) -> io::Result<()> {
    match output {
        // The program may have closed the copy, and the number may be another file.
        Output::Copy(file, known) if identity(file).is_ok_and(|found| found == *known) => {
            mimalloc::write_quietly(file, text)
        }
        Output::Copy(..) => Ok(()),
        Output::File(file) => append(file, text),
    }
}

/// Appends to a regular file with one write, so that reports of several processes are not mixed. Does not follow a link in
/// place of the file, and does not wait for the reader of a FIFO.
fn append(file: &Path, text: &str) -> io::Result<()> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().create(true).append(true).custom_flags(flags).open(file)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    mimalloc::write_quietly(&file, text)
}

/// Returns the name of the program, without bytes that a terminal would obey.
fn program() -> String {
    let name = fs::read("/proc/self/comm").unwrap_or_default();
    String::from_utf8_lossy(name.trim_ascii_end()).replace(char::is_control, "?")
}

impl Facts {
    fn text(&self) -> String {
        let (program, process, version) = (program(), self.process, mimalloc::version());
        let mut text = format!("zonal-malloc: {program}, process {process}, mimalloc {version}\n");
        let in_arenas: usize = arenas::all().iter().map(|arena| arena.bytes).sum();
        let pool = MiB(self.pool_bytes);
        let _ = writeln!(text, "  pool: {pool}, {}; arenas: {}", self.placement, MiB(in_arenas as u64));
        let resident = self.nodes(&mut text);
        let huge = Backing::of(&self.mappings);
        let _ = match &huge {
            Ok(huge) => writeln!(
                text,
                "  huge pages: transparent {}, explicit {}; swapped out: {}",
                MiB(huge.transparent_huge),
                MiB(huge.explicit_huge),
                MiB(huge.swapped)
            ),
            Err(error) => writeln!(text, "  huge pages: unknown: {error}"),
        };
        if let (Some(resident), Some(anonymous), Ok(huge)) = (resident, anonymous_bytes(), huge) {
            // Explicit huge pages are not counted as anonymous memory.
            let outside = anonymous.saturating_sub(resident.saturating_sub(huge.explicit_huge));
            let _ = writeln!(text, "  outside the pool: {} of anonymous memory", MiB(outside));
        }
        for warning in &self.warnings {
            let _ = writeln!(text, "  warning: {warning}");
        }
        text
    }

    /// Writes a line for each node, and returns the resident bytes of all arenas if the kernel reports them.
    fn nodes(&self, text: &mut String) -> Option<u64> {
        let mut nodes: Vec<u16> = arenas::all().iter().map(|arena| arena.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let mut resident = Some(0);
        for node in nodes {
            let (mut bytes, mut used) = (0, 0);
            let mut pages: io::Result<Residency> = Ok(Residency::default());
            for arena in arenas::all().iter().filter(|arena| arena.node == node) {
                bytes += arena.bytes;
                used += arena.used_bytes();
                pages = pages.and_then(|mut sum| {
                    sum.add(&Residency::of(arena.start..arena.start + arena.bytes)?);
                    Ok(sum)
                });
            }
            let _ = write!(
                text,
                "  node {node}: arenas {}, used or kept {}; ",
                MiB(bytes as u64),
                MiB(used as u64)
            );
            match pages {
                Ok(pages) => {
                    let _ = writeln!(text, "{}", Places(&pages));
                    resident = resident.map(|sum: u64| sum + pages.resident());
                }
                Err(error) => {
                    let _ = writeln!(text, "pages: unknown: {error}");
                    resident = None;
                }
            }
        }
        resident
    }
}

/// Returns the resident anonymous memory of the process in bytes, from `/proc/self/status`.
fn anonymous_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

/// Prints where pages are.
struct Places<'a>(&'a Residency);

impl fmt::Display for Places<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("pages:")?;
        for (node, bytes) in &self.0.bytes_on {
            write!(f, " {} on node {node},", MiB(*bytes))?;
        }
        write!(f, " {} not populated", MiB(self.0.absent))?;
        if self.0.unknown > 0 {
            write!(f, ", {} unknown", MiB(self.0.unknown))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use zonal_linux::NodeId;

    use super::*;

    #[test]
    fn places_of_pages_are_printed_by_node() {
        let [zero, one] = [0, 1].map(|id| NodeId::new(id).unwrap());
        let bytes_on = [(zero, 4 << 20), (one, 1 << 19)].into();
        let sum = Residency { bytes_on, absent: 3 << 20, unknown: 0 };
        let expected = "pages: 4.0 MiB on node 0, 0.5 MiB on node 1, 3.0 MiB not populated";
        assert_eq!(Places(&sum).to_string(), expected);
        let odd = Residency { unknown: 4 << 20, ..Residency::default() };
        assert_eq!(Places(&odd).to_string(), "pages: 0.0 MiB not populated, 4.0 MiB unknown");
    }

    #[test]
    fn files_that_cannot_be_written_are_named() {
        let error = open(&Destination::File("/dev/null/report".into())).unwrap_err();
        assert!(
            error.starts_with("ZONAL_MALLOC_REPORT is \"/dev/null/report\", which cannot be written: "),
            "{error}"
        );
    }
}

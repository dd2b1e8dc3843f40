//! The environment variables `ZONAL_MALLOC_*`. A wrong name or value is an error with the right ones.

use std::ffi::OsString;
use std::path::PathBuf;
use std::{fs, process};

use zonal_linux::{HugePages, NodeId};

const PREFIX: &str = "ZONAL_MALLOC_";
/// The process that built a pool, set by this library for programs that this process starts.
pub(crate) const OWNER: &str = "ZONAL_MALLOC_OWNER";
/// The variables without their prefix, and their right values.
const VARIABLES: [(&str, &str); 10] = [
    ("SIZE", "bytes, optionally with K, M, G or T, such as 8G"),
    ("NODES", "numbers of nodes, such as 0,1 or 0-3"),
    ("HUGE_PAGES", "transparent, never, 2m or 1g"),
    ("PREFAULT", "yes or no"),
    ("WHEN_FULL", "kernel or fail"),
    ("PURGE_THREAD", "yes or no"),
    ("REPORT", "stderr or the name of a file"),
    ("CHILDREN", "yes or no"),
    ("FAKE_NODES", "a number of emulated nodes, such as 2"),
    ("OWNER", "set by the library itself"),
];

/// What happens when the pool is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum WhenFull {
    /// mimalloc continues with memory of the kernel, on any node.
    #[default]
    Kernel,
    /// Allocations fail.
    Fail,
}

/// Where the report at exit is written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Destination {
    Stderr,
    File(PathBuf),
}

/// The options. `None` is the default, which is not required of the machine: a variable that is set is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Options {
    pub(crate) size: Option<u64>,
    pub(crate) nodes: Option<Vec<NodeId>>,
    pub(crate) huge_pages: Option<HugePages>,
    pub(crate) is_prefaulted: bool,
    pub(crate) when_full: WhenFull,
    /// Whether free memory is only returned while the program allocates.
    pub(crate) has_no_purge_thread: bool,
    pub(crate) report: Option<Destination>,
    /// Whether programs that this one starts build pools of their own.
    pub(crate) with_children: bool,
    pub(crate) fake_nodes: Option<usize>,
    /// The process that built a pool first, if any, as [`this_process`] describes it.
    pub(crate) owner: Option<String>,
}

impl Options {
    /// Reads the variables of the environment.
    ///
    /// # Errors
    /// Names the variable and its value, and what would be right.
    pub(crate) fn read(variables: impl Iterator<Item = (OsString, OsString)>) -> Result<Self, String> {
        let mut options = Self::default();
        for (name, value) in variables {
            let Some(name) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
            let Some((_, right)) = VARIABLES.iter().find(|(known, _)| *known == name) else {
                let known: Vec<_> =
                    VARIABLES.iter().map(|(name, _)| *name).filter(|n| *n != "OWNER").collect();
                return Err(format!(
                    "{PREFIX}{} is not a variable of this library; the variables are {PREFIX}{}",
                    name.escape_debug(),
                    known.join(&format!(", {PREFIX}"))
                ));
            };
            let wrong = || format!("{PREFIX}{name} is {value:?}; right is {right}");
            let text = value.to_str().ok_or_else(wrong)?;
            options.set(name, text).ok_or_else(wrong)?;
        }
        Ok(options)
    }

    /// Sets the option of a variable, or returns `None` if the value is wrong.
    fn set(&mut self, name: &str, value: &str) -> Option<()> {
        match name {
            "SIZE" => self.size = Some(size(value)?),
            "NODES" => self.nodes = Some(nodes(value)?),
            "HUGE_PAGES" => {
                self.huge_pages = Some(match value {
                    "transparent" => HugePages::Transparent,
                    "never" => HugePages::Never,
                    "2m" => HugePages::Explicit,
                    "1g" => HugePages::Explicit1G,
                    _ => return None,
                });
            }
            "PREFAULT" => self.is_prefaulted = yes(value)?,
            "WHEN_FULL" => {
                self.when_full = match value {
                    "kernel" => WhenFull::Kernel,
                    "fail" => WhenFull::Fail,
                    _ => return None,
                };
            }
            "REPORT" => {
                self.report = Some(match value {
                    "" => return None,
                    "stderr" => Destination::Stderr,
                    file => Destination::File(std::path::absolute(file).ok()?),
                });
            }
            "PURGE_THREAD" => self.has_no_purge_thread = !yes(value)?,
            "CHILDREN" => self.with_children = yes(value)?,
            "FAKE_NODES" => self.fake_nodes = Some(value.parse().ok().filter(|&count| count > 0)?),
            _ => self.owner = Some(value.into()),
        }
        Some(())
    }
}

/// Describes this process, also after `exec`: its number and the time at which it began, because a child in another
/// namespace may have the same number. Source: `proc_pid_stat(5)`, field 22.
pub(crate) fn this_process() -> String {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program, field 2, is in parentheses and may contain any character.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    format!("{}:{}", process::id(), fields.split_whitespace().nth(19).unwrap_or_default())
}

fn yes(value: &str) -> Option<bool> {
    match value {
        "yes" => Some(true),
        "no" => Some(false),
        _ => None,
    }
}

/// Returns the bytes of, for example, `8G`.
fn size(value: &str) -> Option<u64> {
    let digits = value.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit: u64 = match &value[digits.len()..] {
        "" => 1,
        "K" | "k" | "KiB" => 1 << 10,
        "M" | "m" | "MiB" => 1 << 20,
        "G" | "g" | "GiB" => 1 << 30,
        "T" | "t" | "TiB" => 1 << 40,
        _ => return None,
    };
    // `parse` would accept a sign.
    let number: u64 =
        digits.parse().ok().filter(|_| digits.starts_with(|digit: char| digit.is_ascii_digit()))?;
    number.checked_mul(unit).filter(|&bytes| bytes > 0)
}

/// Returns the nodes of, for example, `0,2-3`.
fn nodes(value: &str) -> Option<Vec<NodeId>> {
    let ids = zonal_model::ids::parse(value, 1 << 16)?;
    ids.into_iter().map(|id| NodeId::new(id as u16)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Options, String> {
        Options::read(variables.iter().map(|&(name, value)| (name.into(), value.into())))
    }

    #[test]
    fn every_variable_sets_its_option() {
        let options = read(&[
            ("HOME", "ignored"),
            ("ZONAL_MALLOC_SIZE", "3G"),
            ("ZONAL_MALLOC_NODES", "0,2-3,2"),
            ("ZONAL_MALLOC_HUGE_PAGES", "1g"),
            ("ZONAL_MALLOC_PREFAULT", "yes"),
            ("ZONAL_MALLOC_WHEN_FULL", "fail"),
            ("ZONAL_MALLOC_REPORT", "/r"),
            ("ZONAL_MALLOC_CHILDREN", "yes"),
            ("ZONAL_MALLOC_FAKE_NODES", "4"),
            ("ZONAL_MALLOC_PURGE_THREAD", "no"),
            ("ZONAL_MALLOC_OWNER", "17:4"),
        ]);
        let expected = Options {
            size: Some(3 << 30),
            nodes: Some([0, 2, 3].map(|node| NodeId::new(node).unwrap()).to_vec()),
            huge_pages: Some(HugePages::Explicit1G),
            is_prefaulted: true,
            when_full: WhenFull::Fail,
            report: Some(Destination::File("/r".into())),
            with_children: true,
            fake_nodes: Some(4),
            has_no_purge_thread: true,
            owner: Some("17:4".into()),
        };
        assert_eq!(options, Ok(expected));
        assert_eq!(read(&[]), Ok(Options::default()));
    }

    #[test]
    fn sizes_have_units() {
        let found = ["4096", "2K", "3m", "1GiB", "1T"].map(size);
        assert_eq!(found, [4096, 2 << 10, 3 << 20, 1 << 30, 1 << 40].map(Some));
        for wrong in ["", "0", "G", "-1G", "+1G", "1.5G", "8GB", "8 G", "99999999999T"] {
            assert_eq!(size(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn wrong_values_are_named_with_the_right_ones() {
        for (name, value) in [
            ("SIZE", "8GB"),
            ("NODES", "0,x"),
            ("NODES", "3-1"),
            ("HUGE_PAGES", "4m"),
            ("PREFAULT", "1"),
            ("WHEN_FULL", "wait"),
            ("REPORT", ""),
            ("CHILDREN", "maybe"),
            ("PURGE_THREAD", ""),
            ("FAKE_NODES", "0"),
        ] {
            let error = read(&[(&format!("ZONAL_MALLOC_{name}"), value)]).unwrap_err();
            let right = VARIABLES.iter().find(|(known, _)| *known == name).unwrap().1;
            assert_eq!(error, format!("ZONAL_MALLOC_{name} is {value:?}; right is {right}"));
        }
        let unknown = read(&[("ZONAL_MALLOC_SZIE", "8G")]).unwrap_err();
        assert!(unknown.starts_with("ZONAL_MALLOC_SZIE is not a variable"), "{unknown}");
        assert!(unknown.contains(" ZONAL_MALLOC_SIZE, ") && !unknown.contains("OWNER"), "{unknown}");
    }
}

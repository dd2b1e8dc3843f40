//! What a trace says about itself: a header before the events and a trailer after them. Both are JSON documents in the
//! file.
//!
//! Related files: `file/` writes and reads them, and `record/` and `import.rs` fill them.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use zonal::units::{CpuId, Moment};
use zonal_machine::{MachineError, MachineModel};

use crate::event::{Gfp, Kind, Tid};

/// Threads that the kernel's largest `pid_max` allows.
const THREADS_MAX: usize = 1 << 22;
/// The most CPUs of a trace.
pub(crate) const CPUS_MAX: usize = 1 << 16;
const WORDS_MAX: usize = 1 << 20;
/// A thread for each CPU, and one more.
const RECORDERS_MAX: usize = CPUS_MAX + 1;
/// Tracepoints, their fields, and names of flags.
const NAMES_MAX: usize = 1 << 10;

/// Where a trace came from.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// Recorded by this crate.
    Tracefs,
    /// Imported from a file of perf.
    PerfData,
}

/// What is known before the first event.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
#[serde(rename_all = "snake_case")]
pub struct Header {
    /// Where the trace came from.
    pub origin: Origin,
    /// The program and version that wrote the file.
    pub writer: String,
    /// The kernel's release, if known.
    pub kernel: Option<String>,
    /// The text of a machine file, if the machine is known.
    pub machine: Option<String>,
    /// The command that was run, if there was one.
    #[serde(deserialize_with = "list::<_, _, WORDS_MAX>")]
    pub command: Vec<String>,
    /// The clock of all moments, by the kernel's name.
    pub clock: String,
    /// The start by that clock, in nanoseconds.
    pub started_ns: u64,
    /// The start in nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// The CPUs whose events were recorded, ascending.
    #[serde(deserialize_with = "list::<_, _, CPUS_MAX>")]
    pub cpus: Vec<u32>,
    /// The size of each CPU's ring buffer, in KiB; 0 if unknown.
    pub buffer_kib: u64,
    /// The threads of the recorder, whose own requests are in the trace.
    #[serde(deserialize_with = "list::<_, _, RECORDERS_MAX>")]
    pub recorder: Vec<i32>,
    /// The names of threads at the start.
    #[serde(deserialize_with = "names")]
    pub names: BTreeMap<i32, String>,
    /// Names of request flags with their bits, in the order in which the kernel tries them.
    #[serde(deserialize_with = "list::<_, _, NAMES_MAX>")]
    pub gfp_names: Vec<(u64, String)>,
    /// How the kernel describes each recorded tracepoint.
    #[serde(deserialize_with = "list::<_, _, NAMES_MAX>")]
    pub formats: Vec<FormatText>,
    /// Tracepoints that the kernel does not have.
    #[serde(deserialize_with = "list::<_, _, NAMES_MAX>")]
    pub absent: Vec<String>,
    /// Texts of the kernel at the start.
    pub before: KernelTexts,
}

/// The kernel's description of a tracepoint.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct FormatText {
    /// The tracepoint's name.
    pub name: String,
    /// The text of its `format` file.
    pub text: String,
    /// Fields whose values the trace does not contain.
    #[serde(deserialize_with = "list::<_, _, NAMES_MAX>")]
    pub left_out: Vec<String>,
}

/// Files of `/proc` at one moment; `None` for those that could not be read.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
pub struct KernelTexts {
    /// `/proc/zoneinfo`.
    pub zoneinfo: Option<String>,
    /// `/proc/buddyinfo`.
    pub buddyinfo: Option<String>,
    /// `/proc/vmstat`.
    pub vmstat: Option<String>,
}

/// What is known after the last event.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
#[serde(rename_all = "snake_case")]
pub struct Trailer {
    /// The end by the trace's clock, in nanoseconds.
    pub ended_ns: u64,
    /// Each CPU's events, in the order of [`Header::cpus`].
    #[serde(deserialize_with = "list::<_, _, CPUS_MAX>")]
    pub cpus: Vec<CpuTotals>,
    /// Event counts by kind, in the order of [`Kind::ALL`].
    pub kinds: [u64; Kind::COUNT],
    /// Kernel records that were malformed or no event of ours.
    pub skipped: u64,
    /// The exit code of the command, if one ran to its end.
    pub command_status: Option<i32>,
    /// Texts of the kernel at the end.
    pub after: KernelTexts,
}

/// The totals of a CPU.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
pub struct CpuTotals {
    /// The CPU.
    pub cpu: u32,
    /// Its events in the trace.
    pub events: u64,
    /// Its events that the kernel overwrote or dropped before they were read.
    pub lost: u64,
}

impl Header {
    /// Returns the machine, if the trace describes it.
    ///
    /// # Errors
    /// The errors of [`MachineModel::from_json`].
    pub fn machine(&self, origin: &str) -> Result<Option<MachineModel>, MachineError> {
        self.machine.as_ref().map(|text| MachineModel::from_json(text, origin)).transpose()
    }

    /// Returns the start.
    #[must_use]
    pub const fn started(&self) -> Moment {
        Moment::from_ns(self.started_ns)
    }

    /// Whether a thread belongs to the recorder.
    #[must_use]
    pub fn is_recorder(&self, thread: Tid) -> bool {
        self.recorder.contains(&thread.0)
    }

    /// Returns the names of a request's flags, joined by `|`, as the kernel prints them. Bits without a name are one
    /// hexadecimal number.
    #[must_use]
    pub fn gfp_text(&self, gfp: Gfp) -> String {
        let (mut rest, mut parts) = (gfp.0, Vec::new());
        for (bits, name) in &self.gfp_names {
            if *bits != 0 && rest & bits == *bits {
                parts.push(name.clone());
                rest &= !bits;
            }
        }
        if rest != 0 || parts.is_empty() {
            parts.push(format!("{rest:#x}"));
        }
        parts.join("|")
    }

    /// Returns the place of a CPU in [`Header::cpus`].
    #[must_use]
    pub fn place(&self, cpu: CpuId) -> Option<usize> {
        self.cpus.binary_search(&cpu.get()).ok()
    }
}

impl Trailer {
    /// Returns the number of events.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.kinds.iter().fold(0, |sum, events| sum.saturating_add(*events))
    }

    /// Returns the number of lost events.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.cpus.iter().fold(0, |sum, cpu| sum.saturating_add(cpu.lost))
    }
}

/// Reads a list that has at most `MAX` entries. A packed header of a few KiB could otherwise take gigabytes.
fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>, const MAX: usize>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    struct List<T, const MAX: usize>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for List<T, MAX> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {MAX} entries")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Vec<T>, A::Error> {
            let mut list = Vec::new();
            while let Some(entry) = entries.next_element()? {
                if list.len() == MAX {
                    return Err(A::Error::custom(format_args!("a list has more than {MAX} entries")));
                }
                list.push(entry);
            }
            Ok(list)
        }
    }

    from.deserialize_seq(List::<T, MAX>(PhantomData))
}

/// Reads the names of at most [`THREADS_MAX`] threads.
fn names<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<i32, String>, D::Error> {
    struct Names;

    impl<'de> Visitor<'de> for Names {
        type Value = BTreeMap<i32, String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "names of at most {THREADS_MAX} threads")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
            let mut names = BTreeMap::new();
            while let Some((id, name)) = entries.next_entry()? {
                if names.len() == THREADS_MAX {
                    let problem = format_args!("more than {THREADS_MAX} threads have names");
                    return Err(A::Error::custom(problem));
                }
                names.insert(id, name);
            }
            Ok(names)
        }
    }

    from.deserialize_map(Names)
}

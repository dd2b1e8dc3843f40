//! What a recording needs to know about the system, and what its header says about it.
//!
//! Related files: `record/mod.rs` calls this before the first event.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use tracepoint_decode::PerfEventFormat;
use zonal_machine::input::{self, Limit};
use zonal_machine::{capture_live, ids};

use super::reader::now;
use super::tracefs::Instance;
use super::{RecordOptions, default_buffer_kib};
use crate::error::TraceError;
use crate::event::Kind;
use crate::flags::flags;
use crate::header::{FormatText, Header, KernelTexts, Origin};
use crate::ring::PageLayout;
use crate::tracepoint::{Endian, Layout, Layouts, TRACEPOINTS, Tracepoint};

/// The clock of instances. It is that of `CLOCK_MONOTONIC`, so a reader knows which events must have arrived.
const CLOCK: &str = "mono";

/// An instance that is ready to record.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) cpus: Vec<u32>,
    pub(super) page: PageLayout,
    pub(super) layouts: Layouts,
    tracepoints: Vec<&'static Tracepoint>,
    formats: Vec<FormatText>,
    gfp_names: Vec<(u64, String)>,
    absent: Vec<String>,
    buffer_kib: u64,
}

impl Prepared {
    /// Sets an instance up and reads how the kernel lays out its events.
    pub(super) fn new(instance: &Instance, options: &RecordOptions<'_>) -> Result<Self, TraceError> {
        let cpus = online_cpus()?;
        let buffer_kib =
            options.buffer_kib.unwrap_or_else(|| default_buffer_kib(memory_kib(), cpus.len() as u64));
        instance.write("trace_clock", CLOCK)?;
        instance.write("buffer_size_kb", &buffer_kib.to_string())?;
        let origin = instance.path("events/header_page").display().to_string();
        let problem =
            "the kernel describes its pages in an unknown way; fields `commit` and `data` are needed";
        let page = PageLayout::parse(&instance.read("events/header_page")?)
            .ok_or_else(|| TraceError::Format { origin, problem: problem.to_owned() })?;
        let mut prepared = Self {
            cpus,
            page,
            layouts: Layouts::default(),
            tracepoints: Vec::new(),
            formats: Vec::new(),
            gfp_names: Vec::new(),
            absent: Vec::new(),
            buffer_kib,
        };
        TRACEPOINTS.iter().try_for_each(|tracepoint| prepared.add(instance, tracepoint))?;
        Ok(prepared)
    }

    /// Reads the format of a tracepoint.
    fn add(&mut self, instance: &Instance, tracepoint: &'static Tracepoint) -> Result<(), TraceError> {
        let name = format!("events/{}/{}/format", tracepoint.group, tracepoint.name);
        let wrong = |problem: String| TraceError::Format {
            origin: instance.path(&name).display().to_string(),
            problem,
        };
        if !instance.has(&name) {
            self.absent.push(tracepoint.name.to_owned());
            let problem = "this kernel lacks the tracepoint, which is needed";
            return if tracepoint.is_required() { Err(wrong(problem.to_owned())) } else { Ok(()) };
        }
        let text = instance.read(&name)?;
        let described = PerfEventFormat::parse(cfg!(target_pointer_width = "64"), tracepoint.group, &text);
        let described = described
            .ok_or_else(|| wrong("the file has no `name` or no `ID`; both are needed".to_owned()))?;
        let layout = Layout::new(tracepoint, &described, Endian::NATIVE).map_err(&wrong)?;
        self.formats.push(layout.described(&described, &text));
        if tracepoint.name == Kind::Alloc.name() {
            self.gfp_names = flags(described.print_fmt());
        }
        self.layouts.add(described.id(), layout).map_err(&wrong)?;
        self.tracepoints.push(tracepoint);
        Ok(())
    }

    /// Enables the events.
    pub(super) fn enable(&self, instance: &Instance) -> Result<(), TraceError> {
        let name =
            |tracepoint: &Tracepoint| format!("events/{}/{}/enable", tracepoint.group, tracepoint.name);
        self.tracepoints.iter().try_for_each(|tracepoint| instance.write(&name(tracepoint), "1"))
    }

    /// Returns the header of a recording that starts now. `recorder` has the threads of the readers.
    pub(super) fn header(&self, options: &RecordOptions<'_>, mut recorder: Vec<i32>) -> Header {
        recorder.push(rustix::thread::gettid().as_raw_nonzero().get());
        recorder.sort_unstable();
        let text = |name: &str| input::read_text(Path::new(name), Limit::Setting).ok();
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Header {
            origin: Origin::Tracefs,
            writer: format!("zonal {}", env!("CARGO_PKG_VERSION")),
            kernel: text("/proc/sys/kernel/osrelease").map(|release| release.trim().to_owned()),
            machine: capture_live().ok().map(|capture| capture.model.to_json()),
            command: options.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            clock: CLOCK.to_owned(),
            names: names(),
            before: texts(),
            started_ns: now().ns(),
            started_unix_ns: since_1970.as_nanos() as u64,
            cpus: self.cpus.clone(),
            buffer_kib: self.buffer_kib,
            recorder,
            gfp_names: self.gfp_names.clone(),
            formats: self.formats.clone(),
            absent: self.absent.clone(),
        }
    }
}

/// Returns the CPUs that are online.
pub(super) fn online_cpus() -> Result<Vec<u32>, TraceError> {
    let what = "read the list of CPUs in /sys/devices/system/cpu/online";
    let wrong = |source| TraceError::System { what, source };
    let text = input::read_text(Path::new("/sys/devices/system/cpu/online"), Limit::List).map_err(wrong)?;
    let list = ids::parse(text.trim(), u64::from(u16::MAX));
    let list = list.ok_or_else(|| wrong(std::io::Error::other("it is not a list of ids, as in 0-3,8")))?;
    Ok(list.into_iter().map(|id| id as u32).collect())
}

/// Returns the memory in KiB; zero if it is unknown.
fn memory_kib() -> u64 {
    let text = input::read_text(Path::new("/proc/meminfo"), Limit::Log).unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    total.and_then(|total| total.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

/// Returns the texts of the kernel now.
pub(super) fn texts() -> KernelTexts {
    let text = |name: &str, limit| {
        let bytes = input::read(Path::new(name), limit).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    };
    KernelTexts {
        zoneinfo: text("/proc/zoneinfo", Limit::ZoneInfo),
        buddyinfo: text("/proc/buddyinfo", Limit::Log),
        vmstat: text("/proc/vmstat", Limit::Log),
    }
}

/// Returns the names of all threads.
fn names() -> BTreeMap<i32, String> {
    let entries = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
    let number = |entry: &fs::DirEntry| entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
    let mut names = BTreeMap::new();
    for process in entries(Path::new("/proc")).filter(|entry| number(entry).is_some()) {
        for thread in entries(&process.path().join("task")) {
            let name = input::read(&thread.path().join("comm"), Limit::Setting);
            if let (Some(id), Ok(name)) = (number(&thread), name) {
                names.insert(id, String::from_utf8_lossy(&name).trim_end().to_owned());
            }
        }
    }
    names
}

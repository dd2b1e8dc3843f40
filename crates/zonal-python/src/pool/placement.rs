//! Where the kernel has put memory.

use std::collections::BTreeMap;
use std::ops::Range;

use pyo3::prelude::*;
use zonal_linux::{NodeResidency, PagePlace, PageRun, Residency};

use crate::table::{Column, Table};

/// Where the kernel has put the pages of a buffer, or of a pool's part that belongs to one node, in bytes.
///
/// Invariant: if `known`, the sum of `bytes_on`, `absent` and `unknown` is the number of bytes in whole pages.
#[pyclass(frozen, get_all, module = "zonal")]
#[derive(Default)]
pub(crate) struct Placement {
    /// The node that the memory belongs to.
    node: u16,
    /// Whether the kernel said where the pages are.
    known: bool,
    /// Why it did not.
    why: Option<String>,
    /// Bytes in memory on each node.
    bytes_on: BTreeMap<u16, u64>,
    /// Bytes that no access has put into memory yet.
    absent: u64,
    /// Bytes about which the kernel said something else.
    unknown: u64,
}

impl Placement {
    /// Asks the kernel about a range of addresses.
    pub(crate) fn of(node: u16, range: Range<usize>) -> Self {
        match Residency::of(range) {
            Ok(pages) => Self::found(node, &pages),
            Err(why) => Self::failed(node, &why),
        }
    }

    /// Returns where a node's part of a pool is placed.
    pub(crate) fn of_node(found: &NodeResidency) -> Self {
        Self::found(found.node.get(), &found.pages)
    }

    /// Returns a placement that is not known.
    pub(crate) fn failed(node: u16, why: &std::io::Error) -> Self {
        let why = format!("the kernel denies move_pages: {why}; in a container, add the capability SYS_NICE");
        Self { node, why: Some(why), ..Self::default() }
    }

    fn found(node: u16, pages: &Residency) -> Self {
        let bytes_on = pages.bytes_on.iter().map(|(node, bytes)| (node.get(), *bytes)).collect();
        Self { node, known: true, why: None, bytes_on, absent: pages.absent, unknown: pages.unknown }
    }

    /// Returns a warning if the placement is not known.
    pub(crate) fn problem(&self) -> Option<String> {
        self.why.as_ref().map(|why| format!("the placement of pages is not known: {why}"))
    }
}

#[pymethods]
impl Placement {
    /// Returns the bytes in memory.
    #[getter]
    fn resident(&self) -> u64 {
        self.bytes_on.values().sum()
    }

    /// Returns the bytes in memory on other nodes, or `None` if that is not known. With emulated nodes it says nothing.
    #[getter]
    fn misplaced(&self) -> Option<u64> {
        let here = self.bytes_on.get(&self.node).copied().unwrap_or(0);
        self.known.then(|| self.resident() - here)
    }

    fn __repr__(&self) -> String {
        let Self { node, bytes_on, absent, unknown, .. } = self;
        match &self.why {
            Some(why) => format!("Placement(node={node}, unknown: {why})"),
            None => {
                format!("Placement(node={node}, bytes_on={bytes_on:?}, absent={absent}, unknown={unknown})")
            }
        }
    }
}

/// Returns the table of [`PageRun`]s within `range`, with a row for all of it and the state "unknown" if the kernel
/// denies the question.
pub(crate) fn runs(range: Range<usize>) -> (Table, Result<(), std::io::Error>) {
    let start = range.start;
    let (runs, asked) = match PageRun::of(range.clone()) {
        Ok(runs) => (runs, Ok(())),
        Err(why) => (vec![PageRun { range, place: PagePlace::Unknown }], Err(why)),
    };
    let state = |run: &PageRun| match run.place {
        PagePlace::OnNode(_) => "resident",
        PagePlace::Absent => "absent",
        PagePlace::Unknown => "unknown",
    };
    let node = |run: &PageRun| match run.place {
        PagePlace::OnNode(node) => Some(u64::from(node.get())),
        PagePlace::Absent | PagePlace::Unknown => None,
    };
    let table = Table::new(vec![
        Column::new("offset", runs.iter().map(|run| (run.range.start - start) as u64)),
        Column::new("bytes", runs.iter().map(|run| run.range.len() as u64)),
        Column::new("state", runs.iter().map(state)),
        Column::new("node", runs.iter().map(node)),
    ]);
    (table, asked)
}

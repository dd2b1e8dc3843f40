//! `zonal.machine`: descriptions of machines.
//!
//! The functions read machines and choose rules; `zonal-machine` does everything else. Related files:
//! `machine/report.rs` has the report on a machine.

mod report;

use std::collections::BTreeMap;
use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use zonal::rules::fallback_order::NodeLoad;
use zonal::settings::NamedRule;
use zonal_machine::output::{self, Kind, Replace};
use zonal_machine::{
    Capture, KernelVersion, MachineModel, NodeModel, PRESETS, Presence, Rules, capture, capture_live,
    explain, preset,
};

use crate::failures::{self, machine_error, write_error};
use crate::table::{Column, Table};
use report::Report;

/// The rules of the kernel that the machine reports, or the newest rules.
const AUTO: &str = "auto";

/// A description of a machine: nodes, CPUs, distances, zones and settings. Immutable.
///
/// Memory amounts are in frames of `page_bytes` bytes, unless a name says otherwise.
#[pyclass(frozen, module = "zonal.machine")]
#[derive(Clone)]
pub(crate) struct Machine {
    pub(crate) model: MachineModel,
    notes: Vec<String>,
}

impl Machine {
    fn described(model: Result<MachineModel, zonal_machine::MachineError>) -> PyResult<Self> {
        let model = model.map_err(|error| machine_error(&error))?;
        Ok(Self { model, notes: Vec::new() })
    }

    fn captured(capture: Result<Capture, zonal_machine::MachineError>) -> PyResult<Self> {
        let Capture { model, notes, .. } = capture.map_err(|error| machine_error(&error))?;
        Ok(Self { model, notes })
    }

    fn rules(&self, rules: &str, node_load: Option<&str>) -> PyResult<Rules> {
        let refused = |error: &dyn std::fmt::Display| failures::MachineError::new_err(error.to_string());
        let version = match rules {
            AUTO => self.model.observed.as_ref().and_then(|observed| observed.kernel),
            text => Some(text.parse().and_then(KernelVersion::checked).map_err(|error| refused(&error))?),
        };
        let mut rules = Rules::of(version.unwrap_or(KernelVersion::NEWEST));
        if let Some(name) = node_load {
            rules.node_load = NodeLoad::from_name(name).map_err(|error| refused(&error))?;
        }
        Ok(rules)
    }

    fn online(&self) -> impl Iterator<Item = &NodeModel> {
        self.model.online_nodes()
    }
}

#[pymethods]
impl Machine {
    /// Returns the machine's name.
    #[getter]
    fn name(&self) -> &str {
        &self.model.name
    }

    /// Returns the bytes in a frame.
    #[getter]
    fn page_bytes(&self) -> u32 {
        self.model.page_bytes
    }

    /// Returns the kernel version that the machine reported, such as "6.12", or None.
    #[getter]
    fn kernel(&self) -> Option<String> {
        let observed = self.model.observed.as_ref()?;
        observed.kernel.map(|version| version.to_string())
    }

    /// Returns the files that were missing while the machine was captured, and the assumptions made instead.
    #[getter]
    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    /// Returns a row for each node: node, online, cpus (number), managed (frames), managed_bytes.
    fn nodes(&self) -> Table {
        let (nodes, page_bytes) = (&self.model.nodes, u64::from(self.model.page_bytes));
        let managed = |node: &NodeModel| self.model.managed_of(node.id).get();
        Table::new(vec![
            Column::new("node", nodes.iter().map(|node| i64::from(node.id.get()))),
            Column::new("online", nodes.iter().map(|node| node.presence == Presence::Online)),
            Column::new("cpus", nodes.iter().map(|node| node.cpus.len() as i64)),
            Column::new("managed", nodes.iter().map(managed)),
            Column::new("managed_bytes", nodes.iter().map(|node| managed(node) * page_bytes)),
        ])
    }

    /// Returns a row for each online CPU: cpu, node.
    fn cpus(&self) -> Table {
        let mut cpus: Vec<(i64, i64)> = self
            .online()
            .flat_map(|node| node.cpus.iter().map(|cpu| (i64::from(cpu.get()), i64::from(node.id.get()))))
            .collect();
        cpus.sort_unstable();
        Table::new(vec![
            Column::new("cpu", cpus.iter().map(|&(cpu, _)| cpu)),
            Column::new("node", cpus.iter().map(|&(_, node)| node)),
        ])
    }

    /// Returns a row for each zone: node, kind, start (frame number), spanned, present, managed (frames),
    /// managed_bytes.
    fn zones(&self) -> Table {
        let (zones, page_bytes) = (&self.model.zones, u64::from(self.model.page_bytes));
        Table::new(vec![
            Column::new("node", zones.iter().map(|zone| i64::from(zone.node.get()))),
            Column::new("kind", zones.iter().map(|zone| zone.kind.name())),
            Column::new("start", zones.iter().map(|zone| zone.start.get())),
            Column::new("spanned", zones.iter().map(|zone| zone.spanned.get())),
            Column::new("present", zones.iter().map(|zone| zone.present.get())),
            Column::new("managed", zones.iter().map(|zone| zone.managed.get())),
            Column::new("managed_bytes", zones.iter().map(|zone| zone.managed.get() * page_bytes)),
        ])
    }

    /// Returns a row for each pair of nodes: node, to, distance (10 is local, as in the firmware's table).
    fn distances(&self) -> Table {
        let nodes = &self.model.nodes;
        let pairs: Vec<(i64, i64, i64)> = nodes
            .iter()
            .flat_map(|from| {
                nodes.iter().zip(&from.distances).map(move |(to, distance)| (from, to, distance))
            })
            .map(|(from, to, &distance)| (from.id.get().into(), to.id.get().into(), distance.into()))
            .collect();
        Table::new(vec![
            Column::new("node", pairs.iter().map(|pair| pair.0)),
            Column::new("to", pairs.iter().map(|pair| pair.1)),
            Column::new("distance", pairs.iter().map(|pair| pair.2)),
        ])
    }

    /// Explains the machine by the rules of a kernel: "auto" for those of the machine's own kernel (the newest known
    /// if there is none), or a version such as "6.12". `node_load` overrides the version's rule by which node load
    /// grows. Raises MachineError for other texts.
    #[pyo3(signature = (rules = AUTO, *, node_load = None))]
    fn explain(&self, rules: &str, node_load: Option<&str>) -> PyResult<Report> {
        let rules = self.rules(rules, node_load)?;
        Ok(Report { version: rules.version.to_string(), report: explain(&self.model, &rules) })
    }

    /// Returns a row for each value that the machine's kernel reported: what, predicted, observed, same, as_at_boot.
    /// Raises MachineError if the machine has no such values.
    #[pyo3(signature = (rules = AUTO, *, node_load = None))]
    fn check(&self, rules: &str, node_load: Option<&str>) -> PyResult<Table> {
        let report = self.explain(rules, node_load)?;
        if report.report.checks.is_empty() {
            let problem = format!(
                "nothing to check: {:?} has no values reported by its kernel; use live(), capture(), or a file with \"observed\"",
                self.model.name
            );
            return Err(failures::MachineError::new_err(problem));
        }
        Ok(report.checks())
    }

    /// Returns a row for each piece of advice: severity ("info" or "warn"), text.
    #[pyo3(signature = (rules = AUTO, *, node_load = None))]
    fn advice(&self, rules: &str, node_load: Option<&str>) -> PyResult<Table> {
        Ok(self.explain(rules, node_load)?.advice())
    }

    /// Returns, for each online node, the nodes that serve its requests, from the first choice to the last.
    #[pyo3(signature = (rules = AUTO, *, node_load = None))]
    fn fallback_orders(&self, rules: &str, node_load: Option<&str>) -> PyResult<BTreeMap<u16, Vec<u16>>> {
        Ok(self.explain(rules, node_load)?.fallback_orders())
    }

    /// Returns the text of a machine file.
    fn to_json(&self) -> String {
        self.model.to_json()
    }

    /// Writes a machine file. A file that zonal did not write is replaced only with `force`; otherwise
    /// FileExistsError is raised.
    #[pyo3(signature = (path, *, force = false))]
    #[expect(clippy::needless_pass_by_value, reason = "Python passes paths by value")]
    fn write(&self, path: PathBuf, force: bool) -> PyResult<()> {
        output::write(&path, &self.model.to_json(), Kind::Machine, replace(force))
            .map_err(|error| write_error(&error))
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| self.model == other.get().model)
    }

    fn __repr__(&self) -> String {
        let (nodes, cpus) = (self.online().count(), self.model.online_cpus());
        format!("<zonal.machine.Machine {:?}: {nodes} nodes, {cpus} CPUs>", self.model.name)
    }

    /// Pickles the machine as the text of a machine file.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        Ok((py.get_type::<Self>().into_any(), PyTuple::new(py, [self.to_json()])?))
    }

    /// Reads the text of a machine file, which errors call `origin`.
    #[new]
    #[pyo3(signature = (text, origin = "machine"))]
    fn from_json(text: &str, origin: &str) -> PyResult<Self> {
        Self::described(MachineModel::from_json(text, origin))
    }
}

/// Returns which files may be replaced.
pub(crate) const fn replace(force: bool) -> Replace {
    if force { Replace::Any } else { Replace::Own }
}

/// Captures this machine from /proc and /sys.
#[pyfunction]
fn live(py: Python<'_>) -> PyResult<Machine> {
    Machine::captured(py.detach(capture_live))
}

/// Captures a copy of another machine: a directory with its `proc` and `sys`, and optionally `dmesg`.
///
/// Raises MachineError if the directory has no such copy, and OSError for files that cannot be read.
#[pyfunction(name = "capture")]
#[expect(clippy::needless_pass_by_value, reason = "Python passes paths by value")]
fn capture_tree(py: Python<'_>, directory: PathBuf) -> PyResult<Machine> {
    Machine::captured(py.detach(|| capture(&directory)))
}

/// Reads a machine file. Raises OSError if it cannot be read, and MachineError, with the field, if it is invalid.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "Python passes paths by value")]
fn read(py: Python<'_>, path: PathBuf) -> PyResult<Machine> {
    Machine::described(py.detach(|| MachineModel::read(&path)))
}

/// Returns a well-known machine. Raises MachineError, with the known names, if there is none of this name.
#[pyfunction(name = "preset")]
fn preset_named(name: &str) -> PyResult<Machine> {
    Machine::described(preset(name))
}

/// Returns a row for each preset: name, description.
#[pyfunction]
fn presets() -> Table {
    Table::new(vec![
        Column::new("name", PRESETS.iter().map(|preset| preset.name)),
        Column::new("description", PRESETS.iter().map(|preset| preset.description)),
    ])
}

/// Adds the names of this module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Table>()?;
    module.add_class::<Machine>()?;
    module.add_class::<Report>()?;
    module.add("MachineError", module.py().get_type::<failures::MachineError>())?;
    module.add_function(wrap_pyfunction!(live, module)?)?;
    module.add_function(wrap_pyfunction!(capture_tree, module)?)?;
    module.add_function(wrap_pyfunction!(read, module)?)?;
    module.add_function(wrap_pyfunction!(preset_named, module)?)?;
    module.add_function(wrap_pyfunction!(presets, module)?)
}

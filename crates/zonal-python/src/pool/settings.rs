//! The settings of a pool as a mapping.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyString};
use zonal_linux::{Access, Setting, SettingError, SettingValue, SettingValues};

use super::callbacks::check_outside;
use super::errors::{Kind, invalid};
use super::request::integer;
use super::state::Shared;

/// The settings of a pool by their names, as a mapping. Values are numbers, names, or tuples with a number for each kind of zone.
#[pyclass(frozen, mapping, module = "zonal")]
pub(crate) struct Settings(pub(crate) Arc<Shared>);

/// Returns the exception for an error of a setting.
pub(crate) fn error_of(error: &SettingError) -> PyErr {
    let kind =
        if matches!(error, SettingError::Unknown { .. }) { Kind::UnknownSetting } else { Kind::Setting };
    kind.error(error)
}

/// Returns a value of the setting `name` as the text that it parses.
pub(crate) fn text_of(name: &str, value: &Bound<'_, PyAny>) -> PyResult<String> {
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(text.to_cow()?.into_owned());
    }
    if value.is_instance_of::<PyInt>() {
        return integer(name, value).map(|number| number.to_string());
    }
    if let Ok(numbers) = value.extract::<Vec<u64>>() {
        let texts: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        return Ok(texts.join(" "));
    }
    Err(invalid(format_args!("{name} is {}; pass a number, a text, or a list of numbers", value.repr()?)))
}

fn value_of<'py>(py: Python<'py>, value: SettingValue) -> PyResult<Bound<'py, PyAny>> {
    match value {
        SettingValue::Number(number) => Ok(number.into_pyobject(py)?.into_any()),
        SettingValue::PerKind([dma, dma32, normal, movable]) => {
            Ok((dma, dma32, normal, movable).into_pyobject(py)?.into_any())
        }
        other => Ok(PyString::new(py, &other.to_string()).into_any()),
    }
}

/// Returns the settings that have a value.
fn readable() -> impl Iterator<Item = Setting> {
    Setting::ALL.into_iter().filter(|setting| setting.info().access != Access::WriteOnly)
}

#[pymethods]
impl Settings {
    fn __getitem__<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let value = self.0.with(py, |pool| pool.setting(name))?;
        value_of(py, value.map_err(|error| error_of(&error))?)
    }

    fn __setitem__(&self, py: Python<'_>, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
        check_outside("settings")?;
        let text = text_of(name, value)?;
        self.0.without(py, |pool| pool.set_setting(name, &text))?.map_err(|error| error_of(&error))
    }

    fn __delitem__(&self, name: &str) -> PyResult<()> {
        Err(invalid(format_args!("the setting {name} cannot be deleted; assign another value")))
    }

    fn __len__(&self) -> usize {
        readable().count()
    }

    fn __contains__(&self, name: &str) -> bool {
        readable().any(|setting| setting.info().name == name)
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.keys().into_pyobject(py)?.try_iter()?.into_any())
    }

    /// Returns the names.
    fn keys(&self) -> Vec<&'static str> {
        readable().map(|setting| setting.info().name).collect()
    }

    /// Returns the value of a setting, or `default` if no setting has this name.
    #[pyo3(signature = (name, default=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        if self.__contains__(name) { self.__getitem__(py, name).map(Some) } else { Ok(default) }
    }

    /// Returns pairs of names and values.
    fn items<'py>(&self, py: Python<'py>) -> PyResult<Vec<(&'static str, Bound<'py, PyAny>)>> {
        self.keys().into_iter().map(|name| Ok((name, self.__getitem__(py, name)?))).collect()
    }

    /// Returns the values.
    fn values<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        self.keys().into_iter().map(|name| self.__getitem__(py, name)).collect()
    }

    /// Returns what a setting means, its default, and the values that are allowed.
    fn describe<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyDict>> {
        let info = Setting::named(name).map_err(|error| error_of(&error))?.info();
        let dict = PyDict::new(py);
        dict.set_item("name", info.name)?;
        dict.set_item("summary", info.summary)?;
        dict.set_item("default", info.default)?;
        dict.set_item("writable", info.access != Access::ReadOnly)?;
        dict.set_item("allowed", allowed(&info.values))?;
        Ok(dict)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let pairs: PyResult<Vec<String>> =
            self.items(py)?.iter().map(|(name, value)| Ok(format!("'{name}': {}", value.repr()?))).collect();
        Ok(format!("<zonal.Settings {{{}}}>", pairs?.join(", ")))
    }
}

fn allowed(values: &SettingValues) -> String {
    match values {
        SettingValues::Number { min, max, unit } => format!("{min} to {max} {unit}").trim_end().to_owned(),
        SettingValues::NumberOrAuto { min, max, unit } => {
            format!("auto, or {min} to {max} {unit}").trim_end().to_owned()
        }
        SettingValues::PerKind => "a number for each of DMA, DMA32, Normal, Movable".to_owned(),
        SettingValues::Names(names) => names.join(", "),
        SettingValues::Any => "any".to_owned(),
    }
}

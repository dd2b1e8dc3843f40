//! Requests: sizes and nodes as Python passes them, and how the pool serves them.

use std::sync::Arc;

use pyo3::Borrowed;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyString;
use zonal_linux::{AllocError, AllocFailure, Order, PageCount, Pool, PoolPolicy, PoolRequest};

use super::block::Run;
use super::errors::{Kind, invalid};
use super::policy::Policy;
use super::state::Shared;

/// Largest number of bytes that are zeroed while the thread is attached to the interpreter.
pub(crate) const ZEROED_ATTACHED: usize = 64 << 10;

/// The size of a request.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) bytes: usize,
    pub(crate) align: usize,
}

/// Allocates a run.
///
/// A power of two of pages is a block, which is aligned to its size. All else is a buffer, which may be longer than a block.
pub(crate) fn take(pool: &Pool, request: &PoolRequest<'_>, wanted: Wanted) -> Result<Run, AllocFailure> {
    let page = pool.page_bytes();
    let count = PageCount::new(wanted.bytes.div_ceil(page) as u64);
    let order = pool.order_holding(wanted.bytes);
    if let Some(order) = order.filter(|order| order.pages() == count && wanted.align <= page << order.get()) {
        return pool.alloc(&request.with_order(order)).map(Run::Block);
    }
    let aligned = request.with_order(pool.order_holding(wanted.align).unwrap_or(Order::PAGE));
    let buffer = match pool.alloc_frames(&aligned, count) {
        Err(failure) if matches!(failure.error(), AllocError::Count { .. }) => {
            pool.alloc_contiguous(&aligned, count)
        }
        other => other,
    };
    buffer.map(Run::Buffer)
}

/// What a request of Python says besides its size.
pub(crate) struct Asked<'a> {
    pub(crate) node: Option<i64>,
    pub(crate) policy: Option<&'a Policy>,
    pub(crate) zeroed: bool,
    pub(crate) wait: bool,
}

impl Asked<'_> {
    /// Calls `then` with the request.
    pub(crate) fn with<R>(
        &self,
        shared: &Arc<Shared>,
        pool: &Pool,
        then: impl FnOnce(&PoolRequest<'_>) -> R,
    ) -> PyResult<R> {
        let preferred: PoolPolicy<'static>;
        let mut request = PoolRequest::page();
        if self.zeroed {
            request = request.zeroed();
        }
        match (self.node, self.policy) {
            (Some(node), Some(_)) => {
                Err(invalid(format_args!("node is {node} and a policy is given; pass one of them")))
            }
            (Some(node), None) => {
                preferred = pool.preferred(shared.node(pool, node)?).map_err(invalid)?;
                Ok(then(&request.policy(&preferred)))
            }
            (None, Some(policy)) => Ok(then(&request.policy(policy.of(shared)?))),
            (None, None) => Ok(then(&request)),
        }
    }

    /// Allocates a run. A request that may take long releases the interpreter lock.
    pub(crate) fn run(
        &self,
        py: Python<'_>,
        shared: &Arc<Shared>,
        pool: &Pool,
        wanted: Wanted,
    ) -> PyResult<Run> {
        let is_short = !self.zeroed || wanted.bytes <= ZEROED_ATTACHED;
        let is_block = pool.order_holding(wanted.bytes).is_some();
        let taken = self.with(shared, pool, |request| {
            if is_short && is_block {
                let first = take(pool, &request.no_wait(), wanted);
                if first.is_ok() || !self.wait {
                    return first;
                }
            }
            let request = if self.wait { *request } else { request.no_wait() };
            py.detach(|| take(pool, &request, wanted))
        })?;
        taken.map_err(|failure| error_of(&failure, wanted))
    }
}

/// Returns the exception for a request that failed.
#[cold]
fn error_of(failure: &AllocFailure, wanted: Wanted) -> PyErr {
    let kind = match failure.error() {
        AllocError::OutOfMemory(_) | AllocError::NotContiguous { .. } => Kind::OutOfMemory,
        AllocError::Reentered => Kind::Reentry,
        _ => Kind::InvalidArgument,
    };
    kind.error(format_args!("{} bytes cannot be allocated: {failure}", wanted.bytes))
}

/// Returns an alignment, which must be a power of two, and at most the largest block.
pub(crate) fn alignment(pool: &Pool, align: Option<&Bound<'_, PyAny>>) -> PyResult<usize> {
    let Some(align) = align else { return Ok(1) };
    let bytes = bytes("align", align)? as usize;
    if bytes.is_power_of_two() && pool.order_holding(bytes).is_some() {
        return Ok(bytes);
    }
    Err(invalid(format_args!(
        "align is {bytes}; it must be a power of two, at most the size of the largest block"
    )))
}

/// Returns a number of bytes, which Python passes as a number or as a text such as "8G" or "64 KiB".
pub(crate) fn bytes(name: &str, value: &Bound<'_, PyAny>) -> PyResult<u64> {
    let wrong = |shown: &str| {
        invalid(format_args!(
            "{name} is {shown}; pass a number of bytes, or a text such as \"512M\" or \"8G\""
        ))
    };
    if let Ok(text) = value.cast::<PyString>() {
        let text = text.to_cow()?;
        if let Some(right) = binary(&text) {
            return Err(invalid(format_args!("`{text}` is not a size: sizes are binary; write {right}")));
        }
        return parse(&text).ok_or_else(|| wrong(&format!("\"{text}\"")));
    }
    match count(name, value, 1) {
        Err(error) if error.is_instance_of::<PyTypeError>(value.py()) => {
            Err(wrong(&value.repr()?.to_string()))
        }
        other => other,
    }
}

/// Returns an integer that Python passes as the argument `name`.
pub(crate) fn integer(name: &str, value: &Bound<'_, PyAny>) -> PyResult<i64> {
    match value.extract::<i64>() {
        Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => {
            // Its digits may be more than the interpreter is willing to print.
            Err(invalid(format_args!("{name} has more than 63 bits; no value that is allowed has so many")))
        }
        Err(error) if error.is_instance_of::<PyTypeError>(value.py()) => {
            Err(PyTypeError::new_err(format!("{name} is {}; it must be an integer", value.repr()?)))
        }
        other => other,
    }
}

/// Returns an integer that is at least `least`.
pub(crate) fn count(name: &str, value: &Bound<'_, PyAny>, least: u64) -> PyResult<u64> {
    let number = integer(name, value)?;
    let found = u64::try_from(number).ok().filter(|&number| number >= least);
    found.ok_or_else(|| invalid(format_args!("{name} is {number}; it must be {least} or more")))
}

/// The number of a node, which need not exist.
#[derive(Clone, Copy)]
pub(crate) struct NodeNumber(pub(crate) i64);

impl<'py> FromPyObject<'_, 'py> for NodeNumber {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        integer("node", &value).map(Self)
    }
}

/// Returns the numbers of nodes.
pub(crate) fn node_numbers(nodes: Vec<NodeNumber>) -> Vec<i64> {
    nodes.into_iter().map(|node| node.0).collect()
}

/// Returns what to write instead of a size with a decimal unit, such as 64MB.
fn binary(text: &str) -> Option<String> {
    let text = text.trim();
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[number.len()..].to_ascii_uppercase();
    let letter = unit.strip_suffix('B').filter(|letter| matches!(*letter, "K" | "M" | "G" | "T"))?;
    let number = number.trim_end();
    (!number.is_empty()).then(|| format!("{number}{letter}iB or {number}{letter}"))
}

/// Parses a size. Units are powers of 1024.
fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "ki" | "kib" => 10,
        "m" | "mi" | "mib" => 20,
        "g" | "gi" | "gib" => 30,
        "t" | "ti" | "tib" => 40,
        _ => return None,
    };
    let found = match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(1 << shift)?,
        Err(_) => {
            let scaled = number.parse::<f64>().ok()? * (1_u64 << shift) as f64;
            if scaled.fract() != 0.0 || scaled >= i64::MAX as f64 {
                return None;
            }
            scaled as u64
        }
    };
    (found > 0).then_some(found)
}

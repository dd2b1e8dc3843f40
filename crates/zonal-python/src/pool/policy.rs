//! Policies, which choose the nodes of requests.

use std::sync::Arc;

use pyo3::prelude::*;
use zonal_linux::{NodeMask, Pool, PoolPolicy, PoolWeights};

use super::errors::invalid;
use super::state::Shared;

/// The nodes that a request uses, and their order. Methods of a pool create policies.
#[pyclass(frozen, module = "zonal")]
pub(crate) struct Policy {
    shared: Arc<Shared>,
    /// In a box, because Python's objects have an alignment of 16 bytes at most.
    policy: Box<PoolPolicy<'static>>,
    /// What `policy` borrows.
    weights: Option<*mut PoolWeights>,
    text: String,
}

// SAFETY: the pointer owns what it points to; only `drop` uses it, and the weights can be read by several threads.
unsafe impl Send for Policy {}
// SAFETY: as above.
unsafe impl Sync for Policy {}

impl Drop for Policy {
    fn drop(&mut self) {
        if let Some(weights) = self.weights {
            // SAFETY: the pointer comes from a box, and `policy`, which borrows it, has no destructor and is not used again.
            drop(unsafe { Box::from_raw(weights) });
        }
    }
}

#[pymethods]
impl Policy {
    fn __repr__(&self) -> &str {
        &self.text
    }
}

impl Policy {
    /// Returns the policy for a request to the pool of `shared`.
    pub(crate) fn of(&self, shared: &Arc<Shared>) -> PyResult<&PoolPolicy<'static>> {
        if Arc::ptr_eq(&self.shared, shared) {
            return Ok(&self.policy);
        }
        Err(invalid(format_args!("{} was created by another pool; create it by this one", self.text)))
    }

    /// Returns a policy that prefers one node.
    pub(crate) fn preferred(shared: &Arc<Shared>, pool: &Pool, node: i64) -> PyResult<Self> {
        let policy = pool.preferred(shared.node(pool, node)?).map_err(invalid)?;
        Ok(Self {
            shared: Arc::clone(shared),
            policy: Box::new(policy),
            weights: None,
            text: format!("pool.preferred({node})"),
        })
    }

    /// Returns a policy that allocates from these nodes only.
    pub(crate) fn bind(shared: &Arc<Shared>, pool: &Pool, nodes: &[i64]) -> PyResult<Self> {
        let policy = pool.bind(mask(shared, pool, nodes)?).map_err(invalid)?;
        Ok(Self {
            shared: Arc::clone(shared),
            policy: Box::new(policy),
            weights: None,
            text: format!("pool.bind({nodes:?})"),
        })
    }

    /// Returns a policy that uses these nodes, or all, in turn.
    pub(crate) fn interleave(shared: &Arc<Shared>, pool: &Pool, nodes: Option<&[i64]>) -> PyResult<Self> {
        let wanted = nodes.map_or_else(|| Ok(pool.memory_nodes()), |nodes| mask(shared, pool, nodes))?;
        let policy = pool.interleave(wanted).map_err(invalid)?;
        let text = nodes
            .map_or_else(|| "pool.interleave()".to_owned(), |nodes| format!("pool.interleave({nodes:?})"));
        Ok(Self { shared: Arc::clone(shared), policy: Box::new(policy), weights: None, text })
    }

    /// Returns a policy that uses nodes in turn, in the ratio of their weights.
    pub(crate) fn weighted(shared: &Arc<Shared>, pool: &Pool, weights: &[(i64, i64)]) -> PyResult<Self> {
        let table = Box::into_raw(Box::new(PoolWeights::new()));
        let made = Self::with_weights(shared, pool, weights, table);
        if made.is_err() {
            // SAFETY: the pointer comes from a box, and no policy borrows it.
            drop(unsafe { Box::from_raw(table) });
        }
        made
    }

    fn with_weights(
        shared: &Arc<Shared>,
        pool: &Pool,
        weights: &[(i64, i64)],
        table: *mut PoolWeights,
    ) -> PyResult<Self> {
        // SAFETY: the pointer comes from a box, which is freed only after the policy or if this function fails.
        let table_ref: &'static PoolWeights = unsafe { &*table };
        let mut nodes = Vec::new();
        for &(node, weight) in weights {
            let allowed = u8::try_from(weight).ok().filter(|&weight| weight > 0);
            let allowed = allowed.ok_or_else(|| {
                invalid(format_args!("the weight of node {node} is {weight}; use 1 to 255"))
            })?;
            table_ref.set(shared.node(pool, node)?, allowed);
            nodes.push(node);
        }
        let policy = pool.weighted_interleave(mask(shared, pool, &nodes)?, table_ref).map_err(invalid)?;
        let text = format!("pool.weighted_interleave({{{}}})", listed(weights));
        Ok(Self { shared: Arc::clone(shared), policy: Box::new(policy), weights: Some(table), text })
    }
}

fn listed(weights: &[(i64, i64)]) -> String {
    let pairs: Vec<String> = weights.iter().map(|(node, weight)| format!("{node}: {weight}")).collect();
    pairs.join(", ")
}

/// Returns the nodes as a set. Each must have memory in the pool.
fn mask(shared: &Arc<Shared>, pool: &Pool, nodes: &[i64]) -> PyResult<NodeMask> {
    if nodes.is_empty() {
        return Err(invalid("the list of nodes is empty; name at least one node"));
    }
    nodes.iter().map(|&node| shared.node(pool, node)).collect()
}

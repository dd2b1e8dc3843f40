//! Explanations of requests to a pool, and the requests that a published pool keeps.
//!
//! Related files: `publish/explain.rs` answers clients with them, `pool/recent.rs` has the requests that are kept.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use zonal::error::AllocError;
use zonal::explain::{Step, ZoneName};
use zonal::units::NodeId;

use super::change::ActError;
use super::failure::AllocFailure;
use super::frames::Frames;
use super::handle::Pool;
use super::recent::RecentRequest;
use super::reclaimers::calling_none;
use super::request::PoolRequest;
use crate::error::node_list;
use crate::topology::affinity::CpuSet;

impl Pool {
    /// Calls `each` for every step that `request` would take now on the CPU of this thread, and returns the zone that
    /// would serve it; see [`Allocator::explain`](zonal::Allocator::explain).
    ///
    /// ```
    /// # use zonal_linux::{NodeId, Pool, PoolRequest};
    /// let pool = Pool::builder().size(64 << 20).fake_nodes(2).build()?;
    /// let policy = pool.bind([NodeId::new(1).unwrap()].into_iter().collect())?;
    /// let request = PoolRequest::page().policy(&policy);
    /// let served = pool.explain(&request, |step| println!("{step}"))?.expect("node 1 has free memory");
    /// assert_eq!(served.node, pool.alloc(&request)?.node());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When no node may serve the request, or its order is too large.
    pub fn explain(
        &self,
        request: &PoolRequest<'_>,
        each: impl FnMut(Step),
    ) -> Result<Option<ZoneName>, AllocError> {
        self.core.allocator().explain(request, each)
    }

    /// Allocates a block like [`Pool::alloc`], and calls `each` for every step of the request.
    ///
    /// `each` must not use the pool. If it panics, it is not called again, and the panic goes on after the request.
    ///
    /// # Errors
    /// The errors of [`Pool::alloc`].
    pub fn alloc_explained(
        &self,
        request: &PoolRequest<'_>,
        mut each: impl FnMut(Step),
    ) -> Result<Frames, AllocFailure> {
        let (allocator, mut panicked) = (self.core.allocator(), None);
        let block = allocator.alloc_explained(request, |step| {
            if panicked.is_none() {
                panicked = catch_unwind(AssertUnwindSafe(|| each(step))).err();
            }
        });
        // SAFETY: the block was allocated just now, so no other code uses or frees it.
        let frames = block.map(|block| unsafe { Frames::own(self.core_ref(), block) });
        if let Some(payload) = panicked {
            drop(frames);
            resume_unwind(payload);
        }
        frames.map_err(|error| AllocFailure::new(allocator, request, error))
    }

    /// Explains a request as a thread on a CPU of `node` would make it. A thread of the pool calls this.
    ///
    /// No reclaimer is called, because it may wait for a lock of the program: the pool assumes that reclaimers have frames to
    /// free, if there are any.
    pub(crate) fn explain_on(
        &self,
        node: NodeId,
        request: &PoolRequest<'_>,
        each: impl FnMut(Step),
    ) -> Result<Option<ZoneName>, ExplainOnError> {
        let nodes = self.topology().nodes();
        let Some(found) = nodes.iter().find(|one| one.id == node) else {
            return Err(ExplainOnError::UnknownNode {
                node,
                existing: node_list(nodes.iter().map(|one| one.id)),
            });
        };
        let with_cpus = nodes.iter().filter(|one| !one.cpus.is_empty()).map(|one| one.id);
        let no_cpu = || ExplainOnError::NoCpu { node, others: node_list(with_cpus) };
        let first = *found.cpus.first().ok_or_else(no_cpu)?;
        let explain = || Ok(calling_none(|| self.explain(request, each))?);
        if self.topology().has_emulated_cpus() {
            let _acting = self.act_as(first)?;
            return explain();
        }
        let usual = CpuSet::of_this_thread().unwrap_or(CpuSet::all());
        if !found.cpus.iter().filter_map(|&cpu| CpuSet::one(cpu)).any(|cpu| cpu.apply()) {
            return Err(ExplainOnError::Denied(node));
        }
        let explained = explain();
        // If the usual CPUs have gone offline meanwhile, the thread may run on any.
        let _moved_back = usual.apply() || CpuSet::all().apply();
        explained
    }

    /// Returns the first node with CPUs.
    pub(crate) fn first_node_with_cpus(&self) -> Option<NodeId> {
        self.topology().nodes().iter().find(|node| !node.cpus.is_empty()).map(|node| node.id)
    }

    /// Keeps requests that fail, stall, or are served by another node than the preferred one, until the result is dropped.
    pub(crate) fn record_requests(&self) -> Recording {
        self.core.platform().recent.begin();
        Recording(self.clone())
    }

    /// Returns the last requests that were kept, the oldest first, and the number of all that were.
    pub(crate) fn recent_requests(&self) -> (Vec<RecentRequest>, u64) {
        self.core.platform().recent.read()
    }
}

/// Lets a pool keep requests until it is dropped.
#[derive(Debug)]
pub(crate) struct Recording(Pool);

impl Drop for Recording {
    fn drop(&mut self) {
        self.0.core.platform().recent.end();
    }
}

/// Why a pool cannot explain a request from a node.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExplainOnError {
    #[error("node {node} does not exist; the pool has {existing}")]
    UnknownNode { node: NodeId, existing: String },
    #[error("node {node} has no CPUs; {others} can make requests")]
    NoCpu { node: NodeId, others: String },
    #[error("the program may not run on the CPUs of node {0}")]
    Denied(NodeId),
    #[error(transparent)]
    Acting(#[from] ActError),
    #[error(transparent)]
    Refused(#[from] AllocError),
}

//! Explanations of requests to a pool.

use zonal::error::AllocError;
use zonal::explain::{Step, ZoneName};

use super::failure::AllocFailure;
use super::frames::Frames;
use super::handle::Pool;
use super::request::PoolRequest;

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
    /// `each` must not use the pool.
    ///
    /// # Errors
    /// The errors of [`Pool::alloc`].
    pub fn alloc_explained(
        &self,
        request: &PoolRequest<'_>,
        each: impl FnMut(Step),
    ) -> Result<Frames, AllocFailure> {
        let allocator = self.core.allocator();
        let block = allocator.alloc_explained(request, each);
        let block = block.map_err(|error| AllocFailure::new(allocator, request, error))?;
        // SAFETY: the block was allocated just now, so no other code uses or frees it.
        Ok(unsafe { Frames::own(self.core_ref(), block) })
    }
}

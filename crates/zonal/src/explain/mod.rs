//! Explains requests: reports the steps of a real request, or those that a request would take.
//!
//! Both report their steps to the observer in their context, which ordinary requests do not have. An explanation
//! runs the scans of a request with steps that change nothing. Related files: `alloc/slow.rs` runs these scans,
//! `platform/steps.rs` defines the steps, and `alloc/scan.rs` reports them too for real requests.

use core::cell::RefCell;

use crate::Allocator;
use crate::error::AllocError;
use crate::platform::Platform;
pub use crate::platform::steps::{Exclusion, Outcome, ReclaimStep, Step, ZoneName};
use crate::request::policy::Turn;
use crate::request::{Block, Request};

impl<'m, P: Platform> Allocator<'m, P> {
    /// Calls `each` for every step that `request` would take now on the current CPU, and returns the zone that would
    /// serve it, or `None` if no zone would without reclaim.
    ///
    /// Nothing is allocated, reclaimed or counted, and the turn of an interleaving policy does not advance. Reclaimers
    /// are asked how much they could free, if the request may wait. What they would free is not known, so an
    /// explanation continues as if they freed nothing. Other threads can allocate and free between the explanation and
    /// the request.
    ///
    /// ```
    /// # use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
    /// # use zonal::platform::one_thread::OneThread;
    /// # use zonal::units::{CpuId, NodeId, PageCount, Pfn, ZoneKind};
    /// # use zonal::{Allocator, Buffer, Config, Machine, Request};
    /// # let id = NodeId::new(0).unwrap();
    /// # let memory = FrameRange { start: Pfn::new(0x1000), count: PageCount::new(0x4000) };
    /// # let nodes = [NodeDescription { id, cpus: &[CpuId::new(0)], distances: &[10] }];
    /// # let zones = [ZoneDescription { node: id, kind: ZoneKind::Normal, span: memory, managed: &[memory] }];
    /// # let machine = Machine::new(&nodes, &zones)?;
    /// # let metadata = |bytes| Buffer::uninit(Box::leak(vec![std::mem::MaybeUninit::uninit(); bytes].into_boxed_slice()));
    /// # let allocator = Allocator::new(OneThread::new(), &machine, &Config::default(), |r| Some(metadata(r.bytes)))?;
    /// let request = Request::page();
    /// let served = allocator.explain(&request, |step| println!("{step}"))?;
    /// // zone Normal of node 0: serves, above `low`
    /// assert_eq!(served.map(|zone| zone.node), Some(id));
    /// assert_eq!(allocator.alloc(&request)?.node, id);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Allocator::alloc`] for a request that no zone may serve.
    pub fn explain(
        &self,
        request: &Request<'_>,
        mut each: impl FnMut(Step),
    ) -> Result<Option<ZoneName>, AllocError> {
        let mut context = self.state.resolve(request, Turn::Upcoming)?;
        if let Some(zone) = self.state.zone_without_scan(request) {
            each(Step::Near(ZoneName::of(zone)));
            return Ok(Some(ZoneName::of(zone)));
        }
        let each = RefCell::new(each);
        let observer = |step| (each.borrow_mut())(step);
        context.observer = Some(&observer);
        Ok(self.state.walk_lists(&context))
    }

    /// Allocates one block like [`Allocator::alloc`], and calls `each` for every step of the request.
    ///
    /// `each` runs while the request is in progress, so it must not use the allocator. A request that reclaims may report
    /// its scans many times.
    ///
    /// ```
    /// # use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
    /// # use zonal::platform::one_thread::OneThread;
    /// # use zonal::units::{CpuId, NodeId, PageCount, Pfn, ZoneKind};
    /// # use zonal::{Allocator, Buffer, Config, Machine, Request};
    /// # let id = NodeId::new(0).unwrap();
    /// # let memory = FrameRange { start: Pfn::new(0x1000), count: PageCount::new(0x4000) };
    /// # let nodes = [NodeDescription { id, cpus: &[CpuId::new(0)], distances: &[10] }];
    /// # let zones = [ZoneDescription { node: id, kind: ZoneKind::Normal, span: memory, managed: &[memory] }];
    /// # let machine = Machine::new(&nodes, &zones)?;
    /// # let metadata = |bytes| Buffer::uninit(Box::leak(vec![std::mem::MaybeUninit::uninit(); bytes].into_boxed_slice()));
    /// # let allocator = Allocator::new(OneThread::new(), &machine, &Config::default(), |r| Some(metadata(r.bytes)))?;
    /// let mut steps = Vec::new();
    /// let block = allocator.alloc_explained(&Request::page(), |step| steps.push(step))?;
    /// assert_eq!(steps.len(), 1); // the pageset of the CPU was refilled
    /// allocator.free(block.first, block.order)?;
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Allocator::alloc`]. A handler gets [`AllocError::Reentered`] more often, because requests whose steps are
    /// reported lock the pageset.
    pub fn alloc_explained(
        &self,
        request: &Request<'_>,
        mut each: impl FnMut(Step),
    ) -> Result<Block, AllocError> {
        if let Some(block) = self.state.serve_without_scan(request)? {
            each(Step::Near(ZoneName::of(&self.state.zones[block.zone.index()])));
            return Ok(block);
        }
        let each = RefCell::new(each);
        let observer = |step| (each.borrow_mut())(step);
        let mut context = self.state.resolve(request, Turn::Next)?;
        context.observer = Some(&observer);
        self.state.serve(request, &context)
    }
}

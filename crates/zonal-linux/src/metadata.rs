//! The allocator's own state: mappings for the buffers it asks for, each on its node.
//!
//! Fresh mappings are zero and cost nothing until touched, which is what makes start-up quick.
//! Neighbours: `core.rs` keeps the result beyond the allocator's end.

use zonal::Buffer;
use zonal::layout::{BufferRequest, Place};

use crate::error::{PoolError, Warnings};
use crate::mapping::{Backing, HUGE_PAGE_BYTES, Mapping, Transparent, os_page_bytes};
use crate::memory::{Binding, HugePages, Manner, bind_or_warn};

/// The buffers of one allocator.
#[derive(Debug)]
pub(crate) struct Metadata {
    buffers: Vec<Mapping>,
    manner: Manner,
    failure: Option<PoolError>,
}

impl Metadata {
    pub(crate) fn new(manner: Manner) -> Self {
        Self { buffers: Vec::new(), manner, failure: None }
    }

    /// A buffer for `request`, or `None` when the kernel refuses; [`Metadata::failure`] knows why.
    ///
    /// # Safety
    /// The buffer must not be used after `self` is dropped.
    pub(crate) unsafe fn supply(
        &mut self,
        request: BufferRequest,
        warnings: &mut Warnings,
    ) -> Option<Buffer<'static>> {
        let mapping = self.map(request, warnings).map_err(|error| self.failure = Some(error)).ok()?;
        // SAFETY: a fresh mapping that nothing else uses; the end of its use is the caller's promise.
        let bytes = unsafe { mapping.bytes_unbounded() };
        self.buffers.push(mapping);
        // SAFETY: the kernel zeroes anonymous memory and nobody wrote to it.
        Some(unsafe { Buffer::zeroed(bytes) })
    }

    fn map(&self, request: BufferRequest, warnings: &mut Warnings) -> Result<Mapping, PoolError> {
        let bytes = request.bytes.max(1).next_multiple_of(os_page_bytes());
        let is_large = bytes >= HUGE_PAGE_BYTES && self.manner.huge_pages != HugePages::Never;
        let align = if is_large { HUGE_PAGE_BYTES } else { os_page_bytes() };
        let mapping = Mapping::new(bytes, align, Backing::Ordinary).map_err(|source| PoolError::Map {
            purpose: "metadata".into(),
            bytes: bytes as u64,
            source,
        })?;
        if let (Place::Node(node), Binding::ToNodes) = (request.place, self.manner.binding) {
            bind_or_warn(&mapping, node, warnings);
        }
        if is_large {
            // Frame states are looked up at random: fewer address translations miss. Only a help.
            mapping.advise(Transparent::Wanted).ok();
        }
        mapping.name("zonal metadata");
        Ok(mapping)
    }

    /// Why a buffer could not be supplied.
    pub(crate) fn failure(&mut self) -> Option<PoolError> {
        self.failure.take()
    }
}

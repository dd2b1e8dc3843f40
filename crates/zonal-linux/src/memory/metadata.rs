//! The memory for the allocator's metadata: one mapping for each buffer that the allocator requests, bound to a node.
//!
//! New mappings contain zeros and use no memory before they are first accessed, so building a large pool is fast.
//!
//! Related file: `pool/core.rs` drops the mappings after the allocator.

use zonal::Buffer;
use zonal::layout::{BufferRequest, Place};
use zonal::units::NodeId;

use super::huge_pages::HugePages;
use super::mapping::{Backing, Mapping, Transparent};
use super::page_sizes::{HUGE_PAGE_BYTES, os_page_bytes};
use super::zones::{Binding, MapOptions, bind_or_warn};
use crate::error::{PoolError, Warnings};
use crate::topology::Topology;

/// The buffers of one allocator.
#[derive(Debug)]
pub(crate) struct Metadata {
    buffers: Vec<Mapping>,
    options: MapOptions,
    failure: Option<PoolError>,
}

impl Metadata {
    pub(crate) fn new(options: MapOptions) -> Self {
        Self { buffers: Vec::new(), options, failure: None }
    }

    /// Returns a buffer for `request`, or `None` if the kernel refuses the mapping. [`Metadata::failure`] then returns
    /// the error.
    ///
    /// # Safety
    /// The buffer must not be used after `self` is dropped.
    pub(crate) unsafe fn supply(
        &mut self,
        request: BufferRequest,
        topology: &Topology,
        warnings: &mut Warnings,
    ) -> Option<Buffer<'static>> {
        let mapping =
            self.map(request, topology, warnings).map_err(|error| self.failure = Some(error)).ok()?;
        // SAFETY: the mapping is new, so no other code uses it. The caller guarantees that the buffer is not used after
        // `self`, which owns the mapping, is dropped.
        let bytes = unsafe { mapping.bytes_unbounded() };
        self.buffers.push(mapping);
        // SAFETY: the kernel zeroes anonymous memory, and no code has written to this mapping.
        Some(unsafe { Buffer::zeroed(bytes) })
    }

    fn map(
        &self,
        request: BufferRequest,
        topology: &Topology,
        warnings: &mut Warnings,
    ) -> Result<Mapping, PoolError> {
        let bytes = request.bytes.max(1).next_multiple_of(os_page_bytes());
        let is_large = bytes >= HUGE_PAGE_BYTES && self.options.huge_pages != HugePages::Never;
        let align = if is_large { HUGE_PAGE_BYTES } else { os_page_bytes() };
        let mapping = Mapping::new(bytes, align, Backing::Ordinary).map_err(|source| PoolError::Map {
            purpose: "metadata".into(),
            bytes: bytes as u64,
            source,
        })?;
        if let (Place::Node(node), Binding::ToNodes) = (request.place, self.options.binding) {
            bind_near(&mapping, node, topology, warnings);
        }
        if is_large {
            // Frame states are accessed in random order, so huge pages reduce TLB misses. If the advice fails, accesses
            // are only slower.
            mapping.advise(Transparent::Wanted).ok();
        }
        mapping.name("zonal metadata");
        Ok(mapping)
    }

    /// Returns the error of the last buffer that could not be mapped, and clears it.
    pub(crate) fn failure(&mut self) -> Option<PoolError> {
        self.failure.take()
    }
}

/// Binds `mapping` to `node`, or to the nearest node on which the pool has memory.
///
/// The second case is for nodes without memory: they have metadata too, but the kernel refuses to bind memory to them.
fn bind_near(mapping: &Mapping, node: NodeId, topology: &Topology, warnings: &mut Warnings) {
    if topology.has_memory_on(node) {
        bind_or_warn(mapping, node, warnings);
    } else if mapping.bind(node).is_err()
        && let Some(near) = topology.nearest_with_memory(node)
    {
        bind_or_warn(mapping, near, warnings);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::zones::Sharing;
    use crate::topology::{TopologyNode, ZoneShare};
    use zonal::units::{CpuId, Order, ZoneKind};

    /// Uses a node that this machine does not have instead of a node without memory, because the kernel refuses to bind
    /// memory to either of them.
    #[test]
    fn metadata_of_a_node_without_memory_causes_no_warning() {
        let node = |id: u16, weight: Option<u64>| TopologyNode {
            id: NodeId::new(id).unwrap(),
            cpus: vec![CpuId::new(u32::from(id))],
            distances: vec![10, 20],
            zones: weight.map(|weight| ZoneShare { kind: ZoneKind::Normal, weight }).into_iter().collect(),
        };
        let topology = Topology::emulated(vec![node(0, Some(1)), node(1023, None)]).unwrap();
        let options = MapOptions {
            page_bytes: 4096,
            max_order: Order::DEFAULT_MAX,
            huge_pages: HugePages::Never,
            binding: Binding::ToNodes,
            sharing: Sharing::Private,
        };
        let (mut metadata, mut warnings) = (Metadata::new(options), Warnings::default());
        let mut supply = |id: u16, warnings: &mut Warnings| {
            let request = BufferRequest { place: Place::Node(NodeId::new(id).unwrap()), bytes: 10_000 };
            // SAFETY: the buffer is dropped at once.
            unsafe { metadata.supply(request, &topology, warnings) }.is_some()
        };
        assert!(supply(0, &mut warnings));
        let of_node_0 = warnings.into_vec();
        let mut warnings = Warnings::default();
        assert!(supply(1023, &mut warnings));
        // If the kernel does not allow binding at all, it refuses the bindings of both nodes.
        assert_eq!(warnings.into_vec(), of_node_0);
    }
}

//! `tracing` events that calls of `Pool` emit, and that are too long for their place.
//!
//! Related file: `pool/emit.rs` has the rule which calls may emit.

use std::path::Path;

use super::emit::emit;
use super::failure::AllocFailure;
use super::handle::Pool;
use super::request::PoolRequest;
use crate::error::node_list;
use crate::memory::huge_pages::HugePages;

impl Pool {
    /// Reports that the pool is published at `path`.
    pub(crate) fn report_published(&self, path: &Path) {
        emit!(self.core.platform(), INFO, path = %path.display(), "pool published");
    }

    /// Reports a refused request, if it may wait. The caller of another request may hold any lock.
    pub(super) fn report_refused(&self, request: &PoolRequest<'_>, failure: &AllocFailure) {
        if request.may_wait() {
            emit!(self.core.platform(), DEBUG, error = %failure.error(), "request refused");
        }
    }

    /// Reports that the pool was built, and how it differs from the request.
    pub(super) fn report_built(&self, huge_pages: HugePages) {
        let platform = self.core.platform();
        let (page_bytes, bytes) = (self.page_bytes(), self.frames().get() * self.page_bytes() as u64);
        let (placement, nodes) = (self.placement(), node_list(self.memory_nodes().iter()));
        let sequences = self.uses_sequences();
        emit!(platform, INFO, bytes, page_bytes, %nodes, ?huge_pages, %placement, sequences, "pool built");
        for warning in self.warnings() {
            emit!(platform, WARN, %warning, "pool differs from the request");
        }
    }
}

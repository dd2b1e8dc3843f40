//! A failed allocation with the state of every zone that could have served it.

use std::fmt;

use zonal::Allocator;
use zonal::error::{AllocError, ZoneShortage};

use super::platform::LinuxPlatform;
use super::request::PoolRequest;

/// Why a request failed, and the state of each allowed zone at that moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AllocFailure {
    error: AllocError,
    zones: Box<[ZoneShortage]>,
}

impl AllocFailure {
    #[cold]
    pub(super) fn new(
        allocator: &Allocator<'_, LinuxPlatform>,
        request: &PoolRequest<'_>,
        error: AllocError,
    ) -> Self {
        let mut zones = Vec::new();
        if let AllocError::OutOfMemory(_) = error {
            // The request was resolved a moment ago; if its nodes have gone since, the list stays empty.
            allocator.shortage(request, |zone| zones.push(zone)).ok();
        }
        Self { error, zones: zones.into() }
    }

    /// Returns the allocator's reason.
    #[must_use]
    pub const fn error(&self) -> AllocError {
        self.error
    }

    /// Returns the allowed zones if memory ran out; otherwise the list is empty.
    #[must_use]
    pub fn zones(&self) -> &[ZoneShortage] {
        &self.zones
    }
}

impl fmt::Display for AllocFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)?;
        self.zones.iter().try_for_each(|zone| write!(f, "\n  {zone}"))
    }
}

impl std::error::Error for AllocFailure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

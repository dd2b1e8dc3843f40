//! The error of a failed allocation, with the state of every zone that was allowed to serve the request.

use std::fmt;

use zonal::Allocator;
use zonal::error::{AllocError, ZoneShortage};

use super::platform::LinuxPlatform;
use super::request::PoolRequest;

/// Why a request failed, and the state of each allowed zone just after the failure.
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
            // The allowed nodes of this request had memory a moment ago. If all of it went offline since then,
            // `shortage` returns an error and the list stays empty.
            allocator.shortage(request, |zone| zones.push(zone)).ok();
        }
        Self { error, zones: zones.into() }
    }

    /// Returns the reason that the allocator reported.
    #[must_use]
    pub const fn error(&self) -> AllocError {
        self.error
    }

    /// Returns the state of each allowed zone if memory ran out, or an empty slice for any other failure.
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

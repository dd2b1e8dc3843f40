//! The page allocator of a Linux system, from `/proc` and `/sys`.

use std::path::Path;

use zonal_machine::state::SystemState;

use super::{Source, SourceError};
use crate::sample::Sample;

/// This system, or a captured tree of another one.
///
/// `/proc/zoneinfo` must be readable. What else cannot be read is listed in [`Sample::missing`].
#[derive(Debug)]
pub struct SystemSource(SystemState);

impl SystemSource {
    /// Opens this system.
    #[must_use]
    pub fn live() -> Self {
        Self(SystemState::live())
    }

    /// Opens a tree with `proc` and `sys`, as `zonal machine --sysfs` reads it. Its pages have 4096 bytes.
    #[must_use]
    pub fn tree(root: &Path) -> Self {
        Self(SystemState::tree(root))
    }
}

impl Source for SystemSource {
    fn title(&self) -> String {
        match self.0.root() == Path::new("/") {
            true => "this system".to_owned(),
            false => super::shown(self.0.root()),
        }
    }

    fn read(&mut self) -> Result<Sample, SourceError> {
        Ok(self.0.read()?)
    }
}

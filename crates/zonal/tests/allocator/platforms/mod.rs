//! Platforms that embedders may have.

mod clocks_and_cpus;
mod hostile;
mod pinned_cpus;

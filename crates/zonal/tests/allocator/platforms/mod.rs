//! Tests on the kinds of platforms that embedders may have.

mod clocks_and_cpus;
mod hostile;
mod moved_by_reclaim;
mod pinned_cpus;

//! Tests on the kinds of platforms that embedders may have.

mod clocks_and_cpus;
mod constants;
mod hostile;
mod late_cpus;
mod late_memory;
mod moved_by_reclaim;
mod own_clock;
mod own_cpu_ids;
mod page_sizes;
mod pinned_cpus;
mod recorder;
mod tracepoints;

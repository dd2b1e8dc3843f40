//! The metrics that programs report: their units, and which direction of a change is better.
//!
//! Related files: `experiment/answer.rs` says whether a variant is better.

/// The better direction of a metric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Better {
    /// Larger values are better.
    Higher,
    /// Smaller values are better.
    Lower,
    /// A change is neither better nor worse by itself.
    Neither,
}

/// Returns the better direction of a program's metric, named without the program.
#[must_use]
pub fn better(metric: &str) -> Better {
    known(metric).map_or(Better::Neither, |(_, better)| better)
}

/// Returns the unit of a metric that several programs report in the same unit, and its better direction. `throughput`
/// has another unit in `page-faults`.
pub(super) fn known(metric: &str) -> Option<(&'static str, Better)> {
    use Better::{Higher, Lower, Neither};
    Some(match metric {
        "throughput" | "copy" | "scale" | "add" | "triad" => ("MB/s", Higher),
        "wall" | "min_wall" | "sys" | "user" | "total_cpu" | "real" | "build_time" | "elapsed_s"
        | "download_tar_s" | "dd_source_files_s" | "delete_source_s" => ("s", Lower),
        "zone_lock_contention" | "rmqueue" | "free_unref_page_list" | "lruvec_lock" => ("% of cycles", Lower),
        "cpu_idle" => ("%", Neither),
        "runnable" => ("processes", Neither),
        "alloc_p99" | "free_p99" => ("us", Lower),
        "node" => ("id", Neither),
        "files_per_s_min" | "files_per_s_mean" | "files_per_s_max" => ("files/s", Higher),
        "files_per_s_stddev" => ("files/s", Lower),
        "written_mib_s" => ("MiB/s", Higher),
        "slowest_store_ms" => ("ms", Lower),
        "alloc" | "churn_alloc" => ("ns/page", Lower),
        "nearer" | "churn_local" => ("% of pages", Higher),
        "zone_pages" => ("% of pages", Lower),
        "direct_pages_scanned" | "kswapd_pages_scanned" => ("pages", Lower),
        "direct_pages_reclaimed" | "kswapd_pages_reclaimed" | "pages_dropped_with_files" => {
            ("pages", Neither)
        }
        "page_outs_kib" => ("KiB", Lower),
        _ => return None,
    })
}

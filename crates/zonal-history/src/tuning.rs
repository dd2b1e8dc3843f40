//! The depth rule (M2) as it was first published.

use zonal::rules::pageset_tuning::{PagesetTuning, TuningForm};
use zonal::units::PageCount;

/// `high` may rise to an eighth of the zone, divided among the CPUs on the zone's node, on every CPU. Pagesets cache the
/// orders that Linux caches: 0 to 3, and 2 MiB. Refills and drains move batches. Source: Huang 2023, RFC "alloc/free depth
/// based PCP high auto-tuning".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DepthPublished;

impl TuningForm for DepthPublished {
    fn tuning(&self) -> PagesetTuning {
        PagesetTuning::DepthPublished
    }

    fn smaller_orders(&self) -> u8 {
        4
    }

    // After `high` has fallen, the count approaches it by one batch per drain, unless the zone is being reclaimed.
    fn drain_size(&self, batch: PageCount, excess: Option<PageCount>) -> PageCount {
        batch.max(excess.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drains_are_batches_and_as_large_as_necessary_under_reclaim() {
        let size = |excess: Option<u64>| {
            DepthPublished.drain_size(PageCount::new(63), excess.map(PageCount::new)).get()
        };
        assert_eq!([size(None), size(Some(0)), size(Some(64))], [63, 63, 64]);
    }
}

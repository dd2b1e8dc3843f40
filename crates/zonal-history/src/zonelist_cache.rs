//! Scans with the zonelist cache (M1, M3) of Linux before 4.4, which removed the cache.
//!
//! The walk follows the loop of `get_page_from_freelist` (`mm/page_alloc.c`). Sources: Jackson 2006, Linux 9276b1bc96a1
//! (2.6.20); Gorman 2011, Linux cd38b115d5ad and 76d3fbf8fbf6 (3.1).

use zonal::explain::ReclaimStep;
use zonal::rules::zonelist_cache::{ScanForm, ZonelistCache, ZonelistScan};

/// A past form of the scan, by its mode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PastScan(pub(crate) ZonelistCache);

impl PastScan {
    /// Whether a scan checks the full bits before it reclaims its first zone (the first change of M3).
    fn consults_first(self) -> bool {
        self.0 != ZonelistCache::Original
    }
}

impl ScanForm for PastScan {
    fn zonelist_cache(&self) -> ZonelistCache {
        self.0
    }

    fn walk(&self, scan: &mut dyn ZonelistScan) {
        // Until 3.0, a first zone that the cpuset excludes went to `try_next_zone`, which sets up the cache.
        if !self.consults_first() && scan.begins_outside_cpuset() {
            scan.set_up_cache();
        }
        loop {
            while scan.advance() {
                if scan.try_zone() {
                    return;
                }
                if self.consults_first() {
                    scan.set_up_cache();
                }
                match scan.reclaim_zone() {
                    Some(ReclaimStep::FailedRecently | ReclaimStep::NotTried) => {}
                    // Direct reclaim may free frames that node reclaim must not free. Until 3.0, the bit was set anyway.
                    Some(ReclaimStep::TooFew) if self.consults_first() => {}
                    None | Some(ReclaimStep::TooFew) => scan.mark_full(),
                    Some(_) if scan.try_reclaimed() => return,
                    Some(_) => scan.mark_full(),
                }
                scan.set_up_cache(); // `try_next_zone`
            }
            if !scan.restart_without_cache() {
                return;
            }
        }
    }

    fn reconsiders(&self) -> bool {
        self.0 == ZonelistCache::Published
    }

    // The scan of `Original` may respect the nearest zone's full bit.
    fn tries_nearest(&self) -> bool {
        self.consults_first()
    }

    // In 2.6.20, each binding policy had its own zonelist, which had no cache.
    fn serves_bound(&self) -> bool {
        self.consults_first()
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use ZonelistCache::{CacheFirst, Original, Published};

    use super::*;

    /// A list of one zone that never serves, and the steps of the scan.
    struct Recorded {
        reclaim: Option<ReclaimStep>,
        is_outside: bool,
        is_at_end: bool,
        steps: Vec<&'static str>,
    }

    impl ZonelistScan for Recorded {
        fn begins_outside_cpuset(&mut self) -> bool {
            self.is_outside
        }

        fn set_up_cache(&mut self) {
            self.steps.push("cache");
        }

        fn advance(&mut self) -> bool {
            self.is_at_end = !self.is_at_end;
            self.is_at_end
        }

        fn try_zone(&mut self) -> bool {
            self.steps.push("try");
            false
        }

        fn reclaim_zone(&mut self) -> Option<ReclaimStep> {
            self.steps.push("reclaim");
            self.reclaim
        }

        fn try_reclaimed(&mut self) -> bool {
            self.steps.push("again");
            false
        }

        fn mark_full(&mut self) {
            self.steps.push("mark");
        }

        fn restart_without_cache(&mut self) -> bool {
            self.steps.push("end");
            false
        }
    }

    fn steps(mode: ZonelistCache, reclaim: Option<ReclaimStep>, is_outside: bool) -> Vec<&'static str> {
        let mut scan = Recorded { reclaim, is_outside, is_at_end: false, steps: Vec::new() };
        crate::PAST.scan_form(mode).unwrap().walk(&mut scan);
        scan.steps
    }

    #[test]
    fn the_first_version_reclaims_before_it_sets_up_the_cache() {
        let expected: [(_, &[&str], &[&str]); 6] = [
            (None, &["mark"], &["mark"]),
            (Some(ReclaimStep::FailedRecently), &[], &[]),
            (Some(ReclaimStep::NotTried), &[], &[]),
            (Some(ReclaimStep::TooFew), &["mark"], &[]),
            (Some(ReclaimStep::Nothing), &["again", "mark"], &["again", "mark"]),
            (Some(ReclaimStep::Success), &["again", "mark"], &["again", "mark"]),
        ];
        for (reclaim, original, later) in expected {
            let of_2006 = [&["try", "reclaim"], original, &["cache", "end"]].concat();
            assert_eq!(steps(Original, reclaim, false), of_2006, "{reclaim:?}");
            for mode in [CacheFirst, Published] {
                let of_2011 = [&["try", "cache", "reclaim"], later, &["cache", "end"]].concat();
                assert_eq!(steps(mode, reclaim, false), of_2011, "{mode:?} {reclaim:?}");
                assert_eq!(steps(mode, reclaim, true), of_2011, "{mode:?} {reclaim:?}");
            }
            assert_eq!(steps(Original, reclaim, true), [&["cache"], &of_2006[..]].concat(), "{reclaim:?}");
        }
    }

    #[test]
    fn forms_differ_in_what_else_they_do() {
        let form = |mode| crate::PAST.scan_form(mode).unwrap();
        for (mode, reconsiders, tries_nearest) in
            [(Published, true, true), (CacheFirst, false, true), (Original, false, false)]
        {
            let form = form(mode);
            assert_eq!(form.zonelist_cache(), mode);
            assert_eq!((form.reconsiders(), form.tries_nearest()), (reconsiders, tries_nearest));
            assert_eq!(form.serves_bound(), tries_nearest);
        }
        let present = [ZonelistCache::On, ZonelistCache::Off];
        assert!(present.iter().all(|&mode| crate::PAST.scan_form(mode).is_none()));
    }
}

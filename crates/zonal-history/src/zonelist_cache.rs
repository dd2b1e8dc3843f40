//! Scans with the zonelist cache (M1, M3) of Linux before 4.4, which removed the cache.
//!
//! The walk follows the loop of `get_page_from_freelist` (`mm/page_alloc.c`). Sources: Jackson 2006, Linux 9276b1bc96a1
//! (2.6.20); Gorman 2011, Linux cd38b115d5ad and 76d3fbf8fbf6 (3.1). `docs/experiments/differences.md` says where the
//! forms differ from these kernels.

use zonal::explain::ReclaimStep;
use zonal::rules::zonelist_cache::{ScanForm, ZonelistCache, ZonelistScan};

/// A past form of the scan, by its mode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PastScan(pub(crate) ZonelistCache);

impl PastScan {
    /// Whether a scan checks the full bits before it reclaims its first zone (the first change of M3).
    fn consults_first(self) -> bool {
        !matches!(self.0, ZonelistCache::Original | ZonelistCache::Jackson2006)
    }

    fn is_of_2006(self) -> bool {
        self.0 == ZonelistCache::Jackson2006
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
                // In 2.6.20, the zone served if node reclaim freed enough, and was marked in all other cases.
                match scan.reclaim_zone() {
                    Some(ReclaimStep::FailedRecently) => {}
                    Some(ReclaimStep::NotTried) if !self.is_of_2006() => {}
                    // Direct reclaim may free frames that node reclaim must not free. Until 3.0, the bit was set anyway.
                    Some(ReclaimStep::TooFew) if self.consults_first() => {}
                    None | Some(ReclaimStep::NotTried | ReclaimStep::TooFew) => scan.mark_full(),
                    Some(ReclaimStep::Nothing | ReclaimStep::Some) if self.is_of_2006() => scan.mark_full(),
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

    // Until 3.0, the scan may respect the nearest zone's full bit.
    fn tries_nearest(&self) -> bool {
        self.consults_first()
    }

    // In 2.6.20, each binding policy had its own zonelist, which had no cache, and requests for one node walked the node's
    // fallback list up to its end. Later there was a list for these, again without a cache; scans of one node did not use it.
    fn serves_bound(&self) -> bool {
        !self.is_of_2006()
    }

    fn serves_one_node(&self) -> bool {
        self.is_of_2006()
    }

    // In 2.6.20, a node had a zonelist for each zone limit.
    fn separates_limits(&self) -> bool {
        self.is_of_2006()
    }

    fn trusts_reclaim(&self) -> bool {
        self.is_of_2006()
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use ZonelistCache::{CacheFirst, Jackson2006, Original, Published};

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

    /// What each form does after node reclaim, by its outcome.
    #[test]
    fn forms_follow_the_published_order_of_steps() {
        let expected: [(_, &[&str], &[&str], &[&str]); 7] = [
            (None, &["mark"], &["mark"], &["mark"]),
            (Some(ReclaimStep::FailedRecently), &[], &[], &[]),
            (Some(ReclaimStep::NotTried), &["mark"], &[], &[]),
            (Some(ReclaimStep::TooFew), &["mark"], &["mark"], &[]),
            (Some(ReclaimStep::Nothing), &["mark"], &["again", "mark"], &["again", "mark"]),
            (Some(ReclaimStep::Some), &["mark"], &["again", "mark"], &["again", "mark"]),
            (Some(ReclaimStep::Success), &["again", "mark"], &["again", "mark"], &["again", "mark"]),
        ];
        for (reclaim, of_2006, original, later) in expected {
            for (mode, outcome) in [(Jackson2006, of_2006), (Original, original)] {
                let all = [&["try", "reclaim"], outcome, &["cache", "end"]].concat();
                assert_eq!(steps(mode, reclaim, false), all, "{mode:?} {reclaim:?}");
                assert_eq!(
                    steps(mode, reclaim, true),
                    [&["cache"], &all[..]].concat(),
                    "{mode:?} {reclaim:?}"
                );
            }
            for mode in [CacheFirst, Published] {
                let of_2011 = [&["try", "cache", "reclaim"], later, &["cache", "end"]].concat();
                assert_eq!(steps(mode, reclaim, false), of_2011, "{mode:?} {reclaim:?}");
                assert_eq!(steps(mode, reclaim, true), of_2011, "{mode:?} {reclaim:?}");
            }
        }
    }

    #[test]
    fn forms_differ_in_what_else_they_do() {
        let form = |mode| crate::PAST.scan_form(mode).unwrap();
        for (mode, reconsiders, tries_nearest, is_of_2006) in [
            (Published, true, true, false),
            (CacheFirst, false, true, false),
            (Original, false, false, false),
            (Jackson2006, false, false, true),
        ] {
            let form = form(mode);
            assert_eq!(form.zonelist_cache(), mode);
            assert_eq!((form.reconsiders(), form.tries_nearest()), (reconsiders, tries_nearest));
            assert_eq!((form.serves_bound(), form.serves_one_node()), (!is_of_2006, is_of_2006));
            assert_eq!((form.separates_limits(), form.trusts_reclaim()), (is_of_2006, is_of_2006));
        }
        let present = [ZonelistCache::On, ZonelistCache::Off];
        assert!(present.iter().all(|&mode| crate::PAST.scan_form(mode).is_none()));
    }
}

//! The scans of an explanation: which zones a request would try, read from the state without changing it.
//!
//! They follow the order of `alloc/slow.rs` up to reclaim. Each is a scan of `alloc/scan.rs`, whose steps then change
//! nothing. A test over random states holds them to real requests.

use crate::pageset::state::MachineState;
use crate::platform::Platform;
use crate::platform::steps::{Step, ZoneName};
use crate::request::context::AllocContext;
use crate::rules::watermarks::Watermark;
use crate::zonelist::full_cache::BitsCopy;

impl<P: Platform> MachineState<'_, P> {
    /// Returns the zone that would serve the request without direct reclaim, and reports the steps.
    pub(super) fn walk_lists(&self, context: &AllocContext<'_>) -> Option<ZoneName> {
        let mut copy = BitsCopy::new();
        let mut scan =
            |context: &AllocContext<'_>, watermark| self.explain_scan(context, watermark, &mut copy);
        for watermark in [Watermark::Low, Watermark::Min] {
            let mut places = context.first.iter().filter_map(|&node| self.place_of(node));
            let served = places.find_map(|target| scan(&context.only_from(target), watermark));
            if served.is_some() {
                return served.map(|zone| ZoneName::of(&self.zones[zone.index()]));
            }
        }
        let served = scan(context, Watermark::Low).or_else(|| {
            context.report(Step::BackgroundWoken);
            scan(context, Watermark::Min)
        });
        if served.is_none() {
            if context.may_reclaim {
                context.report(Step::WouldReclaim { has_reclaimable: self.has_reclaimable(context) });
            }
            context.report(Step::PagesetsDrained { frames: self.in_allowed_pagesets(context) });
        }
        served.map(|zone| ZoneName::of(&self.zones[zone.index()]))
    }
}

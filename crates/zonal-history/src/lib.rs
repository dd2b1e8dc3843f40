//! Past forms of zonal's mechanisms, which a program links only if it needs them.
//!
//! A kernel uses the present form of each mechanism. Replays of recorded systems, comparisons and predictions also need
//! the forms that Linux had before, and those that were posted. [`PAST`] has those that an allocator can use:
//!
//! ```
//! use zonal::Config;
//! use zonal::rules::fallback_order::NodeLoad;
//! use zonal_history::{FirstPosting, PAST};
//!
//! let mut config = Config { past: PAST, node_load: NodeLoad::Assign, ..Config::default() };
//! config.counters.threshold = FirstPosting::RULE;
//! config.set("node_load", "remaining")?;
//! config.set("zonelist_cache", "original")?;
//! # Ok::<(), zonal::settings::SettingError>(())
//! ```
//!
//! Related crates: `zonal` has the present forms, and `zonal-model` selects forms by kernel version.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod node_load;
mod stat_threshold;
mod tuning;
mod zonelist_cache;

pub use node_load::{AccumulateRemaining, Assign, load_rule};
pub use stat_threshold::FirstPosting;
pub use tuning::DepthPublished;

use zonal::config::{Past, ZonelistCache};
use zonelist_cache::PastScan;

/// All past forms that an allocator can use, for [`Config::past`](zonal::Config::past).
pub const PAST: Past = Past {
    node_loads: &[&AccumulateRemaining, &Assign],
    scans: &[
        &PastScan(ZonelistCache::Published),
        &PastScan(ZonelistCache::CacheFirst),
        &PastScan(ZonelistCache::Original),
        &PastScan(ZonelistCache::Jackson2006),
    ],
    tuning: Some(&DepthPublished),
};

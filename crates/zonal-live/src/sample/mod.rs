//! What all sources report, and what changed between two samples.
//!
//! Related files: `zonal_machine::state` has the parts of a sample, and `rates.rs` compares two samples.

mod rates;

pub use rates::{LocalityRates, PagesetRates, Rates};
pub use zonal_machine::state::{
    Counter, Locality, Node, Owner, PagesetSample, Pressure, Sample, Totals, ZoneSample,
};

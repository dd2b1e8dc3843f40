//! What a replay by the kernel's rule returns.
//!
//! Related files: `kernel.rs` fills it, `huge.rs` has the figures of 2 MiB pages.

use serde::Serialize;

use super::huge::HugePages;

/// A figure as predicted and as traced.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Debug)]
pub struct Pair {
    /// What the rule predicts.
    pub predicted: u64,
    /// What the kernel did.
    pub traced: u64,
}

impl Pair {
    /// Returns the difference in percent of what was traced, or `None` if nothing was.
    #[must_use]
    pub fn error_percent(&self) -> Option<f64> {
        let difference = self.predicted as f64 - self.traced as f64;
        (self.traced > 0).then(|| difference / self.traced as f64 * 100.0)
    }
}

/// Frames of one CPU.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Debug)]
pub struct CpuPages {
    /// The CPU.
    pub cpu: u32,
    /// Frames that went from zones to pagesets.
    pub refilled: Pair,
    /// Frames that went from pagesets to zones.
    pub drained: Pair,
}

/// What the rule predicts for a trace, beside what the trace has.
#[derive(Clone, PartialEq, Serialize, Debug)]
pub struct KernelReplay {
    /// The kernel's release.
    pub kernel: String,
    /// Frames refilled and drained after the first second, by CPU.
    pub cpus: Vec<CpuPages>,
    /// Where the counts begin.
    pub from_seconds: f64,
    /// The trace's length.
    pub seconds: f64,
    /// The number of events.
    pub events: u64,
    /// Events that are missing in the trace.
    pub lost: u64,
    /// Whether the trace is whole.
    pub is_complete: bool,
    /// What the machine had for 2 MiB pages at the start.
    pub huge_at_start: Option<HugePages>,
    /// What it had at the end.
    pub huge_at_end: Option<HugePages>,
}

//! Node loads (M5) of Linux before 5.18.

use zonal::rules::fallback_order::{LoadRule, NodeLoad};

/// The load increases by the number of online nodes that are not yet in the list: the patch as published. Linux: 5.16 and
/// 5.17. Before 2.6.23 (f0c0b2b8), too, the load increased by this number, says the patch's description.
#[derive(Clone, Copy, Debug)]
pub struct AccumulateRemaining;

/// The load becomes the number of online nodes that are not yet in the list. This discards the load of earlier lists, which
/// was a defect of Linux 2.6.23 to 5.15.
#[derive(Clone, Copy, Debug)]
pub struct Assign;

/// Returns the rule of any node load.
#[must_use]
pub fn load_rule(load: NodeLoad) -> &'static dyn LoadRule {
    crate::PAST.load_rule(load).expect("all forms are linked")
}

impl LoadRule for AccumulateRemaining {
    fn node_load(&self) -> NodeLoad {
        NodeLoad::AccumulateRemaining
    }

    fn after(&self, load: u64, left: u64) -> u64 {
        load.saturating_add(left)
    }

    fn scale(&self, online: u64) -> u64 {
        online.saturating_mul(1024)
    }
}

impl LoadRule for Assign {
    fn node_load(&self) -> NodeLoad {
        NodeLoad::Assign
    }

    fn after(&self, _load: u64, left: u64) -> u64 {
        left
    }

    fn scale(&self, online: u64) -> u64 {
        online.saturating_mul(1024)
    }
}

#[cfg(test)]
mod tests;

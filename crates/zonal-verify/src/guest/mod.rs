//! Checks of pools on a machine with several nodes, designed to run in a virtual machine whose state they may change.
//!
//! Each check uses pools through their public API and compares their reports with those of the kernel: `move_pages` for
//! the node of each page, `/proc/self/smaps` for the size of the pages behind a mapping, and files of `/sys` for CPUs,
//! memory blocks and huge pages. A check on a machine that lacks a prerequisite is *skipped*, with the reason.
//!
//! Related files: `kernel.rs` queries and changes the kernel, `pages.rs` compares the nodes of pages, and `verdict.rs`
//! defines the result of a check. `exhaust.rs` uses up memory for `bin/exhaust.rs`. The other files contain the checks.
//! `bin/guest.rs` runs the checks, in the virtual machine that `cargo xtask numa` boots.

mod cpus;
mod cpusets;
mod exhaust;
mod huge;
mod kernel;
mod load;
mod memory_blocks;
mod pages;
mod pagesets;
mod placement;
mod policies;
mod predictions;
mod reclaim;
mod refusals;
mod shares;
mod verdict;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use exhaust::{Action, exhaust};
pub use verdict::{Found, Verdict};

/// What a check does to the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// The check only allocates memory.
    None,
    /// The check writes settings of the kernel, or takes CPUs or memory offline.
    ChangesTheMachine,
}

/// One check.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Name of the check, as printed and as selected on the command line.
    pub name: &'static str,
    /// Effect of the check on the machine.
    pub effect: Effect,
    run: fn() -> Verdict,
}

impl Check {
    const fn new(name: &'static str, run: fn() -> Verdict) -> Self {
        Self { name, effect: Effect::None, run }
    }

    const fn changing(name: &'static str, run: fn() -> Verdict) -> Self {
        Self { name, effect: Effect::ChangesTheMachine, run }
    }

    /// Runs the check. A panic counts as a failure of the check.
    ///
    /// # Errors
    /// Returns a text that names the condition that does not hold.
    pub fn run(&self) -> Verdict {
        catch_unwind(AssertUnwindSafe(self.run)).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Err(format!("panicked: {}", text.unwrap_or_default()))
        })
    }
}

/// All checks, in the order in which they run.
pub const CHECKS: [Check; 28] = [
    Check::new("placement: every page, ordinary", placement::ordinary_pages),
    Check::new("placement: every page, transparent huge pages", placement::transparent_pages),
    Check::new("placement: every page, shared by processes", placement::shared_pages),
    Check::new("placement: against the policy of the process", placement::process_policy),
    Check::new("policy local", policies::local),
    Check::new("policy preferred", policies::preferred),
    Check::new("policy bind", policies::bind),
    Check::new("policy interleave", policies::interleave),
    Check::new("policy weighted interleave", policies::weighted),
    Check::new("policy with blocks and in bulk", policies::blocks_and_bulk),
    Check::new("cpuset of a request", policies::allowed_nodes),
    Check::new("nodes without memory or without CPUs", placement::odd_nodes),
    Check::new("fallback order of the kernel", placement::fallback_order_of_the_kernel),
    Check::new("binding refused", refusals::binding),
    Check::new("membarrier refused", refusals::membarrier),
    Check::new("refills and drains of the kernel's pagesets", pagesets::predicted),
    Check::changing("pages by node, as simulated", shares::as_simulated),
    Check::new("reclaim of a near node", reclaim::near_node),
    Check::changing("kernel's node reclaim off and on", reclaim::of_the_kernel),
    Check::changing("explicit huge pages", huge::explicit),
    Check::changing("explicit huge pages, reserve used up", huge::exhausted),
    Check::changing("explicit huge pages that are most of a node", huge::most_of_a_node),
    Check::changing("transparent huge pages", huge::transparent),
    Check::changing("CPUs offline and online under load", cpus::under_load),
    Check::changing("a CPU that comes online after the pool was built", cpus::later_than_the_pool),
    Check::changing("memory of a pool offline and online under load", memory_blocks::of_a_pool),
    Check::changing("memory blocks offline and online under load", memory_blocks::of_the_kernel),
    Check::changing("cpuset of the process", cpusets::limited),
];

/// The check of the kernel's own values. It is separate because it must write settings of the kernel.
pub const PREDICTIONS: Check = Check::changing("predictions of the kernel's values", predictions::all_values);

/// Checks pools where the kernel refuses `membarrier` with the error number `error`. The process must not have built a
/// pool before.
///
/// # Errors
/// Returns a text that names the condition that does not hold.
pub fn without_membarrier(error: i32) -> Verdict {
    refusals::without_membarrier(error)
}

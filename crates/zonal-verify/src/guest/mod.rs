//! Checks for a machine with several nodes, made to be run in a virtual machine that may be changed.
//!
//! Each check uses pools through their public API and compares what they say with what the kernel says:
//! `move_pages` for where each page lies, `/proc/self/smaps` for what backs it, files of `/sys` for CPUs,
//! memory blocks and huge pages. A check that needs something the machine lacks is *skipped* with the reason.
//! Neighbours: `kernel.rs` queries and changes the kernel, `pages.rs` compares places, `verdict.rs` has the
//! result of a check, the other files hold the checks; `bin/guest.rs` runs them, `cargo xtask numa` boots the machine.

mod cpus;
mod cpusets;
mod huge;
mod kernel;
mod load;
mod memory_blocks;
mod pages;
mod placement;
mod policies;
mod predictions;
mod reclaim;
mod refusals;
mod verdict;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use verdict::{Found, Verdict};

/// What a check does to the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// It only allocates memory.
    None,
    /// It writes settings of the kernel, or takes CPUs or memory offline.
    ChangesTheMachine,
}

/// One check.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Its name, as printed and as selected.
    pub name: &'static str,
    /// What it does to the machine.
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

    /// Runs the check; a panic is a check that does not hold.
    ///
    /// # Errors
    /// What does not hold.
    pub fn run(&self) -> Verdict {
        catch_unwind(AssertUnwindSafe(self.run)).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Err(format!("panicked: {}", text.unwrap_or_default()))
        })
    }
}

/// All checks, in the order in which they are run.
pub const CHECKS: [Check; 25] = [
    Check::new("placement: every page, ordinary", placement::ordinary_pages),
    Check::new("placement: every page, transparent huge pages", placement::transparent_pages),
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

/// The checks of the kernel's own values, which need settings to be written.
pub const PREDICTIONS: Check = Check::changing("predictions of the kernel's values", predictions::all_values);

/// Checks what holds where `membarrier` is refused with the error number `error`, in a process that has built no
/// pool yet.
///
/// # Errors
/// What does not hold.
pub fn without_membarrier(error: i32) -> Verdict {
    refusals::without_membarrier(error)
}

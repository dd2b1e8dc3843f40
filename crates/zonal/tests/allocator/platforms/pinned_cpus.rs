//! Tests of pinned access on machines with several CPUs, which needs a [`Quiesce`] that reaches them.
//!
//! The tests of `zonal-conformance` run the platform of `examples/embed`.

use crate::common::access::Way;
use crate::common::scenarios::TestAllocator;
use crate::common::{Plan, TestPlatform, run_on};
use zonal::error::ConfigError;
use zonal::platform::cpu_local::{OneCpu, Quiesce};
use zonal::{Config, Request};

/// Builds an allocator for two nodes whose CPUs cannot reach each other. The first node has CPU 0, and the second has
/// all other CPUs.
fn build(cpus: u32) -> Result<TestAllocator, ConfigError> {
    run_on(0);
    let mut plan = Plan::even(2, 0, 1 << 14).accessed(Way::Alone);
    plan.nodes[0].1.push(0);
    plan.nodes[1].1.extend(1..cpus);
    plan.try_build(&Config::default(), TestPlatform::new(plan.controls()))
}

#[test]
fn a_platform_without_remote_drains_is_refused_on_several_cpus() {
    for cpus in [2, 3, 64] {
        let error = build(cpus).err().unwrap();
        assert_eq!(error, ConfigError::UnreachableCpus(cpus as usize));
        let text = error.to_string();
        assert!(text.contains(&format!("{cpus} CPUs")) && text.contains("Quiesce"), "{text}");
    }
    let alone = build(1).unwrap();
    let block = alone.alloc(&Request::page()).unwrap();
    alone.free(block.first, block.order).unwrap();
    alone.drain_pagesets();
    alone.verify().unwrap();
    assert!(!OneCpu.reaches_other_cpus());
}

//! Tests of threads that act as CPUs in a pool's machine, and of the machines on which they may.

mod common;

use common::area_offset;
use zonal::units::{CpuId, ZoneKind};
use zonal_linux::{NodeId, Pool, PoolRequest, Topology, TopologyNode, ZoneShare};

const MIB: u64 = 1 << 20;

fn node(id: u16) -> NodeId {
    NodeId::new(id).unwrap()
}

#[test]
fn threads_act_as_cpus_of_emulated_nodes() {
    let describe = |id: u16, cpu: u32, kinds: &[ZoneKind]| TopologyNode {
        id: node(id),
        cpus: vec![CpuId::new(cpu)],
        distances: if id == 0 { vec![10, 20] } else { vec![20, 10] },
        zones: kinds.iter().map(|&kind| ZoneShare { kind, weight: 1 }).collect(),
    };
    let nodes = vec![
        describe(0, 10, &[ZoneKind::Dma32, ZoneKind::Normal]),
        describe(4, 11, &[ZoneKind::Normal, ZoneKind::Movable]),
    ];
    let topology = Topology::emulated(nodes).unwrap();
    let pool = Pool::builder().size(64 * MIB).topology(topology).build().unwrap();
    assert_eq!(pool.ranges().count(), 4);
    for (cpu, nearest) in [(10, 0), (11, 4)] {
        let _acting = pool.act_as(CpuId::new(cpu)).unwrap();
        let frames = pool.alloc(&PoolRequest::page()).unwrap();
        assert_eq!(frames.node(), node(nearest));
    }
    assert!(pool.act_as(CpuId::new(0)).is_err());
    let bound = pool.bind([node(4)].into_iter().collect()).unwrap();
    let _acting = pool.act_as(CpuId::new(10)).unwrap();
    let frames = pool.alloc(&PoolRequest::page().policy(&bound)).unwrap();
    assert_eq!(frames.node(), node(4));
}

/// Each way to choose the machine of a pool, with each way to choose how it accesses pagesets.
#[test]
fn threads_act_as_cpus_only_where_no_sequences_run() {
    let sequences = Pool::builder().size(8 * MIB).build().unwrap().uses_sequences();
    let described = TopologyNode {
        id: node(0),
        cpus: vec![CpuId::new(0)],
        distances: vec![10],
        zones: vec![ZoneShare { kind: ZoneKind::Normal, weight: 1 }],
    };
    let model = zonal_machine::preset("quad-10-12-32").unwrap();
    let with = |topology: Topology| Pool::builder().topology(topology);
    let machines = [
        ("live", Pool::builder(), false),
        ("live, as a value", with(Topology::live()), false),
        ("live, emulated CPUs", with(Topology::live().with_emulated_cpus()), true),
        ("fake nodes", Pool::builder().fake_nodes(4), false),
        ("fake nodes, as a value", with(Topology::fake(4).unwrap()), false),
        ("fake nodes, emulated CPUs", with(Topology::fake(4).unwrap().with_emulated_cpus()), true),
        ("described", with(Topology::emulated(vec![described]).unwrap()), true),
        ("described by a model", Pool::builder().machine(&model).unwrap(), true),
    ];
    for (what, builder, may_act) in machines {
        let builder = builder.size(64 * MIB);
        let mut pools = vec![
            (builder.clone().build().unwrap(), true),
            (builder.clone().without_sequences().build().unwrap(), false),
        ];
        if let Some(offset) = area_offset().filter(|_| sequences) {
            // SAFETY: these are the areas that sequences use by default, and all threads have registered theirs.
            pools.push((unsafe { builder.assume_area(offset) }.build().unwrap(), true));
        }
        for (pool, is_allowed) in pools {
            assert_eq!(pool.uses_sequences(), sequences && is_allowed && !may_act, "{what}");
            let cpu = pool.topology().nodes().iter().find_map(|node| node.cpus.first()).copied().unwrap();
            assert_eq!(pool.act_as(cpu).is_ok(), may_act, "{what}");
            assert_eq!(pool.topology().has_emulated_cpus(), may_act, "{what}");
            let near = pool.alloc(&PoolRequest::page()).unwrap().node();
            assert!(may_act || pool.topology().nodes().iter().any(|of| of.id == near && !of.cpus.is_empty()));
        }
    }
    let error =
        Pool::builder().size(8 * MIB).fake_nodes(2).build().unwrap().act_as(CpuId::new(0)).unwrap_err();
    assert!(error.to_string().contains("Topology::with_emulated_cpus"), "{error}");
}

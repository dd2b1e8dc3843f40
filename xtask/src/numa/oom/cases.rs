//! The table of cases: what is requested, in which state of the machine, and what refuses the request.
//!
//! Requests of a process are single movable pages. Requests with a zone limit, an order or no permission to wait are made
//! by the kernel module, whose commands begin with `request=`. Related files: `script.rs` defines the functions that the
//! cases use, and `guest/exhaust.rs` of `zonal-verify` the actions.

use super::machines::Machine;

/// A case.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) name: &'static str,
    /// The commands of the guest, which make requests until one is refused.
    pub(super) body: &'static str,
    /// A text that the kernel's log must have.
    pub(super) log: &'static str,
    /// The request that is refused.
    pub(super) requested: &'static str,
    /// The reason that an explanation of the log must find.
    pub(super) expected: &'static str,
}

const FAILURE: &str = "page allocation failure: ";

impl Case {
    const fn new(
        name: &'static str,
        body: &'static str,
        log: &'static str,
        requested: &'static str,
        expected: &'static str,
    ) -> Self {
        Self { name, body, log, requested, expected }
    }

    /// Whether the kernel module makes requests.
    pub(super) fn needs_requester(&self) -> bool {
        self.body.contains("request=") || self.body.contains("$FILL")
    }

    /// Whether the request fails without a kill.
    pub(super) fn is_failure(&self) -> bool {
        self.log.starts_with(FAILURE)
    }
}

/// The cases by machine, in the order in which they run. Page blocks that unmovable requests have taken stay behind, so
/// the cases that need an unused machine come first.
pub(super) const GROUPS: [(Machine, &[Case]); 3] =
    [(Machine::FourNodes, FOUR_NODES), (Machine::Movable, MOVABLE), (Machine::OneNode, ONE_NODE)];

const POLICY: &str = "constraint=CONSTRAINT_MEMORY_POLICY";
const CPUSET: &str = "constraint=CONSTRAINT_CPUSET";
const CGROUP: &str = "constraint=CONSTRAINT_MEMCG";
const NONE: &str = "constraint=CONSTRAINT_NONE";

const FOUR_NODES: &[Case] = &[
    Case::new(
        "from-boot",
        "BEFORE=/tmp/boot; victim policy=bind:1 touch=2000",
        POLICY,
        "page of a process; policy bind:1; the log begins with the boot",
        "zone Normal of node 1 is at min; nodes 0, 2 and 3 are nearly all free and forbidden by the policy",
    ),
    Case::new(
        "highatomic-reserve",
        "victim touch=64 'request=fill order=3 gfp=GFP_KERNEL|__GFP_NORETRY' 'request=alloc order=3 count=40 gfp=GFP_ATOMIC|__GFP_NOWARN' request=free 'request=alloc count=1000000 gfp=GFP_KERNEL|__GFP_NORETRY' request=free",
        "page allocation failure: order:0",
        "GFP_KERNEL|__GFP_NORETRY, order 0, after GFP_ATOMIC blocks of order 3 that reserved page blocks",
        "free memory without reserved_highatomic is at min in every zone; in some, all free memory is above",
    ),
    Case::new(
        "bind",
        "victim policy=bind:1 touch=2000",
        POLICY,
        "page of a process; policy bind:1",
        "zone Normal of node 1 is at min; nodes 0, 2 and 3 are nearly all free and forbidden by the policy",
    ),
    Case::new(
        "bind-two",
        "victim policy=bind:1,3 touch=2000",
        POLICY,
        "page of a process; policy bind:1,3",
        "zones Normal of nodes 1 and 3 are at min; nodes 0 and 2 are forbidden by the policy",
    ),
    Case::new(
        "bind-low-zones",
        "victim policy=bind:0 touch=2000",
        POLICY,
        "page of a process; policy bind:0",
        "node 0: Normal is at min, DMA32 and DMA at min and lowmem_reserve; the others are forbidden by the policy",
    ),
    Case::new(
        "cpuset",
        "group case cpuset.mems 2; victim_in case touch=2000",
        CPUSET,
        "page of a process; cpuset.mems 2",
        "zone Normal of node 2 is at min; the others are forbidden by the cpuset",
    ),
    Case::new(
        "cpuset-and-bind",
        "group case cpuset.mems 1-2; victim_in case policy=bind:2-3 touch=2000",
        POLICY,
        "page of a process; cpuset.mems 1-2 and policy bind:2-3",
        "zone Normal of node 2 is at min; cpuset and policy together allow only node 2",
    ),
    Case::new(
        "interleave",
        "victim policy=interleave:1,3 touch=2000",
        NONE,
        "page of a process; policy interleave:1,3",
        "interleaving falls back on all nodes: every zone of every node refuses",
    ),
    Case::new(
        "preferred",
        "victim policy=preferred:3 touch=2000",
        NONE,
        "page of a process; policy preferred:3",
        "a preferred node falls back on all nodes: every zone of every node refuses",
    ),
    Case::new(
        "preferred-many",
        "victim policy=preferred-many:1-2 touch=2000",
        NONE,
        "page of a process; policy preferred-many:1-2",
        "preferred nodes fall back on all nodes: every zone of every node refuses",
    ),
    Case::new(
        "no-policy",
        "victim touch=2000",
        NONE,
        "page of a process; no policy",
        "no constraint: every zone of every node refuses",
    ),
    Case::new(
        "full-beside-free",
        "holder score=0 policy=bind:2 touch=190; victim policy=bind:2 touch=2000",
        POLICY,
        "page of a process; policy bind:2; another process has filled node 2",
        "zone Normal of node 2 is at min; the killed process holds little of it; nodes 0, 1 and 3 are free and forbidden by the policy",
    ),
    Case::new(
        "dma32-limit",
        "victim touch=64 'request=alloc count=1000000 gfp=GFP_KERNEL|GFP_DMA32' request=free",
        "page allocation failure: order:0",
        "GFP_KERNEL|GFP_DMA32, order 0",
        "no kill for a limit below Normal; DMA32 of node 0 is at min, DMA at min and lowmem_reserve; zones Normal are free and above the limit",
    ),
    Case::new(
        "memcg",
        "group case memory.max 64M; victim_in case touch=200",
        CGROUP,
        "page of a process; cgroup with memory.max 64M",
        "limit of a cgroup: no zone refuses",
    ),
    Case::new(
        "memcg-then-bind",
        "group case memory.max 64M; victim_in case touch=200; victim policy=bind:1 touch=2000",
        CGROUP,
        "first page of a process in a cgroup with memory.max 64M, then page of a process with policy bind:1",
        "two reports: a limit of a cgroup, for which no zone refuses; then zone Normal of node 1 at min",
    ),
    Case::new(
        "kernel-page",
        "victim touch=64 'request=alloc count=1000000 gfp=GFP_KERNEL'",
        NONE,
        "GFP_KERNEL, order 0",
        "no constraint: every zone of every node refuses",
    ),
    Case::new(
        "request-nodes",
        "victim touch=64 'request=alloc count=1000000 gfp=GFP_KERNEL nodes=4'",
        POLICY,
        "GFP_KERNEL, order 0, with a node mask of node 2",
        "zone Normal of node 2 is at min; the others are outside the mask of the request",
    ),
    Case::new(
        "this-node",
        "victim touch=64 'request=alloc count=1000000 gfp=GFP_KERNEL|__GFP_THISNODE node=2' request=free",
        "page allocation failure: order:0",
        "GFP_KERNEL|__GFP_THISNODE, order 0, node 2",
        "no kill for __GFP_THISNODE; zone Normal of node 2 is at min; the others are not in the zonelist",
    ),
    Case::new(
        "order-3-kill",
        r#"victim touch=16 "$FILL" 'request=thin 3' 'request=alloc order=3 count=100000 gfp=GFP_KERNEL'"#,
        "order=3",
        "GFP_KERNEL, order 3; memory is fragmented into blocks below order 3",
        "kill; much is free, but no zone has a free block of order 3",
    ),
    Case::new(
        "order-2-kill",
        r#"victim touch=16 "$FILL" 'request=thin 2' 'request=alloc order=2 count=100000 gfp=GFP_KERNEL'"#,
        "order=2",
        "GFP_KERNEL, order 2; memory is fragmented into blocks below order 2",
        "kill; much is free, but no zone has a free block of order 2",
    ),
    Case::new(
        "order-3-failure",
        r#"victim touch=16 "$FILL" 'request=thin 3' 'request=alloc order=3 count=100000 gfp=GFP_KERNEL|__GFP_NORETRY' request=free"#,
        "page allocation failure: order:3",
        "GFP_KERNEL|__GFP_NORETRY, order 3; memory is fragmented into blocks below order 3",
        "no kill for __GFP_NORETRY; much is free, but no zone has a free block of order 3",
    ),
    Case::new(
        "order-9-failure",
        r#"victim touch=16 "$FILL" 'request=thin 3' 'request=alloc order=9 count=1000 gfp=GFP_KERNEL' request=free"#,
        "page allocation failure: order:9",
        "GFP_KERNEL, order 9; memory is fragmented into blocks below order 3",
        "no kill above order 3; much is free, but no zone has a free block of order 9",
    ),
    Case::new(
        "min-free",
        "echo 65536 > $VM/min_free_kbytes; victim policy=bind:1 touch=2000",
        POLICY,
        "page of a process; policy bind:1; min_free_kbytes 65536",
        "zone Normal of node 1 is at min, which the setting has raised",
    ),
    Case::new(
        "lowmem-reserve",
        "echo '256 2 32 0 0' > $VM/lowmem_reserve_ratio; victim touch=2000",
        NONE,
        "page of a process; no policy; lowmem_reserve_ratio 256 2 32 0 0",
        "every zone refuses; DMA32 of node 0 has much free memory behind its lowmem_reserve",
    ),
    Case::new(
        "watermark-scale",
        "echo 500 > $VM/watermark_scale_factor; victim policy=bind:1 touch=2000",
        POLICY,
        "page of a process; policy bind:1; watermark_scale_factor 500",
        "zone Normal of node 1 is at min; low and high are far above",
    ),
    Case::new(
        "dma-limit",
        "victim touch=64 'request=alloc count=1000000 gfp=GFP_KERNEL|GFP_DMA' request=free",
        "page allocation failure: order:0",
        "GFP_KERNEL|GFP_DMA, order 0",
        "no kill for a limit below Normal; DMA of node 0 is at min; the others are above the limit",
    ),
    Case::new(
        "atomic-page",
        r#"victim touch=64 "$FILL" 'request=alloc count=1000000 gfp=GFP_ATOMIC' request=free"#,
        "page allocation failure: order:0",
        "GFP_ATOMIC, order 0; a page of the process follows while memory is used up",
        "failure: every zone is at the reduced mark of GFP_ATOMIC; then a kill with no constraint may follow",
    ),
    Case::new(
        "atomic-order-4",
        r#"victim touch=64 "$FILL" 'request=thin 4' 'request=alloc order=4 count=10000 gfp=GFP_ATOMIC' request=free"#,
        "page allocation failure: order:4",
        "GFP_ATOMIC, order 4; memory is fragmented into blocks below order 4",
        "much is free, but no zone has a free block of order 4",
    ),
    Case::new(
        "retry-may-fail",
        "victim touch=64 'request=alloc count=1000000 gfp=GFP_KERNEL|__GFP_RETRY_MAYFAIL' request=free",
        "page allocation failure: order:0",
        "GFP_KERNEL|__GFP_RETRY_MAYFAIL, order 0",
        "no kill for __GFP_RETRY_MAYFAIL; every zone refuses",
    ),
    Case::new(
        "watermark-boost",
        "victim touch=700 'request=alloc count=1000000 gfp=GFP_KERNEL|__GFP_NORETRY' request=free",
        "page allocation failure: order:0",
        "GFP_KERNEL|__GFP_NORETRY, order 0; unmovable requests take page blocks of movable pages",
        "min is boosted in some zones; every zone refuses",
    ),
    Case::new(
        "atomic-this-node",
        "victim touch=64 'request=alloc count=1000000 gfp=GFP_ATOMIC|__GFP_THISNODE node=3' request=free",
        "page allocation failure: order:0",
        "GFP_ATOMIC|__GFP_THISNODE, order 0, node 3",
        "zone Normal of node 3 is at the reduced mark of GFP_ATOMIC; the others are not in the zonelist",
    ),
    Case::new(
        "no-zone",
        "victim touch=64 'request=alloc gfp=GFP_KERNEL|GFP_DMA32|__GFP_THISNODE node=2' request=free",
        "page allocation failure: order:0",
        "GFP_KERNEL|GFP_DMA32|__GFP_THISNODE, order 0, node 2",
        "no zone refuses: node 2 has no zone below the limit",
    ),
    Case::new(
        "atomic-dma32",
        "victim touch=64 'request=alloc count=1000000 gfp=GFP_ATOMIC|GFP_DMA32' request=free",
        "page allocation failure: order:0",
        "GFP_ATOMIC|GFP_DMA32, order 0",
        "DMA32 and DMA of node 0 are at the reduced mark of GFP_ATOMIC; zones Normal are free and above the limit",
    ),
    Case::new(
        "high-priority-page",
        r#"victim touch=64 "$FILL" 'request=alloc count=1000000 gfp=GFP_KERNEL|__GFP_HIGH|__GFP_NORETRY' request=free"#,
        "page allocation failure: order:0",
        "GFP_KERNEL|__GFP_HIGH|__GFP_NORETRY, order 0; a page of the process follows while memory is used up",
        "failure: every zone is at the reduced mark of __GFP_HIGH; then a kill with no constraint may follow",
    ),
    Case::new(
        "tmpfs",
        "dd if=/dev/zero of=/run/file bs=1M count=600 2> /dev/null; victim touch=2000",
        NONE,
        "page of a process; no policy; files of 600 MiB in a tmpfs",
        "every zone of every node refuses; shared memory holds most",
    ),
    Case::new(
        "huge-pages",
        "echo 90 > /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages; victim policy=bind:1 touch=2000",
        POLICY,
        "page of a process; policy bind:1; 90 huge pages of node 1 are reserved",
        "zone Normal of node 1 is at min; reserved huge pages hold most",
    ),
    Case::new(
        "requested-by-sysrq",
        "holder score=1000 touch=50; echo f > /proc/sysrq-trigger",
        "order=-1",
        "none: a kill by sysrq",
        "nothing was refused",
    ),
    Case::new(
        "two-kills",
        "victim policy=bind:1 touch=2000; sleep 1; group case cpuset.mems 3; victim_in case touch=2000",
        CPUSET,
        "first page of a process with policy bind:1, then page of a process with cpuset.mems 3",
        "two reports: zone Normal of node 1, then zone Normal of node 3",
    ),
    Case::new(
        "memcg-group",
        "group case memory.max 64M; echo 1 > /sys/fs/cgroup/case/memory.oom.group; victim_in case touch=200",
        CGROUP,
        "page of a process; cgroup with memory.max 64M and memory.oom.group",
        "limit of a cgroup: no zone refuses",
    ),
    Case::new(
        "memcg-within-cpuset",
        "group case memory.max 64M; group case cpuset.mems 1; victim_in case policy=bind:1 touch=200",
        CGROUP,
        "page of a process; cgroup with memory.max 64M and cpuset.mems 1; policy bind:1",
        "limit of a cgroup: no zone refuses",
    ),
    Case::new(
        "kernel-page-near-node",
        "victim touch=64 'request=alloc count=1000000 gfp=GFP_KERNEL node=3'",
        NONE,
        "GFP_KERNEL, order 0, preferred node 3",
        "no constraint: every zone of every node refuses",
    ),
    Case::new(
        "cpuset-user-page",
        "group case cpuset.mems 2; victim_in case touch=64 'request=alloc count=1000000 gfp=GFP_USER'",
        CPUSET,
        "GFP_USER, order 0; cpuset.mems 2",
        "zone Normal of node 2 is at min; the others are forbidden by the cpuset",
    ),
    Case::new(
        "cpuset-kernel-page",
        "group case cpuset.mems 2; victim_in case touch=64 'request=alloc count=1000000 gfp=GFP_KERNEL'",
        "order=0",
        "GFP_KERNEL, order 0; cpuset.mems 2",
        "a request without __GFP_HARDWALL may leave the cpuset: every zone of every node refuses, but only node 2 is printed",
    ),
    Case::new(
        "cpuset-atomic",
        "group case cpuset.mems 2; victim_in case touch=64 'request=alloc count=1000000 gfp=GFP_ATOMIC' request=free",
        "page allocation failure: order:0",
        "GFP_ATOMIC, order 0; cpuset.mems 2",
        "a request that may not wait ignores the cpuset: every zone of every node is at the reduced mark of GFP_ATOMIC",
    ),
    Case::new(
        "policy-kernel-page",
        "victim policy=bind:1 touch=64 'request=alloc count=1000000 gfp=GFP_KERNEL'",
        POLICY,
        "GFP_KERNEL, order 0; policy bind:1",
        "zone Normal of node 1 is at min; the policy also holds for requests of the kernel in the process",
    ),
    Case::new(
        "policy-dma32",
        "victim policy=bind:1 touch=64 'request=alloc count=1000000 gfp=GFP_KERNEL|GFP_DMA32' request=free",
        "page allocation failure: order:0",
        "GFP_KERNEL|GFP_DMA32, order 0; policy bind:1",
        "a policy does not hold below zone Normal: DMA32 of node 0 is at min, DMA at min and lowmem_reserve",
    ),
    Case::new(
        "allocating-task",
        "echo 1 > $VM/oom_kill_allocating_task; victim policy=bind:1 touch=2000; echo 0 > $VM/oom_kill_allocating_task",
        POLICY,
        "page of a process; policy bind:1; oom_kill_allocating_task 1",
        "zone Normal of node 1 is at min; the killed process is the one that requested",
    ),
    Case::new(
        "no-task-table",
        "echo 0 > $VM/oom_dump_tasks; victim policy=bind:1 touch=2000; echo 1 > $VM/oom_dump_tasks",
        POLICY,
        "page of a process; policy bind:1; oom_dump_tasks 0",
        "zone Normal of node 1 is at min; the log has no table of tasks",
    ),
];

const MOVABLE: &[Case] = &[
    Case::new(
        "movable-no-policy",
        "victim touch=2000",
        NONE,
        "page of a process; no policy; kernelcore=640M",
        "no constraint: every zone of every node refuses",
    ),
    Case::new(
        "movable-bind",
        "victim policy=bind:2 touch=2000",
        POLICY,
        "page of a process; policy bind:2; kernelcore=640M",
        "zones Movable and Normal of node 2 refuse; the others are forbidden by the policy",
    ),
    Case::new(
        "movable-kernel-page",
        "victim touch=64 'request=alloc count=1000000 gfp=GFP_KERNEL'",
        NONE,
        "GFP_KERNEL, order 0; kernelcore=640M",
        "zones up to Normal refuse; zones Movable are free and above the limit",
    ),
    Case::new(
        "movable-high-user",
        "victim touch=64 'request=alloc count=1000000 gfp=GFP_HIGHUSER'",
        NONE,
        "GFP_HIGHUSER without __GFP_MOVABLE, order 0; kernelcore=640M",
        "zones up to Normal refuse; zones Movable are free and above the limit",
    ),
    Case::new(
        "movable-kernel-nodes",
        "victim touch=64 'request=alloc count=1000000 gfp=GFP_KERNEL nodes=4'",
        POLICY,
        "GFP_KERNEL, order 0, with a node mask of node 2; kernelcore=640M",
        "zone Normal of node 2 refuses; its zone Movable is free and above the limit",
    ),
    Case::new(
        "movable-order-9",
        r#"victim touch=16 "$FILL" 'request=thin 3' 'request=alloc order=9 count=1000 gfp=GFP_KERNEL' request=free"#,
        "page allocation failure: order:9",
        "GFP_KERNEL, order 9; kernelcore=640M; the other zones are fragmented",
        "no zone up to Normal has a free block of order 9; zones Movable have some and are above the limit",
    ),
    Case::new(
        "movable-this-node",
        "victim touch=64 'request=alloc count=1000000 gfp=GFP_KERNEL|__GFP_THISNODE node=2' request=free",
        "page allocation failure: order:0",
        "GFP_KERNEL|__GFP_THISNODE, order 0, node 2; kernelcore=640M",
        "no kill for __GFP_THISNODE; zone Normal of node 2 is at min; its zone Movable is above the limit",
    ),
    Case::new(
        "movable-atomic",
        "victim touch=64 'request=alloc count=1000000 gfp=GFP_ATOMIC' request=free",
        "page allocation failure: order:0",
        "GFP_ATOMIC, order 0; kernelcore=640M",
        "zones up to Normal are at the reduced mark of GFP_ATOMIC; zones Movable are above the limit",
    ),
];

const ONE_NODE: &[Case] = &[
    Case::new(
        "one-node-no-policy",
        "victim touch=2000",
        NONE,
        "page of a process; one node",
        "DMA32 is at min, DMA at min and lowmem_reserve",
    ),
    Case::new(
        "one-node-memcg",
        "group case memory.max 64M; victim_in case touch=200",
        CGROUP,
        "page of a process; one node; cgroup with memory.max 64M",
        "limit of a cgroup: no zone refuses",
    ),
    Case::new(
        "one-node-order-3-kill",
        r#"victim touch=16 "$FILL" 'request=thin 3' 'request=alloc order=3 count=100000 gfp=GFP_KERNEL'"#,
        "order=3",
        "GFP_KERNEL, order 3; one node; memory is fragmented into blocks below order 3",
        "kill; much is free, but no zone has a free block of order 3",
    ),
    Case::new(
        "one-node-atomic",
        "victim touch=64 'request=alloc count=1000000 gfp=GFP_ATOMIC' request=free",
        "page allocation failure: order:0",
        "GFP_ATOMIC, order 0; one node",
        "DMA32 and DMA are at the reduced mark of GFP_ATOMIC",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_fit_into_a_table() {
        let cases: Vec<&Case> = GROUPS.iter().flat_map(|(_, cases)| *cases).collect();
        let names: std::collections::BTreeSet<&str> = cases.iter().map(|case| case.name).collect();
        assert_eq!(names.len(), cases.len());
        for case in cases {
            assert!(case.name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'));
            assert!(![case.requested, case.expected].iter().any(|text| text.contains(['\t', '\n'])));
        }
    }

    #[test]
    fn failures_and_the_module_are_recognised() {
        let of = |name: &str| FOUR_NODES.iter().find(|case| case.name == name).unwrap();
        assert!(of("order-9-failure").is_failure() && !of("order-3-kill").is_failure());
        assert!(of("order-3-kill").needs_requester() && !of("bind").needs_requester());
    }
}

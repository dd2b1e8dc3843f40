//! The machines that QEMU emulates for the kernel. Hardware virtualisation is not used.

use std::path::Path;
use std::process::{Command, Stdio};

const QEMU: &str = "qemu-system-x86_64";
/// Exit status of QEMU after the kernel has passed. The kernel defines it.
pub(super) const PASSED: i32 = 33;

/// A machine.
#[derive(Debug)]
pub(super) struct Shape {
    pub(super) nodes: usize,
    pub(super) cpus: usize,
    /// Memory of each node, in MiB.
    mib: usize,
}

/// All machines, the largest last.
pub(super) const MACHINES: [Shape; 3] = [
    Shape { nodes: 1, cpus: 2, mib: 1024 },
    Shape { nodes: 2, cpus: 4, mib: 768 },
    Shape { nodes: 4, cpus: 4, mib: 512 },
];

/// The machine for comparisons with Linux.
pub(super) const COMPARED: Shape = Shape { nodes: 2, cpus: 2, mib: 4096 };

/// Distance of each node pair, the lower node first.
const DISTANCES: [(usize, usize, u8); 6] =
    [(0, 1, 12), (0, 2, 20), (0, 3, 22), (1, 2, 22), (1, 3, 24), (2, 3, 12)];

/// Returns a tool that is missing, and how to install it.
pub(super) fn missing_tool() -> Option<String> {
    let there = Command::new(QEMU).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    match there {
        Ok(status) if status.success() => None,
        _ => Some(format!("no {QEMU} (apt-get install qemu-system-x86)")),
    }
}

/// Returns the command that boots the kernel on a machine. `options` is the kernel's command line, and `threads` says whether
/// QEMU emulates the CPUs on one thread (`single`) or on several (`multi`).
pub(super) fn boot(kernel: &Path, shape: &Shape, options: &str, threads: &str) -> Command {
    let mut command = Command::new(QEMU);
    command.args(["-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio", "-monitor", "none"]);
    command.arg("-accel").arg(format!("tcg,thread={threads}")).args(["-cpu", "max", "-machine", "q35"]);
    command.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=0x04"]);
    command.arg("-m").arg(format!("{}M", shape.nodes * shape.mib));
    command.arg("-smp").arg(format!("{0},sockets={0}", shape.cpus));
    let cpus_of_a_node = shape.cpus / shape.nodes;
    for node in 0..shape.nodes {
        let (first, last) = (node * cpus_of_a_node, (node + 1) * cpus_of_a_node - 1);
        command.arg("-object").arg(format!("memory-backend-ram,id=m{node},size={}M", shape.mib));
        command.arg("-numa").arg(format!("node,nodeid={node},memdev=m{node},cpus={first}-{last}"));
    }
    for (from, to, distance) in DISTANCES.into_iter().filter(|&(_, to, _)| to < shape.nodes) {
        command.arg("-numa").arg(format!("dist,src={from},dst={to},val={distance}"));
    }
    command.arg("-kernel").arg(kernel).arg("-append").arg(options);
    command
}

//! The machines that QEMU emulates for guests.
//!
//! Hardware virtualisation is not used, and guests for x86-64 are emulated on one host thread. QEMU before 8.1 can run
//! code that another processor has just patched. Kernels then stop at one of their own breakpoints, as observed in one
//! boot of six.

use std::path::Path;
use std::process::{Command, Stdio};

use super::kernels::{Arch, Image};

/// A node of a machine.
pub(super) struct Node {
    /// Memory at boot in MiB, if any.
    pub(super) mib: Option<u32>,
    /// First and last CPU, if any.
    pub(super) cpus: Option<(u32, u32)>,
}

/// The distance of a node pair. The lower node is first.
pub(super) type Distance = (usize, usize, u32);

/// Five nodes: two nodes near each other, one far away, a node without memory near the far one, and a node without
/// CPUs. The last node gets additional memory of [`MODULE_MIB`].
const NODES: [Node; 5] = [
    Node { mib: Some(768), cpus: Some((0, 1)) },
    Node { mib: Some(640), cpus: Some((2, 3)) },
    Node { mib: Some(640), cpus: Some((4, 5)) },
    Node { mib: None, cpus: Some((6, 7)) },
    Node { mib: Some(512), cpus: None },
];

/// The first two nodes of [`NODES`] with more memory, because the other three nodes do not exist on this machine.
const TWO_NODES: [Node; 2] =
    [Node { mib: Some(1280), cpus: Some((0, 1)) }, Node { mib: Some(1024), cpus: Some((2, 3)) }];

/// Distances between the nodes in [`NODES`], one for each pair.
const DISTANCES: [Distance; 10] = [
    (0, 1, 12),
    (0, 2, 32),
    (0, 3, 32),
    (0, 4, 20),
    (1, 2, 32),
    (1, 3, 32),
    (1, 4, 32),
    (2, 3, 12),
    (2, 4, 32),
    (3, 4, 32),
];

/// Size of the last node's memory module, whose blocks the guest takes offline.
const MODULE_MIB: u32 = 256;

/// Kernel arguments. They print important messages to the serial console, stop the kernel at a fault, and suppress
/// reports that emulation is slow.
const KERNEL: &str =
    "panic=-1 oops=panic loglevel=2 log_buf_len=1M nokaslr nowatchdog rcupdate.rcu_cpu_stall_suppress=1";

/// Returns a tool that guests of `arch` need and this machine lacks, and how to install it.
pub(super) fn missing_tool(arch: Arch) -> Option<String> {
    let package = match arch {
        Arch::X86_64 => "qemu-system-x86",
        Arch::Aarch64 => "qemu-system-arm",
    };
    let there =
        Command::new(emulator(arch)).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    match there {
        Ok(status) if status.success() => None,
        _ => Some(format!("no {} (apt-get install {package})", emulator(arch))),
    }
}

fn emulator(arch: Arch) -> String {
    format!("qemu-system-{}", arch.name())
}

/// Returns the command that boots a kernel with an initial file system. The command ends when the guest ends.
pub(super) fn boot(arch: Arch, image: &Image, initramfs: &Path) -> Command {
    match arch {
        Arch::X86_64 => {
            let arguments = "memhp_default_state=online_movable";
            let mut command = x86_64("q35", &NODES, &DISTANCES, arguments, image, initramfs);
            command.args(module());
            command
        }
        Arch::Aarch64 => {
            let mut command = emulator_of(arch, image, initramfs);
            command.args([
                "-accel",
                "tcg,thread=multi",
                "-cpu",
                "neoverse-n1",
                "-machine",
                "virt,gic-version=3",
            ]);
            command.args(nodes(&TWO_NODES, &DISTANCES[..1])).arg("-append");
            command.arg(format!("console=ttyAMA0 {KERNEL}"));
            command
        }
    }
}

/// Returns the command that boots a kernel for x86-64 on a machine with these nodes. `chipset` is QEMU's name of the
/// machine with its properties, and `arguments` are more arguments for the kernel.
pub(super) fn x86_64(
    chipset: &str,
    of: &[Node],
    distances: &[Distance],
    arguments: &str,
    image: &Image,
    initramfs: &Path,
) -> Command {
    let mut command = emulator_of(Arch::X86_64, image, initramfs);
    command.args(["-accel", "tcg,thread=single", "-cpu", "max", "-machine", chipset]);
    command.args(nodes(of, distances)).arg("-append");
    command.arg(format!("console=ttyS0 mitigations=off tsc=reliable {arguments} {KERNEL}"));
    command
}

/// Returns the command of an emulator without its machine.
fn emulator_of(arch: Arch, image: &Image, initramfs: &Path) -> Command {
    let mut command = Command::new(emulator(arch));
    command.args(["-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio", "-monitor", "none"]);
    command.arg("-kernel").arg(&image.kernel).arg("-initrd").arg(initramfs);
    command
}

/// Returns the arguments for memory, processors, nodes and distances.
fn nodes(nodes: &[Node], distances: &[Distance]) -> Vec<String> {
    let mib: u32 = nodes.iter().filter_map(|node| node.mib).sum();
    let cpus = nodes.iter().filter_map(|node| node.cpus).map(|(_, last)| last + 1).max().unwrap_or(1);
    let mut arguments = vec!["-m".into(), format!("{mib}M,slots=2,maxmem={}M", 2 * mib)];
    arguments.extend(["-smp".into(), format!("{cpus},sockets={cpus}")]);
    for (id, node) in nodes.iter().enumerate() {
        let mut text = format!("node,nodeid={id}");
        if let Some(mib) = node.mib {
            arguments.extend(["-object".into(), format!("memory-backend-ram,id=m{id},size={mib}M")]);
            text.push_str(&format!(",memdev=m{id}"));
        }
        if let Some((first, last)) = node.cpus {
            text.push_str(&format!(",cpus={first}-{last}"));
        }
        arguments.extend(["-numa".into(), text]);
    }
    for (from, to, distance) in distances {
        arguments.extend(["-numa".into(), format!("dist,src={from},dst={to},val={distance}")]);
    }
    arguments
}

/// Returns the arguments for the memory module of the last node.
fn module() -> [String; 4] {
    let last = NODES.len() - 1;
    [
        "-object".into(),
        format!("memory-backend-ram,id=module,size={MODULE_MIB}M"),
        "-device".into(),
        format!("pc-dimm,id=dimm,memdev=module,node={last}"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_of_nodes_has_a_distance() {
        let mut pairs: Vec<_> = DISTANCES.iter().map(|&(from, to, _)| (from, to)).collect();
        pairs.sort_unstable();
        pairs.dedup();
        let count = NODES.len();
        assert_eq!(pairs.len(), count * (count - 1) / 2);
        assert!(pairs.iter().all(|&(from, to)| from < to && to < count));
    }

    #[test]
    fn memory_and_processors_are_summed() {
        let arguments = nodes(&NODES, &DISTANCES).join(" ");
        assert!(arguments.starts_with("-m 2560M,slots=2,maxmem=5120M -smp 8,sockets=8 "));
        assert!(
            arguments.contains("node,nodeid=3,cpus=6-7 ") && arguments.contains("node,nodeid=4,memdev=m4 ")
        );
    }
}

//! The machines on which kernels are driven out of memory. They are small, so that their memory is soon used up.

use std::path::Path;
use std::process::Command;

use super::super::kernels::Image;
use super::super::machine::{Distance, Node, x86_64};

/// A machine and the arguments of its kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Machine {
    /// Four nodes. The first node has the zones DMA, DMA32 and Normal, and the others have Normal.
    FourNodes,
    /// The same machine, whose kernel keeps part of its memory for movable pages.
    Movable,
    /// One node with the zones DMA and DMA32.
    OneNode,
}

/// The memory below 4 GiB ends after 256 MiB, so that there is a zone Normal.
const SPLIT: &str = "q35,max-ram-below-4g=256M";

const FOUR_NODES: [Node; 4] = [
    Node { mib: Some(384), cpus: Some((0, 0)) },
    Node { mib: Some(256), cpus: Some((1, 1)) },
    Node { mib: Some(256), cpus: Some((2, 2)) },
    Node { mib: Some(256), cpus: Some((3, 3)) },
];

const DISTANCES: [Distance; 6] = [(0, 1, 12), (0, 2, 20), (0, 3, 20), (1, 2, 20), (1, 3, 20), (2, 3, 12)];

const ONE_NODE: [Node; 1] = [Node { mib: Some(512), cpus: Some((0, 1)) }];

impl Machine {
    /// Returns the name that is used in file names.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::FourNodes => "four-nodes",
            Self::Movable => "movable",
            Self::OneNode => "one-node",
        }
    }

    /// Returns the command that boots a kernel on the machine.
    pub(super) fn boot(self, image: &Image, initramfs: &Path) -> Command {
        match self {
            Self::FourNodes => x86_64(SPLIT, &FOUR_NODES, &DISTANCES, "", image, initramfs),
            Self::Movable => x86_64(SPLIT, &FOUR_NODES, &DISTANCES, "kernelcore=640M", image, initramfs),
            Self::OneNode => x86_64("q35", &ONE_NODE, &[], "", image, initramfs),
        }
    }
}

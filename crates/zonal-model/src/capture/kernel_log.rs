//! Reads fallback orders from a kernel log.
//!
//! Kernels print them as "Fallback order for Node N". Older kernels print the zonelists at boot instead, on request
//! (`mminit_loglevel`).

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;

use zonal::units::MAX_NODES;

use super::tree::Tree;
use crate::file::FileKind;
use crate::input::Limit;

/// The text of a log, which is empty if no log is available.
pub(super) struct Log(String);

impl Log {
    /// Returns the log in a captured tree, if it is from the same kernel.
    pub(super) fn in_tree(tree: &Tree, release: &str) -> Self {
        let files = ["dmesg", "dmesg.txt", "var/log/dmesg"].iter();
        let text = files.filter_map(|file| tree.read(file, Limit::Log)).find(|text| is_of(text, release));
        Self(text.unwrap_or_default())
    }

    /// Returns the log of the running kernel. This is the ring buffer if it still contains the orders, otherwise the
    /// log that was saved at boot.
    pub(super) fn of_running_kernel(tree: &Tree, release: &str) -> Self {
        let held = Self(kmsg().unwrap_or_default());
        if held.printed_orders().next().is_some() { held } else { Self::in_tree(tree, release) }
    }

    /// Returns nodes with their fallback orders, in the order in which the kernel printed them.
    fn printed_orders(&self) -> impl Iterator<Item = (u64, Vec<u64>)> {
        self.0.lines().filter_map(|line| {
            let (_, rest) = line.split_once("Fallback order for Node ")?;
            let (node, order) = rest.split_once(':')?;
            Some((node_id(node)?, numbers(order)))
        })
    }

    /// Returns the latest order of each node. `kinds` are the kinds of the machine's zones. They are needed for
    /// zonelists printed at boot, because only the lists of the highest kind name every node.
    pub(super) fn fallback_orders(&self, kinds: impl Iterator<Item = FileKind>) -> BTreeMap<u64, Vec<u64>> {
        let orders: BTreeMap<u64, Vec<u64>> = self.printed_orders().collect();
        if !orders.is_empty() {
            return orders;
        }
        let highest = kinds.map(zonal::units::ZoneKind::from).max();
        let Some(highest) = highest else { return orders };
        self.0.lines().filter_map(|line| zonelist(line, highest.name())).collect()
    }

    /// Whether the kernel printed the order of any node again. The orders are then from after the boot, when the kernel
    /// had found its CPUs.
    pub(super) fn rebuilt_after_boot(&self) -> bool {
        let mut times: BTreeMap<u64, u32> = BTreeMap::new();
        for (node, _) in self.printed_orders() {
            *times.entry(node).or_default() += 1;
        }
        times.values().any(|&times| times > 1)
    }
}

/// Whether the log is from this kernel release. A log that names another release is from another machine or another
/// boot. A log that names no release is accepted.
fn is_of(text: &str, release: &str) -> bool {
    let named = text.lines().find_map(|line| line.split_once("Linux version "));
    match named {
        Some((_, rest)) if !release.is_empty() => rest.split_whitespace().next() == Some(release),
        _ => true,
    }
}

/// Parses a node id, and returns `None` for ids that no machine can have. This also bounds the number of orders.
fn node_id(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|&id| id < MAX_NODES as u64)
}

/// Longest order that is read. It has one entry more than possible, which still shows that the order is wrong.
const ORDER_MAX: usize = MAX_NODES + 1;

/// Parses numbers up to the first word that is not a number.
fn numbers(text: &str) -> Vec<u64> {
    text.split_whitespace().map_while(|word| word.parse().ok()).take(ORDER_MAX).collect()
}

/// Parses a line like `mminit::zonelist general 2:Normal = 2:Normal 3:Normal 0:Normal 0:DMA32`.
fn zonelist(line: &str, highest: &str) -> Option<(u64, Vec<u64>)> {
    let (_, rest) = line.split_once("mminit::zonelist general ")?;
    let (owner, entries) = rest.split_once(" = ")?;
    let (node, kind) = owner.split_once(':')?;
    if kind.trim() != highest {
        return None;
    }
    let mut order: Vec<u64> = Vec::new();
    for entry in entries.split_whitespace() {
        let id = entry.split_once(':')?.0.parse().ok()?;
        if order.last() != Some(&id) {
            order.push(id);
        }
        if order.len() == ORDER_MAX {
            break;
        }
    }
    Some((node_id(node)?, order))
}

/// Reads the current contents of `/dev/kmsg`, one record per read, without blocking.
fn kmsg() -> Option<String> {
    const RECORDS_MAX: usize = 1 << 20;
    let mut device = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg").ok()?;
    let (mut text, mut record) = (String::new(), [0; 8192]);
    for _ in 0..RECORDS_MAX {
        match device.read(&mut record) {
            Ok(0) => break,
            Ok(length) => text.push_str(&String::from_utf8_lossy(&record[..length])),
            // The kernel overwrote the record before it was read. The next read continues with the oldest record.
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
            Err(_) => break,
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_orders() {
        let log = Log("6,1,2,-;Fallback order for Node 0: 0 1 \n\
             [    0.1] Fallback order for Node 1: 1 0 \nBuilt 2 zonelists\n"
            .to_owned());
        let orders = log.fallback_orders(std::iter::empty());
        assert_eq!(orders, BTreeMap::from([(0, vec![0, 1]), (1, vec![1, 0])]));
        assert!(!log.rebuilt_after_boot());
        let twice = Log(format!("{}{}", log.0, "Fallback order for Node 1: 1 2 0\n"));
        assert!(twice.rebuilt_after_boot());
        assert_eq!(twice.fallback_orders(std::iter::empty())[&1], [1, 2, 0]);
    }

    #[test]
    fn boot_time_zonelists() {
        let log = Log("mminit::zonelist general 0:DMA32 = 0:DMA32 0:DMA \n\
             mminit::zonelist general 0:Normal = 0:DMA32 0:DMA 1:Normal \n\
             mminit::zonelist thisnode 1:Normal = 1:Normal \n\
             mminit::zonelist general 1:Normal = 1:Normal 0:DMA32 0:DMA \n"
            .to_owned());
        let orders = log.fallback_orders([FileKind::Normal, FileKind::Dma32].into_iter());
        assert_eq!(orders, BTreeMap::from([(0, vec![0, 1]), (1, vec![1, 0])]));
    }

    #[test]
    fn a_log_of_another_kernel() {
        let text = "[0.0] Linux version 6.1.0-13-amd64 (debian)\n";
        assert!(is_of(text, "6.1.0-13-amd64") && is_of(text, "") && is_of("", "6.12"));
        assert!(!is_of(text, "6.12.5"));
    }
}

//! A snapshot's texts as files of `/proc` and `/sys`, together with the settings and the topology.
//!
//! Written to a folder, the files form a captured machine: they contain all the information that tools read from a
//! Linux machine.
//!
//! Related file: `admin/snapshot/text.rs` defines the texts.

use core::fmt;

use super::text::{Snapshot, Text};
use crate::platform::Platform;
use crate::rules::fallback_order::CpuPenalty;
use crate::settings::{Setting, SettingValue};
use crate::units::{NodeId, PageCount};
use crate::zone::Zone;

/// The Linux version whose rules are the defaults of [`Config`](crate::Config), as a kernel release string.
const RULES_OF: &str = "6.12.0-zonal";
const NODES: &str = "sys/devices/system/node";

impl<P: Platform> Snapshot<'_, '_, P> {
    /// Calls `write` with the path and the text of each file, relative to the root of a file system.
    ///
    /// The files are `proc/zoneinfo`, `proc/buddyinfo`, `proc/vmstat`, `proc/meminfo`, the settings in `proc/sys/vm`,
    /// nodes and CPUs in `sys/devices/system`, and `dmesg` with the fallback orders.
    ///
    /// # Errors
    /// Returns the first error of `write`, after which no other file is written.
    pub fn files<E>(
        self,
        mut write: impl FnMut(&dyn fmt::Display, &dyn fmt::Display) -> Result<(), E>,
    ) -> Result<(), E> {
        write(&"proc/zoneinfo", &self.zoneinfo())?;
        write(&"proc/buddyinfo", &self.buddyinfo())?;
        write(&"proc/vmstat", &self.vmstat())?;
        let accounting = self.0.accounting();
        let [managed, free] = [accounting.managed, accounting.free].map(|pages| self.kib(pages));
        write(
            &"proc/meminfo",
            &format_args!("MemTotal:       {managed:>8} kB\nMemFree:        {free:>8} kB\n"),
        )?;
        write(&"proc/sys/kernel/osrelease", &format_args!("{RULES_OF}\n"))?;
        for setting in Setting::ALL.into_iter().filter(|setting| setting.is_sysctl()) {
            let value = self.0.setting(setting.info().name).unwrap_or(SettingValue::None);
            let text = Text(|f| match value {
                // Linux separates the numbers by tabs, and has one more for device memory.
                SettingValue::PerKind(ratios) => {
                    ratios.iter().try_for_each(|ratio| write!(f, "{ratio}\t"))?;
                    writeln!(f, "0")
                }
                value => writeln!(f, "{value}"),
            });
            write(&format_args!("proc/sys/vm/{setting}"), &text)?;
        }
        let ids = List(|| self.node_ids().map(|id| u32::from(id.get())));
        write(&format_args!("{NODES}/online"), &format_args!("{ids}\n"))?;
        write(&format_args!("{NODES}/possible"), &format_args!("{ids}\n"))?;
        let cpus = List(|| self.online_cpu_infos().map(|cpu| cpu.id.get()));
        write(&"sys/devices/system/cpu/online", &format_args!("{cpus}\n"))?;
        for (place, id) in self.node_ids().enumerate() {
            self.node_files(place, id, &mut write)?;
        }
        // A kernel that counts nodes with CPUs as farther rebuilds its lists after boot, and then logs the orders a
        // second time.
        let again = self.0.state.config().cpu_penalty == CpuPenalty::On;
        let first = Text(|f| if again { write!(f, "{}", self.fallback_lists()) } else { Ok(()) });
        write(&"dmesg", &format_args!("{first}{}", self.fallback_lists()))
    }

    fn node_files<E>(
        self,
        place: usize,
        id: NodeId,
        write: &mut impl FnMut(&dyn fmt::Display, &dyn fmt::Display) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut file =
            |name: &str, text: &dyn fmt::Display| write(&format_args!("{NODES}/node{id}/{name}"), text);
        let cpus = List(|| {
            self.online_cpu_infos().filter(|cpu| usize::from(cpu.node) == place).map(|cpu| cpu.id.get())
        });
        file("cpulist", &format_args!("{cpus}\n"))?;
        let distances = Text(|f| {
            for to in 0..self.0.state.nodes.len() {
                write!(f, "{}{}", if to == 0 { "" } else { " " }, self.0.state.distance(place, to))?;
            }
            Ok(())
        });
        file("distance", &format_args!("{distances}\n"))?;
        if let Some(stat) = self.numastat(id) {
            file("numastat", &stat)?;
        }
        let zones = self.0.state.node_zones(place).iter();
        let free = zones.clone().map(|zone| PageCount::new(zone.free_areas.pages())).sum();
        let [managed, free] = [zones.map(Zone::managed).sum(), free].map(|pages| self.kib(pages));
        let used = managed.saturating_sub(free);
        file(
            "meminfo",
            &format_args!(
                "Node {id} MemTotal:       {managed:>8} kB\n\
                 Node {id} MemFree:        {free:>8} kB\n\
                 Node {id} MemUsed:        {used:>8} kB\n"
            ),
        )
    }

    fn kib(self, pages: PageCount) -> u64 {
        pages.get().saturating_mul(u64::from(self.0.state.config().page_bytes) / 1024)
    }
}

/// Ascending ids in the format that Linux uses for sets: `0-3,8`.
struct List<F>(F);

impl<F: Fn() -> I, I: Iterator<Item = u32>> fmt::Display for List<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ids = (self.0)().peekable();
        let mut comma = "";
        while let Some(first) = ids.next() {
            let mut last = first;
            while let Some(next) = ids.next_if(|&next| next == last + 1) {
                last = next;
            }
            write!(f, "{comma}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            comma = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    #[test]
    fn lists_of_ids() {
        let text = |ids: &'static [u32]| List(|| ids.iter().copied()).to_string();
        assert_eq!(text(&[]), "");
        assert_eq!(text(&[5]), "5");
        assert_eq!(text(&[0, 1, 2, 3, 8, 10, 11]), "0-3,8,10-11");
    }
}

//! Counts the instructions of allocations and frees in the kernel in `kernel/` and in Linux, on the same machine.
//!
//! QEMU emulates a machine with two nodes and two CPUs. A plugin (`guest/count.c`) counts the instructions of each call
//! to the functions that allocate and free. Both kernels run the same workload in four sections: blocks of 2 MiB one
//! after another, a burst of them, sets of 16 single frames, and a burst of single frames. A call that takes the lock
//! of a free area or a zone is a *miss*, any other a *hit*. In Linux, the program `guest/pages.c` causes the calls: a
//! page of a pipe is allocated when it is written and freed when it is read, and huge pages are touched and given back.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use object::{Object, ObjectSymbol};

use super::build_plain;
use super::machine::{self, COMPARED};
use crate::numa::initramfs::Initramfs;
use crate::numa::kernels::{self, Arch, Series};
use crate::steps::{Outcome, Step, target_folder};

/// The kernel's command line for Linux: the console, fixed addresses, and no work that zonal does not do.
const LINUX_OPTIONS: &str = "console=ttyS0 mitigations=off tsc=reliable nokaslr nowatchdog panic=-1 loglevel=3 \
    init_on_alloc=0 init_on_free=0 transparent_hugepage=madvise rcupdate.rcu_cpu_stall_suppress=1";
/// The functions of Linux that are counted, with the names that the plugin reports.
const LINUX_FUNCTIONS: [(&str, &str); 7] = [
    ("alloc", "__alloc_pages_noprof"),
    ("free", "free_unref_page"),
    ("free-huge", "free_unref_folios"),
    ("huge", "vma_alloc_folio_noprof"),
    ("lock+", "_raw_spin_lock_irqsave"),
    ("lock-", "_raw_spin_unlock_irqrestore"),
    ("section", "__x64_sys_sched_yield"),
];
/// The same for the kernel, by the ends of their names.
const OWN_FUNCTIONS: [(&str, &str); 5] = [
    ("alloc", "measured_alloc"),
    ("free", "measured_free"),
    ("lock+", "sync::Lock as zonal::platform::RawLock>::lock"),
    ("lock-", "sync::Lock as zonal::platform::RawLock>::unlock"),
    ("section", "measured_section"),
];

/// Calls that are reported together.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
struct Calls {
    calls: u64,
    /// Median of the largest group.
    median: u64,
    sum: u64,
    most: u64,
}

/// The row of the table to which calls belong: order, what is called, and whether it was a hit.
type Row = (&'static str, &'static str, &'static str);

/// Returns the step of `cargo xtask kernel --compare`.
pub(super) fn step() -> Step {
    Step::new("instructions of the kernel and of Linux", |root| match compare(root) {
        Ok(()) => Outcome::Passed,
        Err(why) => Outcome::Failed(why),
    })
}

fn compare(root: &Path) -> Result<(), String> {
    if let Some(tool) = machine::missing_tool() {
        return Err(tool);
    }
    let folder = target_folder(root).join("kernel/compare");
    let folder = std::path::absolute(&folder).unwrap_or(folder);
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let guest = root.join("xtask/src/kernel/guest");
    let plugin = compile(&guest.join("count.c"), &folder.join("count.so"), &["-shared", "-fPIC"])?;
    let own = count_own(root, &folder, &plugin)?;
    let linux = count_linux(root, &folder, &guest, &plugin)?;
    print(&own, &linux);
    Ok(())
}

fn compile(source: &Path, output: &Path, options: &[&str]) -> Result<PathBuf, String> {
    let done = Command::new("cc")
        .args(["-O2", "-Wall", "-Werror"])
        .args(options)
        .arg("-o")
        .arg(output)
        .arg(source)
        .status();
    match done {
        Ok(status) if status.success() => Ok(output.to_owned()),
        Ok(status) => Err(format!("cc ended with {status} for {}", source.display())),
        Err(error) => Err(format!("cc does not start: {error}")),
    }
}

/// Runs a kernel and returns what it prints on the console, and what the plugin prints.
fn boot(kernel: &Path, options: &str, more: &[String]) -> Result<(String, String), String> {
    // With one thread, the plugin needs no locks.
    let mut command = machine::boot(kernel, &COMPARED, options, "single");
    let output = command.args(more).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("QEMU does not start: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((text(&output.stdout), text(&output.stderr)))
}

fn plugin_option(plugin: &Path, addresses: &[(&str, u64)]) -> [String; 2] {
    let functions: Vec<_> = addresses.iter().map(|(name, address)| format!("{name}={address:x}")).collect();
    ["-plugin".to_owned(), format!("{},{}", plugin.display(), functions.join(","))]
}

fn count_own(root: &Path, folder: &Path, plugin: &Path) -> Result<BTreeMap<Row, Calls>, String> {
    let program = build_plain(root, &folder.join("build"))?;
    let data = fs::read(&program).map_err(|error| format!("{}: {error}", program.display()))?;
    let file = object::File::parse(&*data).map_err(|error| format!("{}: {error}", program.display()))?;
    let find = |end: &str| {
        let named = |name: &str| format!("{:#}", rustc_demangle::demangle(name)).ends_with(end);
        let symbol = file.symbols().find(|symbol| symbol.name().is_ok_and(named));
        symbol.map(|symbol| symbol.address()).ok_or_else(|| format!("the kernel has no function `{end}`"))
    };
    let addresses: Result<Vec<_>, String> =
        OWN_FUNCTIONS.into_iter().map(|(name, end)| Ok((name, find(end)?))).collect();
    let (console, counts) = boot(&program, "measure=1", &plugin_option(plugin, &addresses?))?;
    if !console.contains("passed") {
        return Err(format!("the kernel did not come to its end: {console}{counts}"));
    }
    console.lines().filter(|line| line.contains("bytes of metadata")).for_each(|line| println!("{line}"));
    rows(&counts, own_row)
}

fn count_linux(
    root: &Path,
    folder: &Path,
    guest: &Path,
    plugin: &Path,
) -> Result<BTreeMap<Row, Calls>, String> {
    let image = kernels::fetched(root, Series::NEWEST, Arch::X86_64)?;
    let program = compile(&guest.join("pages.c"), &folder.join("pages"), &["-static"])?;
    let mut files = Initramfs::default();
    ["proc", "dev"].into_iter().for_each(|empty| files.add_folder(empty));
    files.add("init", fs::read(&program).map_err(|error| format!("{}: {error}", program.display()))?);
    let initramfs = folder.join("pages.cpio");
    fs::write(&initramfs, files.archive()).map_err(|error| format!("{}: {error}", initramfs.display()))?;
    let files = ["-initrd".to_owned(), initramfs.display().to_string()];
    let (console, _) = boot(&image.kernel, &format!("{LINUX_OPTIONS} symbols"), &files)?;
    let address = |name: &str| {
        let words = |line: &str| -> Option<u64> {
            let rest = line.trim_end().strip_prefix("symbol ")?.strip_prefix(name)?.strip_prefix(' ')?;
            u64::from_str_radix(rest, 16).ok()
        };
        console.lines().find_map(words).ok_or_else(|| format!("Linux has no function `{name}`: {console}"))
    };
    let addresses: Result<Vec<_>, String> =
        LINUX_FUNCTIONS.into_iter().map(|(name, function)| Ok((name, address(function)?))).collect();
    let plugin = plugin_option(plugin, &addresses?);
    let (console, counts) = boot(&image.kernel, LINUX_OPTIONS, &[&files[..], &plugin[..]].concat())?;
    if !console.lines().any(|line| line.trim_end() == "done") {
        return Err(format!("the guest did not come to its end: {console}{counts}"));
    }
    println!("Linux: {}", image.kernel.file_name().unwrap_or_default().display());
    rows(&counts, linux_row)
}

/// Returns the table's rows from the lines of the plugin.
fn rows(lines: &str, row: fn(&Group<'_>) -> Option<Row>) -> Result<BTreeMap<Row, Calls>, String> {
    let mut rows = BTreeMap::new();
    for line in lines.lines() {
        let Some((section, rest)) =
            line.split_once(' ').and_then(|(n, rest)| Some((n.parse::<u32>().ok()?, rest)))
        else {
            continue;
        };
        let wrong = || format!("the plugin printed: {line}");
        let (name, rest) = rest.split_once(" within ").ok_or_else(wrong)?;
        let (within, rest) = rest.split_once(" called ").ok_or_else(wrong)?;
        let (called, figures) = rest.split_once(" calls ").ok_or_else(wrong)?;
        let figures: Vec<u64> = figures.split(' ').filter_map(|word| word.parse().ok()).collect();
        let &[calls, _, median, mean, most] = &figures[..] else { return Err(wrong()) };
        let found = Calls { calls, median, sum: calls * mean, most };
        if let Some(row) = row(&Group { section, name, within, called }) {
            let sum: &mut Calls = rows.entry(row).or_default();
            let median = if calls > sum.calls { median } else { sum.median };
            *sum = Calls {
                calls: sum.calls + calls,
                median,
                sum: sum.sum + found.sum,
                most: sum.most.max(most),
            };
        }
    }
    Ok(rows)
}

/// Calls of one function in one section, within the same functions and with calls of the same functions.
struct Group<'a> {
    section: u32,
    name: &'a str,
    within: &'a str,
    called: &'a str,
}

impl Group<'_> {
    /// Whether the section is one of 2 MiB blocks.
    fn is_huge(&self) -> bool {
        self.section < 4
    }

    fn order(&self) -> &'static str {
        if self.is_huge() { "9" } else { "0" }
    }

    fn path(&self) -> &'static str {
        if self.called.contains("lock+") { "miss" } else { "hit" }
    }
}

/// Returns the row of calls in the kernel.
fn own_row(group: &Group<'_>) -> Option<Row> {
    match group.name {
        "alloc" => Some((group.order(), "alloc", group.path())),
        "free" => Some((group.order(), "free", group.path())),
        "lock+" if !group.within.is_empty() => Some((group.order(), "lock", "held")),
        _ => None,
    }
}

/// Returns the row of calls in Linux, or `None` for calls of another order: a fault of a huge page also allocates page
/// tables, and the sections of single pages have no huge pages.
fn linux_row(group: &Group<'_>) -> Option<Row> {
    let of_order = group.is_huge() == (group.within.contains("huge") || group.name == "free-huge");
    match group.name {
        "alloc" if of_order => Some((group.order(), "alloc", group.path())),
        "free" | "free-huge" if of_order => Some((group.order(), "free", group.path())),
        "lock+" if group.within.contains("alloc") || group.within.contains("free") => {
            of_order.then_some((group.order(), "lock", "held"))
        }
        _ => None,
    }
}

fn print(own: &BTreeMap<Row, Calls>, linux: &BTreeMap<Row, Calls>) {
    println!(
        "order  call   path  | zonal: calls  median    mean    most | Linux: calls  median    mean    most"
    );
    let mut names: Vec<&Row> = own.keys().chain(linux.keys()).collect();
    names.sort();
    names.dedup();
    for name @ (order, call, path) in names {
        let figures = |rows: &BTreeMap<Row, Calls>| match rows.get(name) {
            Some(Calls { calls, median, sum, most }) => {
                format!("{calls:>12} {median:>7} {:>7} {most:>7}", sum / (*calls).max(1))
            }
            None => format!("{:>12} {:>7} {:>7} {:>7}", 0, "-", "-", "-"),
        };
        println!("{order:>5}  {call:<5}  {path:<4}  | {} | {}", figures(own), figures(linux));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_calls_become_rows() {
        let text = "boot\n1 alloc within huge, called  calls 20 least 1 median 5 mean 6 most 9\n\
                    3 alloc within huge, called lock+,lock-, calls 2 least 1 median 7 mean 8 most 9\n\
                    3 alloc within huge, called  calls 4 least 1 median 4 mean 1 most 10\n\
                    3 alloc within  called  calls 9 least 1 median 1 mean 1 most 1\n\
                    5 free within  called  calls 3 least 2 median 2 mean 2 most 2\n";
        let found = rows(text, linux_row).unwrap();
        assert_eq!(found[&("9", "alloc", "hit")], Calls { calls: 24, median: 5, sum: 124, most: 10 });
        assert_eq!(found[&("9", "alloc", "miss")].calls, 2);
        assert_eq!(found[&("0", "free", "hit")].median, 2);
        assert!(rows("1 alloc calls 3", own_row).unwrap_err().contains("1 alloc calls 3"));
    }
}

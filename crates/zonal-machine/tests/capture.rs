//! Tests captures of a machine from files: from the complete tree, and with each file missing.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use zonal::settings::Setting;
use zonal::units::PageCount;
use zonal_machine::{
    Capture, KernelVersion, MachineModel, OwnedMachine, Rules, Settings, capture, capture_live, explain,
};

/// Returns all files that a capture reads, for the oracle machine `linux-6.1-quad-node2-cpuonly`, with the contents
/// that its kernel would show.
fn files() -> Vec<(String, String)> {
    let model = oracle();
    let mut files = vec![
        ("proc/sys/kernel/hostname".to_owned(), "quad\n".to_owned()),
        ("proc/sys/kernel/osrelease".to_owned(), "6.1.0-13-amd64\n".to_owned()),
        ("proc/version".to_owned(), "Linux version 6.1.0-13-amd64 (debian)\n".to_owned()),
        ("proc/sys/vm/min_free_kbytes".to_owned(), "90112\n".to_owned()),
        ("proc/sys/vm/watermark_scale_factor".to_owned(), "10\n".to_owned()),
        ("proc/sys/vm/lowmem_reserve_ratio".to_owned(), "256\t256\t32\t0\t0\n".to_owned()),
        ("proc/sys/vm/zone_reclaim_mode".to_owned(), "0\n".to_owned()),
        ("proc/sys/vm/percpu_pagelist_high_fraction".to_owned(), "0\n".to_owned()),
        ("proc/sys/vm/min_unmapped_ratio".to_owned(), "1\n".to_owned()),
        ("proc/zoneinfo".to_owned(), zoneinfo(&model)),
        ("dmesg".to_owned(), dmesg(&model)),
        ("sys/devices/system/node/online".to_owned(), "0-3\n".to_owned()),
        ("sys/devices/system/node/possible".to_owned(), "0-4\n".to_owned()),
        ("sys/devices/system/cpu/online".to_owned(), "0-7\n".to_owned()),
    ];
    let managed: u64 = model.zones.iter().map(|zone| zone.managed.get()).sum();
    files.push(("proc/meminfo".to_owned(), format!("MemTotal: {} kB\nMemFree: 5 kB\n", managed * 4)));
    for node in model.online_nodes() {
        let directory = format!("sys/devices/system/node/node{}", node.id);
        let row: Vec<String> = node.distances.iter().map(u8::to_string).collect();
        let cpus = format!("{}-{}\n", node.cpus[0], node.cpus[1]);
        let memory = model.managed_of(node.id).get() * 4;
        files.push((format!("{directory}/cpulist"), cpus));
        files.push((format!("{directory}/distance"), row.join(" ") + "\n"));
        files.push((format!("{directory}/meminfo"), format!("Node {} MemTotal: {memory} kB\n", node.id)));
    }
    files
}

fn oracle() -> MachineModel {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle");
    MachineModel::read(&directory.join("linux-6.1-quad-node2-cpuonly.json")).unwrap()
}

/// Returns the text of `/proc/zoneinfo`. As in Linux, every zone kind of every node has a heading, even without frames.
fn zoneinfo(model: &MachineModel) -> String {
    let mut text = String::new();
    let observed = model.observed.as_ref().unwrap();
    for node in model.online_nodes() {
        for kind in ["DMA", "DMA32", "Normal", "Movable", "Device"] {
            text += &format!("Node {}, zone {kind:>8}\n  pages free     7\n        boost    3\n", node.id);
            let zone = model.zones_of(node.id).find(|zone| zone.kind.name() == kind);
            let seen = observed.zones.iter().find(|seen| seen.node == node.id && seen.kind.name() == kind);
            let (Some(zone), Some(seen)) = (zone, seen) else {
                text += "        min      3\n        low      3\n        high     3\n        spanned  0\n";
                text += "        present  0\n        managed  0\n        protection: (0, 0, 0, 0, 0)\n";
                continue;
            };
            for (name, value) in [("min", seen.min), ("low", seen.low), ("high", seen.high)] {
                text += &format!("        {name} {}\n", value.unwrap().get() + 3);
            }
            let columns = seen.protection.unwrap().map(|pages| pages.to_string()).join(", ");
            text += &format!("        spanned  {}\n        present  {}\n", zone.spanned, zone.present);
            text += &format!("        managed  {}\n        protection: ({columns})\n", zone.managed);
            text += "      nr_free_pages 9\n  pagesets\n";
            let (high, batch) = (seen.pageset_high.unwrap(), seen.batch.unwrap());
            for cpu in 0..8 {
                text += &format!("    cpu: {cpu}\n              count: 1\n              high:  {high}\n");
                text += &format!("              batch: {batch}\n");
                text += &format!("  vm stats threshold: {}\n", seen.stat_threshold.unwrap());
            }
            text += &format!("  node_unreclaimable:  0\n  start_pfn:           {}\n", zone.start);
        }
    }
    text
}

fn dmesg(model: &MachineModel) -> String {
    let mut text = "[    0.0] Linux version 6.1.0-13-amd64 (debian)\n".to_owned();
    for (node, order) in &model.observed.as_ref().unwrap().fallback_order {
        let order: String = order.iter().map(|id| format!("{id} ")).collect();
        text += &format!("[    0.1] Fallback order for Node {node}: {order}\n");
    }
    text
}

fn tree(files: &[(String, String)]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (file, text) in files {
        let path: PathBuf = root.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}

fn captured(files: &[(String, String)]) -> Capture {
    capture(tree(files).path()).unwrap()
}

/// Checks a capture by the rules of its kernel. Returns the number of checks and the names that differ.
fn checks(model: &MachineModel) -> (usize, Vec<String>) {
    let version = model.observed.as_ref().and_then(|observed| observed.kernel);
    let report = explain(model, &Rules::of(version.unwrap_or(KernelVersion::NEWEST)));
    let differs = report.checks.iter().filter(|check| !check.same).map(|check| check.what.clone());
    (report.checks.len(), differs.collect())
}

#[test]
fn a_complete_tree_gives_the_machine() {
    let Capture { model, notes, .. } = captured(&files());
    assert_eq!(notes, [""; 0]);
    let truth = oracle();
    assert_eq!(model.name, "quad");
    assert_eq!(model.zones, truth.zones);
    assert_eq!(model.settings, truth.settings);
    assert_eq!(model.observed, truth.observed);
    let cpus = |model: &MachineModel| model.online_nodes().map(|node| node.cpus.clone()).collect::<Vec<_>>();
    assert_eq!(cpus(&model), cpus(&truth));
    assert_eq!(model.nodes.len(), 5, "node 4 is possible");
    assert_eq!(checks(&model), (32, vec![]));
    assert_eq!(MachineModel::from_json(&model.to_json(), "again").unwrap(), model);
}

#[test]
fn every_file_may_be_missing() {
    let all = files();
    for missing in 0..all.len() {
        let name = &all[missing].0;
        let mut rest = all.clone();
        rest.remove(missing);
        let Capture { model, notes, .. } = captured(&rest);
        let again = MachineModel::from_json(&model.to_json(), "again").unwrap();
        assert_eq!(again, model, "without {name}");
        // Most of these files have a second source, and one has a default that equals this machine's value.
        let spare = ["hostname", "version", "node/online", "possible", "cpu/online", "osrelease", "/meminfo"];
        if !spare.iter().any(|spare| name.ends_with(spare)) {
            assert!(!notes.is_empty(), "no note is about {name}");
        }
        // Values that depend on the missing file are not checked, and all others agree as before.
        let (checked, differs) = checks(&model);
        assert_eq!(differs, [""; 0], "without {name}");
        assert!(checked >= if name.ends_with("zoneinfo") { 4 } else { 8 }, "{checked} without {name}");
    }
}

/// Returns the complete tree with another file in place of each node's `cpulist`. `cpu_file` returns the name and the
/// text of that file for the node's CPUs.
fn without_lists(cpu_file: impl Fn(&[u32]) -> (&'static str, String)) -> Vec<(String, String)> {
    let model = oracle();
    let mut files = files();
    for node in model.online_nodes() {
        let cpus: Vec<u32> = node.cpus.iter().map(|cpu| cpu.get()).collect();
        let (name, text) = cpu_file(&cpus);
        let directory = format!("sys/devices/system/node/node{}", node.id);
        let at = files.iter().position(|(file, _)| *file == format!("{directory}/cpulist")).unwrap();
        files[at] = (format!("{directory}/{name}"), text);
    }
    files
}

#[test]
fn cpu_masks_replace_missing_cpu_lists() {
    let mask = |cpus: &[u32]| cpus.iter().fold(0_u64, |mask, cpu| mask | 1 << cpu);
    for groups in [
        |mask| format!("{mask:x}\n"),
        |mask| format!("{mask:08x}\n"),
        |mask| format!("00000000,00000000,{mask:08x}\n"),
    ] {
        let Capture { model, notes, .. } = captured(&without_lists(|cpus| ("cpumap", groups(mask(cpus)))));
        assert_eq!(notes, [""; 0]);
        assert_eq!(model.nodes, captured(&files()).model.nodes);
        assert_eq!(checks(&model), (32, vec![]));
    }
    // CPUs beyond the first group: 8 to 15 become 40 to 47.
    let shifted = captured(&without_lists(|cpus| ("cpumap", format!("{:x},00000000\n", mask(cpus) << 8))));
    let first = &shifted.model.nodes[0];
    assert_eq!(first.cpus.iter().map(|cpu| cpu.get()).collect::<Vec<_>>(), [40, 41]);
    // Without masks, the links to CPUs are used. A list has precedence over a mask.
    let linked = captured(&without_lists(|_| ("nothing", String::new())));
    assert!(linked.notes.iter().any(|note| note.contains("node0 has neither cpulist nor cpumap")));
    let mut both = files();
    both.push(("sys/devices/system/node/node0/cpumap".to_owned(), "nonsense".to_owned()));
    assert_eq!(captured(&both).model.nodes, captured(&files()).model.nodes);
}

/// Linux 5.15 on 128 CPUs of 4 nodes prints a CPU list as `0-31`, a line break and a zero byte.
#[test]
fn a_trailing_zero_byte_of_a_list_is_ignored() {
    let list = |cpus: &[u32]| format!("{}-{}\n\0", cpus[0], cpus[cpus.len() - 1]);
    let mask = |cpus: &[u32]| format!("{:08x}\n\0", cpus.iter().fold(0_u64, |mask, cpu| mask | 1 << cpu));
    for files in [without_lists(|cpus| ("cpulist", list(cpus))), without_lists(|cpus| ("cpumap", mask(cpus)))]
    {
        let Capture { model, notes, .. } = captured(&files);
        assert_eq!(notes, [""; 0]);
        assert_eq!(model.nodes, captured(&self::files()).model.nodes);
    }
    let nonsense = captured(&without_lists(|_| ("cpulist", "none\n".to_owned())));
    assert!(
        nonsense.notes.iter().any(|note| note.contains("node0/cpulist is invalid")),
        "{:?}",
        nonsense.notes
    );
}

#[test]
fn invalid_cpu_masks_are_errors_that_name_the_file() {
    for text in ["", "\n", "0000000g\n", "0-3\n", "00000001,\n", "000000001\n"] {
        let directory = tree(&without_lists(|_| ("cpumap", text.to_owned())));
        let error = capture(directory.path()).unwrap_err().to_string();
        let file = directory.path().join("sys/devices/system/node/node0/cpumap");
        assert!(error.starts_with(&format!("{}: ", file.display())), "{error}");
        assert!(error.ends_with("such as 00000001,0000000f") && !error.contains('\n'), "{error}");
    }
}

#[test]
fn a_tree_without_memory_is_refused() {
    let mut empty = files();
    for (file, text) in &mut empty {
        if file == "proc/zoneinfo" {
            *text = text
                .lines()
                .filter(|line| line.starts_with("Node "))
                .map(|line| format!("{line}\n"))
                .collect();
        }
    }
    let mut without = files();
    without.retain(|(file, _)| !file.contains("meminfo") && file != "proc/zoneinfo");
    for files in [empty, without] {
        let directory = tree(&files);
        let error = capture(directory.path()).unwrap_err().to_string();
        assert!(error.starts_with(&directory.path().display().to_string()), "{error}");
        assert!(error.contains("no node has memory; proc/zoneinfo must show a zone"), "{error}");
    }
}

#[test]
fn a_tree_with_only_sys_or_only_proc_is_a_machine() {
    let without =
        |part: &str| files().into_iter().filter(|(file, _)| !file.starts_with(part)).collect::<Vec<_>>();
    let no_nodes = captured(&without("sys/devices/system/node"));
    // All nodes of zoneinfo exist, all CPUs are on node 0, and the notes say so.
    assert_eq!(no_nodes.model.online_nodes().count(), 3);
    assert_eq!(no_nodes.model.online_cpus(), 8);
    assert!(no_nodes.notes.iter().any(|note| note.contains("all CPUs are assumed to be on node 0")));
    let no_proc = captured(&without("proc"));
    assert_eq!(no_proc.model.zones.len(), 3, "from each node's meminfo");
    assert_eq!(no_proc.model.observed.unwrap().kernel, None);
    assert!(capture(tree(&without("")).path()).is_err());
}

#[test]
fn invalid_values_in_a_tree_give_notes_and_defaults() {
    let mut broken = files();
    for (file, text) in &mut broken {
        match file.as_str() {
            "sys/devices/system/node/node1/distance" => *text = "10 0 -7 banana\n".to_owned(),
            "sys/devices/system/node/node2/distance" => *text = "10 20\n".to_owned(),
            "sys/devices/system/node/node3/cpulist" => *text = "0-7\n".to_owned(),
            "proc/sys/vm/min_free_kbytes" => *text = "many\n".to_owned(),
            "dmesg" => *text += "Fallback order for Node 77: 1 2\nFallback order for Node 1: 9\n",
            _ => {}
        }
    }
    let Capture { model, notes, .. } = captured(&broken);
    let all = notes.join("\n");
    assert!(all.contains("node1/distance") && all.contains("node2/distance"), "{all}");
    assert!(all.contains("node 3 lists CPUs of other nodes"), "{all}");
    assert!(all.contains("proc/sys/vm/min_free_kbytes is not a number"), "{all}");
    assert_eq!(model.online_cpus(), 8);
}

/// Returns the complete tree with one file changed.
fn with_file(name: &str, change: impl Fn(&str) -> String) -> Vec<(String, String)> {
    let mut changed = files();
    let (_, text) = changed.iter_mut().find(|(file, _)| file == name).unwrap();
    *text = change(text);
    changed
}

#[test]
fn settings_above_their_range_give_notes_and_defaults() {
    for setting in Settings::ALL.into_iter().filter(|&setting| setting != Setting::MinFreeKbytes) {
        let file = format!("proc/sys/vm/{}", setting.info().name);
        let Capture { model, notes, .. } = captured(&with_file(&file, |_| "4294967296\n".to_owned()));
        let note = notes.iter().find(|note| note.contains(&file));
        assert!(note.is_some_and(|note| note.ends_with("its default is assumed")), "{file}: {notes:?}");
        assert_eq!(model.settings.numbers(setting), Settings::default().numbers(setting), "{file}");
    }
}

#[test]
fn impossibly_large_values_in_a_tree_are_refused() {
    let largest = u64::MAX.to_string();
    let with = |figure: &str| {
        let zoneinfo = |text: &str| text.replace(figure, &format!("{figure}{largest}\n        was "));
        capture(tree(&with_file("proc/zoneinfo", zoneinfo)).path())
    };
    for figure in ["present  ", "managed  ", "start_pfn:           "] {
        let error = with(figure).unwrap_err().to_string();
        assert!(error.contains("zones must end by frame"), "{figure}: {error}");
    }
    // Zones that span each other are assumed to span only their present frames.
    let notes = with("spanned  ").unwrap().notes;
    assert!(notes.iter().any(|note| note.contains("interleaved")), "{notes:?}");
    let node = "sys/devices/system/node/node0/meminfo";
    let mut made_up = with_file(node, |_| format!("Node 0 MemTotal: {largest} kB\n"));
    made_up.retain(|(file, _)| file != "proc/zoneinfo");
    let error = capture(tree(&made_up).path()).unwrap_err();
    assert!(error.to_string().contains("zones must end by frame"), "{error}");
}

#[test]
fn impossible_page_sizes_of_a_tree_are_ignored() {
    for size in [1_usize, 512, 1 << 40] {
        let mut without = files();
        without.retain(|(file, _)| file != "proc/zoneinfo");
        let directory = tree(&without);
        let auxiliary: Vec<u8> = [6, size].iter().flat_map(|word| word.to_ne_bytes()).collect();
        fs::create_dir_all(directory.path().join("proc/self")).unwrap();
        fs::write(directory.path().join("proc/self/auxv"), auxiliary).unwrap();
        assert_eq!(capture(directory.path()).unwrap().model.page_bytes, 4096, "{size}");
    }
}

#[test]
fn empty_zones_survive_when_overlapping_zones_are_separated() {
    let zoneinfo = |text: &str| {
        let text = text.replace("start_pfn:           163840", "start_pfn:           100000");
        let heading = "Node 3, zone  Movable\n";
        text.replace(heading, &format!("{heading}        spanned  64\n  start_pfn: 100000\n"))
            .replace("64\n  start_pfn: 100000\n  pages free     7\n        boost    3\n        min      3\n        low      3\n        high     3\n        spanned  0\n", "64\n  start_pfn: 100000\n")
    };
    let Capture { model, notes, .. } = captured(&with_file("proc/zoneinfo", zoneinfo));
    assert!(notes.iter().any(|note| note.contains("interleaved")), "{notes:?}");
    let movable = model.zones.last().unwrap();
    assert_eq!((movable.node.get(), movable.kind.name(), movable.managed.get()), (3, "Movable", 0));
    assert_eq!(OwnedMachine::from(&model).with(|machine| machine.zones().len()), Ok(model.zones.len()));
}

#[test]
fn zones_of_interleaved_nodes_are_separated() {
    let mut interleaved = files();
    for (file, text) in &mut interleaved {
        if file == "proc/zoneinfo" {
            *text = text.replace("start_pfn:           163840", "start_pfn:           100000");
        }
    }
    let Capture { model, notes, .. } = captured(&interleaved);
    assert!(notes.iter().any(|note| note.contains("interleaved")), "{notes:?}");
    assert_eq!([&files(), &interleaved].map(|files| captured(files).has_positions), [true, false]);
    assert_eq!(checks(&model), (32, vec![]));
    assert_eq!(MachineModel::from_json(&model.to_json(), "again").unwrap(), model);
}

#[test]
fn page_size_comes_from_the_kernel_or_the_sizes_of_nodes() {
    // The kernel may show a container another memory size than the machine's.
    let mut shown = files();
    for (file, text) in &mut shown {
        if file == "proc/meminfo" {
            *text = "MemTotal: 24684084 kB\n".to_owned();
        }
    }
    assert_eq!(captured(&shown).model.page_bytes, 4096);
    // Without the sizes of the nodes, no other file states the memory.
    let known: u64 = oracle().zones.iter().map(|zone| zone.managed.get()).sum();
    for (file, text) in &mut shown {
        if file == "proc/meminfo" {
            *text = format!("MemTotal: {} kB\n", known * 64);
        }
    }
    let mut fewer = shown.clone();
    fewer.retain(|(file, _)| !file.ends_with("node0/meminfo"));
    assert_eq!(captured(&fewer).model.page_bytes, 65536);
    // The page size in the process's auxiliary vector has precedence.
    let directory = tree(&shown);
    let auxiliary: Vec<u8> =
        [3, 64, 6, 16384, 0, 0_usize].iter().flat_map(|word| word.to_ne_bytes()).collect();
    fs::create_dir_all(directory.path().join("proc/self")).unwrap();
    fs::write(directory.path().join("proc/self/auxv"), auxiliary).unwrap();
    assert_eq!(capture(directory.path()).unwrap().model.page_bytes, 16384);
}

#[test]
fn the_running_machine() {
    // Every machine that runs the tests has a node, and its capture must be a valid machine.
    let Capture { model, .. } = capture_live().unwrap();
    assert!(model.online_nodes().count() >= 1);
    assert_eq!(MachineModel::from_json(&model.to_json(), "again").unwrap(), model);
}

/// Returns the complete tree of another kernel.
fn of_kernel(release: &str, mut files: Vec<(String, String)>) -> Vec<(String, String)> {
    for (file, text) in &mut files {
        if file == "proc/sys/kernel/osrelease" {
            *text = format!("{release}\n");
        }
    }
    files
}

fn refusal(files: &[(String, String)]) -> String {
    capture(tree(files).path()).unwrap_err().to_string()
}

#[test]
fn kernels_older_than_the_rules_are_refused() {
    for release in ["2.6.32-754.el6.x86_64", "2.4.37"] {
        let error = refusal(&of_kernel(release, files()));
        assert!(error.contains("the oldest version with known rules is 3.0"), "{error}");
    }
    let of = |release| captured(&of_kernel(release, files())).model.observed.unwrap().kernel;
    assert_eq!(["3.0.101", "99.1"].map(of), [(3, 0), (99, 1)].map(|of| Some(KernelVersion::new(of.0, of.1))));
}

#[test]
fn what_is_no_directory_is_named_as_such() {
    let root = tree(&files());
    for (name, why) in [("missing", "No such file or directory"), ("dmesg", "Not a directory")] {
        let error = capture(&root.path().join(name)).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(why), "{error}");
    }
}

#[test]
fn zones_of_32_bit_kernels_are_refused() {
    let high =
        |frames| format!("Node 0, zone  HighMem\n        spanned  {frames}\n        present  {frames}\n");
    let with = |frames| with_file("proc/zoneinfo", |text| high(frames) + text);
    let error = refusal(&with(5));
    assert!(error.contains("zone HighMem of node 0 has frames; only zones of 64-bit kernels"), "{error}");
    assert_eq!(captured(&with(0)).model.zones, oracle().zones);
}

/// Some releases of Linux 6.10 to 6.13 print 0 for kinds without frames, and others do not.
#[test]
fn reserves_for_kinds_without_frames_may_be_zero_in_some_kernels() {
    let mut model = oracle();
    let zones = model.zones.clone();
    for seen in &mut model.observed.as_mut().unwrap().zones {
        for (column, reserve) in seen.protection.as_mut().unwrap().iter_mut().enumerate() {
            let of = zones.iter().filter(|zone| zone.node == seen.node && zone.kind.index() == column);
            if of.map(|zone| zone.managed).sum::<PageCount>() == PageCount::ZERO {
                *reserve = PageCount::ZERO;
            }
        }
    }
    for (release, agrees) in [("6.9.12", false), ("6.10.0", true), ("6.13.6", true), ("6.14.0", false)] {
        let zeros = with_file("proc/zoneinfo", |_| zoneinfo(&model));
        for (files, agrees) in [(zeros, agrees), (files(), true)] {
            let (_, differs) = checks(&captured(&of_kernel(release, files)).model);
            assert_eq!(
                !differs.iter().any(|name| name.contains("protection")),
                agrees,
                "{release}: {differs:?}"
            );
        }
    }
}

/// Versions before and after each change of a setting.
const VERSIONS: [(u16, u16); 6] = [(3, 0), (4, 5), (4, 6), (5, 13), (5, 14), (7, 2)];

#[test]
fn only_settings_that_a_kernel_has_are_missed() {
    for (major, minor) in VERSIONS {
        let mut bare = of_kernel(&format!("{major}.{minor}.1"), files());
        bare.retain(|(file, _)| !file.starts_with("proc/sys/vm"));
        let notes = captured(&bare).notes.join("\n");
        let rules = Rules::of(KernelVersion::new(major, minor));
        for setting in Settings::ALL {
            let name = format!("proc/sys/vm/{} is missing", setting.info().name);
            let is_renamed = setting == Setting::PercpuPagelistHighFraction && (major, minor) < (5, 14);
            assert_eq!(notes.contains(&name), rules.has(setting) && !is_renamed, "{major}.{minor}: {notes}");
        }
        let old_name = notes.contains("proc/sys/vm/percpu_pagelist_fraction is missing");
        assert_eq!(old_name, (major, minor) < (5, 14), "{major}.{minor}: {notes}");
    }
}

#[test]
fn values_are_checked_in_kernels_that_lack_a_setting() {
    let mut old = of_kernel("4.4.0-210-generic", files());
    old.retain(|(file, _)| !file.ends_with("watermark_scale_factor") && !file.contains("cpulist"));
    for (file, _) in &mut old {
        *file = file.replace("percpu_pagelist_high_fraction", "percpu_pagelist_fraction");
    }
    let Capture { model, notes, .. } = captured(&old);
    assert!(!notes.iter().any(|note| note.contains("watermark_scale_factor")), "{notes:?}");
    for zone in &model.observed.unwrap().zones {
        // The pagesets of these kernels follow from the zone's size alone, whatever CPUs there are.
        assert!(zone.low.is_some() && zone.high.is_some() && zone.pageset_high.is_some(), "{zone:?}");
    }
}

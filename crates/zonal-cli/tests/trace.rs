//! `zonal trace`: recordings of this kernel, what they hold, and what is left behind.
//!
//! Recording needs root and tracefs. Where it is not mounted, commands run in a mount namespace of their own with one, so
//! the machine stays as it is.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;
use zonal_testing::{copy_program, skipped};

const ZONAL: &str = env!("CARGO_BIN_EXE_zonal");
const MOUNTED: &str = "/sys/kernel/tracing/instances";

/// Runs a shell script, in which `$ZONAL` is the command, where tracefs is mounted. Returns `None` after a visible skip
/// if that is not possible here.
fn script(text: &str, folder: &Path) -> Option<Command> {
    if !rustix::process::getuid().is_root() {
        skipped!("recording needs root");
        return None;
    }
    // With `&&`, a first command in the background would take the mount with it, and the next would not wait for it.
    let own = "mount -t tracefs nodev /sys/kernel/tracing || exit;";
    let mut command = if Path::new(MOUNTED).exists() {
        Command::new("sh")
    } else {
        let can = Command::new("unshare").args(["-m", "sh", "-c", &format!("{own} true")]).output();
        if !can.is_ok_and(|can| can.status.success()) {
            skipped!("recording needs tracefs, which cannot be mounted here");
            return None;
        }
        let mut command = Command::new("unshare");
        command.args(["-m", "sh"]);
        command
    };
    let mount = if Path::new(MOUNTED).exists() { "" } else { own };
    command.args(["-c", &format!("{mount} {text}")]).env("ZONAL", ZONAL).current_dir(folder);
    Some(command)
}

pub(crate) fn zonal(arguments: &[&str], folder: &Path) -> Output {
    Command::new(ZONAL).args(arguments).current_dir(folder).output().unwrap()
}

pub(crate) fn error(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

pub(crate) fn info(file: &str, folder: &Path) -> Value {
    let output = zonal(&["trace", "info", file, "--json"], folder);
    assert!(output.status.success(), "{}", error(&output));
    let info: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(info["schema"], "zonal.trace.info.v1");
    info
}

pub(crate) fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a number"))
}

/// The names in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A program that gives itself a name and touches 64 MiB in pages of 4 KiB: 16384 faults.
const TOUCH: &str = "python3 -c '
import mmap
open(\"/proc/self/comm\", \"w\").write(NAME)
memory = mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(15)
for at in range(0, 64 << 20, 4096): memory[at] = 1
'";
const TOUCHED: u64 = 16384;

/// Returns the program with a name that no other test gives it, and the name.
fn touch() -> (String, String) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Relaxed: only the numbers differ.
    let name = format!("zt{}-{}", std::process::id() % 100_000, NEXT.fetch_add(1, Ordering::Relaxed));
    (TOUCH.replace("NAME", &format!("\"{name}\"")), name)
}

/// Records the program above. Returns the folder with `t.trace`.
pub(crate) fn recorded() -> Option<(tempfile::TempDir, String)> {
    let folder = tempfile::tempdir().unwrap();
    let (touch, name) = touch();
    let text = format!("$ZONAL trace record --out t.trace -- {touch}; echo \"exit $?\"");
    let output = script(&text, folder.path())?.output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(shown.starts_with("exit 0\n"), "{shown} {}", error(&output));
    Some((folder, name))
}

#[test]
fn a_recording_has_the_faults_of_its_command() {
    let Some((folder, name)) = recorded() else { return };
    let info = info("t.trace", folder.path());
    assert_eq!(
        (number(&info["lost"]), number(&info["skipped"]), &info["is_complete"]),
        (0, 0, &Value::Bool(true))
    );
    let named = info["names"].as_array().unwrap().iter().find(|one| one["name"] == name.as_str());
    let allocated = number(&named.expect("the program's name is known")["allocated_pages"]);
    assert!((TOUCHED..TOUCHED + TOUCHED / 4).contains(&allocated), "{allocated} frames for {TOUCHED} faults");
    let requests = &info["requests"];
    let text = zonal(&["trace", "info", "t.trace"], folder.path());
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("No event was lost.") && text.contains("mm_page_alloc"), "{text}");
    assert!(number(&requests["allocated_pages"]) >= allocated);
    let zones: u64 =
        info["zones"].as_array().unwrap().iter().map(|one| number(&one["allocated_pages"])).sum();
    assert_eq!(zones, number(&requests["allocated_pages"]));
    let each = number(&info["bytes"]) as f64 / number(&info["events"]) as f64;
    assert!(each < 6.0, "{each} bytes an event");
}

#[test]
fn vmstat_counts_what_the_trace_has() {
    let folder = tempfile::tempdir().unwrap();
    let (touch, _) = touch();
    let Some(mut run) = script(&format!("$ZONAL trace record --out t.trace -- {touch}"), folder.path())
    else {
        return;
    };
    assert!(run.output().unwrap().status.success());
    let mut trace = zonal_trace::TraceReader::open(&folder.path().join("t.trace")).unwrap();
    let freed = (&mut trace)
        .map(|event| match event.unwrap().action {
            zonal_trace::Action::Free { order, .. } => order.pages().get(),
            _ => 0,
        })
        .sum::<u64>();
    let count = |text: &Option<String>| -> u64 {
        let line = text.as_ref().unwrap().lines().find_map(|line| line.strip_prefix("pgfree "));
        line.unwrap().parse().unwrap()
    };
    let counted = count(&trace.trailer().unwrap().after.vmstat) - count(&trace.header().before.vmstat);
    // Both texts are read outside the recorded time, and other programs run meanwhile.
    assert!(freed <= counted && counted < freed + freed / 2 + 20_000, "{freed} traced, {counted} counted");
}

#[test]
fn exit_codes_are_those_of_the_command() {
    let folder = tempfile::tempdir().unwrap();
    for (command, code) in [
        ("true", 0),
        ("sh -c 'exit 7'", 7),
        ("sh -c 'kill -9 $$'", 137),
        ("./none", 127),
        ("/etc/passwd", 126),
    ] {
        let Some(mut run) = script(&format!("$ZONAL trace record --out t.trace -- {command}"), folder.path())
        else {
            return;
        };
        let output = run.output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{command}: {}", error(&output));
        assert_eq!(folder.path().join("t.trace").exists(), !(126..=127).contains(&code), "{command}");
        let _ = fs::remove_file(folder.path().join("t.trace"));
        assert!(names(folder.path()).is_empty(), "{command}: {:?}", names(folder.path()));
    }
}

#[test]
fn recorders_are_stopped_by_signals_and_leave_nothing() {
    for signal in ["INT", "TERM"] {
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "$ZONAL trace record --out t.trace & recorder=$!
            while ! ls /sys/kernel/tracing/instances | grep -q \"^zonal-$recorder-\"; do sleep 0.05; done
            until test \"$(cat /sys/kernel/tracing/instances/zonal-$recorder-*/tracing_on)\" = 1; do sleep 0.05; done
            kill -{signal} $recorder; wait $recorder; echo \"exit $?\"
            ls /sys/kernel/tracing/instances | grep \"^zonal-$recorder-\""
        );
        // A shell without job control starts programs in the background with SIGINT ignored; signal handlers undo that.
        let Some(mut run) = script(&text, folder.path()) else { return };
        let output = run.output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "exit 0\n", "{}", error(&output));
        assert_eq!(names(folder.path()), ["t.trace"]);
        info("t.trace", folder.path());
    }
}

#[test]
fn a_killed_recorder_leaves_no_whole_trace_and_the_next_one_cleans_up() {
    let folder = tempfile::tempdir().unwrap();
    let text = "\
        $ZONAL trace record --out t.trace & recorder=$!
        while ! ls -A | grep -q '^[.]zonal-'; do sleep 0.05; done
        until test \"$(cat /sys/kernel/tracing/instances/zonal-$recorder-*/tracing_on 2> /dev/null)\" = 1
        do sleep 0.05; done
        seq 200000 | sort > sorted; sync
        kill -9 $recorder; wait $recorder
        ls /sys/kernel/tracing/instances | grep -c \"^zonal-$recorder-\"
        $ZONAL trace record --out next.trace -- true; echo \"exit $?\"
        ls /sys/kernel/tracing/instances | grep -c \"^zonal-$recorder-\"";
    let Some(mut run) = script(text, folder.path()) else { return };
    let output = run.output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(shown == "1\nexit 0\n0\n" || shown == "0\nexit 0\n0\n", "{shown} {}", error(&output));
    assert!(!folder.path().join("t.trace").exists());
    let left = names(folder.path()).into_iter().find(|name| name.starts_with(".zonal-")).unwrap();
    let output = zonal(&["trace", "info", &left], folder.path());
    assert_ne!(output.status.code(), Some(0));
    assert!(error(&output).contains("cut off after"), "{}", error(&output));
    info("next.trace", folder.path());
}

#[test]
fn two_recorders_at_once_do_not_disturb_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let (touch, _) = touch();
    let text = format!(
        "$ZONAL trace record --out a.trace -- {touch} & first=$!
        $ZONAL trace record --out b.trace -- {touch} && wait $first"
    );
    let Some(mut run) = script(&text, folder.path()) else { return };
    let output = run.output().unwrap();
    assert!(output.status.success(), "{}", error(&output));
    for name in ["a.trace", "b.trace"] {
        let info = info(name, folder.path());
        assert!(number(&info["requests"]["allocated_pages"]) > TOUCHED);
    }
}

#[test]
fn a_full_disk_is_an_error_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let small = folder.path().join("small");
    fs::create_dir(&small).unwrap();
    let text = format!(
        "unshare -m sh -c 'mount -t tmpfs -o size=16k none small && cd small && $ZONAL trace record -- {}; \
         echo \"exit $?\"; ls -A'; ls /sys/kernel/tracing/instances | grep -c \"^zonal-\" > left",
        touch().0.replace('\'', "'\\''")
    );
    let Some(mut run) = script(&text, folder.path()) else { return };
    let output = run.output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    if shown.is_empty() {
        skipped!("a small file system cannot be mounted: {}", error(&output));
        return;
    }
    assert_eq!(shown, "exit 1\n", "{}", error(&output));
    assert!(error(&output).contains("No space left"), "{}", error(&output));
}

#[test]
fn files_of_others_are_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("mine"), "text").unwrap();
    let Some(mut run) = script("$ZONAL trace record --out mine -- true", folder.path()) else { return };
    let output = run.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", error(&output));
    assert!(error(&output).contains("was not written by zonal"), "{}", error(&output));
    assert_eq!(fs::read_to_string(folder.path().join("mine")).unwrap(), "text");
    // A trace of ours is replaced.
    let twice = "$ZONAL trace record --out t.trace -- true && $ZONAL trace record --out t.trace -- true";
    let Some(mut run) = script(twice, folder.path()) else { return };
    let output = run.output().unwrap();
    assert!(output.status.success(), "{}", error(&output));
}

#[test]
fn errors_without_tracefs_or_permission_say_what_to_do() {
    if !rustix::process::getuid().is_root() {
        skipped!("taking rights away needs root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let hidden = "umount /sys/kernel/tracing 2> /dev/null; umount /sys/kernel/debug 2> /dev/null;
        mount -t tmpfs none /sys/kernel && $ZONAL trace record -- true";
    let output =
        Command::new("unshare").args(["-m", "sh", "-c", hidden]).env("ZONAL", ZONAL).output().unwrap();
    if output.status.code() == Some(2) {
        assert!(error(&output).contains("mount -t tracefs nodev /sys/kernel/tracing"), "{}", error(&output));
    } else {
        skipped!("tracefs cannot be hidden here: {}", error(&output));
    }
    copy_program(ZONAL, folder.path().join("zonal"));
    let text = "chmod 755 . && setpriv --reuid 65534 --regid 65534 --clear-groups ./zonal trace record --out /tmp/none -- true";
    let Some(mut run) = script(text, folder.path()) else { return };
    let output = run.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", error(&output));
    assert!(error(&output).contains("recording needs root"), "{}", error(&output));
}

#[test]
fn what_is_no_trace_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("text"), "some text\n").unwrap();
    for (arguments, wanted) in [
        (vec!["trace", "info", "text"], "does not begin with the line"),
        (vec!["trace", "info", "missing"], "cannot read missing"),
        (vec!["trace", "info", "."], "is a directory"),
        (vec!["trace", "export", "text", "--to", "csv", "--out", "out"], "does not begin with the line"),
        (vec!["trace", "import", "text", "--out", "out"], "no complete file of perf"),
        (vec!["trace", "record", "--buffer-kb", "1"], "from 64 to 1048576"),
        (vec!["trace", "record", "--seconds", "nan"], "is not a number of seconds"),
    ] {
        let output = zonal(&arguments, folder.path());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", error(&output));
        assert!(error(&output).contains(wanted), "{arguments:?}: {}", error(&output));
        assert_eq!(error(&output).lines().count(), 1);
        assert_eq!(names(folder.path()), ["text"]);
    }
}

/// Returns a file of perf without events, whose only format has a field that the reader of such files panics at.
fn panicking_perf_data() -> Vec<u8> {
    let format =
        "name: x\nID: 1\nformat:\n\tfield:unsigned cha\u{ff} common_type;\toffset:0;\tsize:2;\tsigned:0;\n";
    let mut formats = b"\x17\x08\x44tracing0.6\0\0\x08\0\x10\0\0".to_vec();
    for name in ["header_page", "header_event"] {
        formats.extend([name.as_bytes(), &[0; 9]].concat());
    }
    // No format of ftrace, and one system with one format.
    formats.extend([0_u32, 1].iter().flat_map(|number| number.to_le_bytes()));
    formats.extend([b"kmem\0".as_slice(), &1_u32.to_le_bytes()].concat());
    formats.extend([&(format.len() as u64).to_le_bytes(), format.as_bytes(), &[0; 16]].concat());
    // The header has the sections of attributes, data and types, and the bits of the parts that follow the data.
    let header = [104, 144, 104, 0, 104, 0, 0, 0, 1 << 1, 0, 0, 0, 120, formats.len() as u64];
    let header: Vec<u8> = header.iter().flat_map(|number: &u64| number.to_le_bytes()).collect();
    [b"PERFILE2".as_slice(), &header, &formats].concat()
}

#[test]
fn a_malformed_file_of_perf_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("perf.data"), panicking_perf_data()).unwrap();
    let output = zonal(&["trace", "import", "perf.data", "--out", "out"], folder.path());
    assert_eq!(output.status.code(), Some(2), "{}", error(&output));
    assert_eq!(error(&output), "zonal: trace: perf.data: the file is malformed\n");
    assert_eq!(names(folder.path()), ["perf.data"]);
}

/// Runs a Python program with the modules that it needs. Returns what it printed, or `None` after a visible skip.
fn python(modules: &[&str], program: &str, folder: &Path) -> Option<String> {
    let pythons = std::env::var_os("ZONAL_TRACE_PYTHON").map(PathBuf::from);
    let python = pythons.unwrap_or_else(|| "python3".into());
    let imports = format!("import {}", modules.join(", "));
    let has = Command::new(&python).args(["-c", &imports]).stderr(Stdio::null()).status();
    if !has.is_ok_and(|has| has.success()) {
        skipped!("Python has no modules {} (pip install pyarrow perfetto protobuf)", modules.join(", "));
        return None;
    }
    let output = Command::new(&python).args(["-c", program]).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{}", error(&output));
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn tables_are_read_by_pyarrow_with_the_counts_of_info() {
    let Some((folder, _)) = recorded() else { return };
    let output = zonal(&["trace", "export", "t.trace", "--to", "csv"], folder.path());
    assert!(output.status.success(), "{}", error(&output));
    let program = "
import json, pyarrow.csv
table = pyarrow.csv.read_csv('t.csv')
assert table.schema.field('pfn').type == 'int64' and table.schema.field('at_ns').type == 'int64', table.schema
counts = table.column('event').value_counts().to_pylist()
print(json.dumps({count['values']: count['counts'] for count in counts}))
times = table.column('at_ns').to_pylist()
assert times == sorted(times)
";
    let Some(counts) = python(&["pyarrow.csv"], program, folder.path()) else { return };
    let counts: BTreeMap<String, u64> = serde_json::from_str(&counts).unwrap();
    assert_eq!(counts, kinds(&info("t.trace", folder.path())));
}

/// The events of each kind that there are.
fn kinds(info: &Value) -> BTreeMap<String, u64> {
    let kinds = info["kinds"].as_array().unwrap().iter();
    kinds
        .map(|kind| (kind["kind"].as_str().unwrap().to_owned(), number(&kind["events"])))
        .filter(|(_, events)| *events > 0)
        .collect()
}

#[test]
fn perfetto_tracks_have_the_counts_of_info() {
    let Some((folder, _)) = recorded() else { return };
    let output = zonal(&["trace", "export", "t.trace", "--to", "perfetto"], folder.path());
    assert!(output.status.success(), "{}", error(&output));
    let program = "
import json
from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb
trace = pb.Trace()
trace.ParseFromString(open('t.pftrace', 'rb').read())
def check(message):
    assert len(UnknownFieldSet(message)) == 0, message
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE: [check(part) for part in ([value] if hasattr(value, 'ListFields') else value)]
check(trace)
tracks, counts, values = {}, {}, {}
for packet in trace.packet:
    assert packet.trusted_packet_sequence_id == 1
    if packet.HasField('track_descriptor'):
        descriptor = packet.track_descriptor
        assert descriptor.uuid not in tracks and (not descriptor.parent_uuid or descriptor.parent_uuid in tracks)
        tracks[descriptor.uuid] = (descriptor.name, descriptor.HasField('counter'))
    else:
        event = packet.track_event
        name, is_counter = tracks[event.track_uuid]
        assert is_counter == (event.type == pb.TrackEvent.TYPE_COUNTER)
        if is_counter: values[name] = event.counter_value
        else:
            key = name + ' ' + pb.TrackEvent.Type.Name(event.type)
            counts[key] = counts.get(key, 0) + 1
            for note in event.debug_annotations:
                if note.name == 'frames': counts[name + ' frames'] = counts.get(name + ' frames', 0) + note.uint_value
print(json.dumps([counts, values]))
";
    let modules = ["perfetto.protos.perfetto.trace.perfetto_trace_pb2"];
    let Some(found) = python(&modules, program, folder.path()) else { return };
    let (counts, values): (BTreeMap<String, u64>, BTreeMap<String, i64>) =
        serde_json::from_str(&found).unwrap();
    let info = info("t.trace", folder.path());
    let count = |key: String| counts.get(&key).copied().unwrap_or(0);
    for cpu in info["cpus"].as_array().unwrap() {
        let number = |name: &str| number(&cpu[name]);
        for (what, runs, frames) in
            [("refills", "refills", "refilled_pages"), ("drains", "drains", "drained_pages")]
        {
            let track = format!("{what} of CPU {}", cpu["cpu"]);
            assert_eq!(count(format!("{track} TYPE_SLICE_BEGIN")), number(runs), "{track}");
            assert_eq!(count(format!("{track} TYPE_SLICE_END")), number(runs), "{track}");
            assert_eq!(count(format!("{track} frames")), number(frames), "{track}");
        }
    }
    let fallbacks: u64 = info["fallbacks"].as_array().unwrap().iter().map(|one| number(&one["events"])).sum();
    assert_eq!(count("blocks of another migratetype TYPE_INSTANT".to_owned()), fallbacks);
    for name in info["names"].as_array().unwrap().iter().filter(|name| number(&name["allocations"]) > 0) {
        assert_eq!(values[name["name"].as_str().unwrap()], number(&name["allocated_pages"]) as i64);
    }
    assert!(
        values.iter().any(|(name, free)| name.starts_with("free frames of node") && *free > 0),
        "{values:?}"
    );
}

#[test]
fn files_of_perf_are_imported() {
    let folder = tempfile::tempdir().unwrap();
    let (touch, name) = touch();
    let text = format!(
        "perf record -q -a -o perf.data -e 'kmem:mm_page_*' -e task:task_newtask -e task:task_rename -- {touch} && \
         perf script -i perf.data | grep -c kmem:mm_page_alloc:"
    );
    let Some(mut run) = script(&text, folder.path()) else { return };
    let output = run.output().unwrap();
    if !output.status.success() {
        skipped!("perf cannot record here: {}", error(&output));
        return;
    }
    let expected: u64 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
    let output = zonal(&["trace", "import", "perf.data", "--out", "p.trace"], folder.path());
    assert!(output.status.success(), "{}", error(&output));
    let info = info("p.trace", folder.path());
    assert_eq!(info["origin"], "perf-data");
    let requests = &info["requests"];
    assert_eq!(number(&requests["allocations"]) + number(&requests["failed"]), expected);
    assert!(expected > TOUCHED);
    let text = String::from_utf8(zonal(&["trace", "info", "p.trace"], folder.path()).stdout).unwrap();
    assert!(text.contains("GFP_HIGHUSER_MOVABLE") && text.contains(&name), "{text}");
}

#[test]
fn pages_have_the_tables_and_pictures() {
    let Some((folder, _)) = recorded() else { return };
    let output = zonal(&["trace", "info", "t.trace", "--html", "t.html"], folder.path());
    assert!(output.status.success(), "{}", error(&output));
    let page = fs::read_to_string(folder.path().join("t.html")).unwrap();
    for wanted in ["Over time", "Blocks by order", "Frames by zone", "Lifetimes", "Requests by flags", "<svg"]
    {
        assert!(page.contains(wanted), "{wanted}");
    }
}

//! What commands want to find at the paths that they are given.

use std::fs;
use std::path::Path;

use crate::common::paths::PathArgument;

/// A trace that every command on traces can read.
pub(crate) const TRACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../zonal-trace/tests/data/small.trace");

/// Checks whether a command reads a trace at a path.
pub(crate) fn reads_trace(path: &PathArgument) -> bool {
    let names_trace = path.before().last().is_none_or(|option| !option.starts_with("--"));
    path.argument == "--trace" || matches!(path.command[..], ["trace", "info" | "replay"]) && names_trace
}

/// Puts what a command wants to find at a path there, and returns what serves a socket.
pub(crate) fn supply(
    path: &PathArgument,
    way: &str,
    at: &Path,
    pool: &zonal_linux::Pool,
) -> Option<zonal_linux::Publication> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    match way {
        "reads" if reads_trace(path) => drop(fs::copy(TRACE, at).unwrap()),
        "reads" if path.argument == "--capture" => {
            let (captured, _) = zonal_machine::state::CapturedState::live().unwrap();
            fs::write(at, captured.to_json()).unwrap();
        }
        "reads" if path.argument == "--log" => {
            fs::copy(data.join("zonal-machine/data/logs/guest/6.1-bind.txt"), at).unwrap();
        }
        "reads" => drop(fs::copy(data.join("zonal-lab/tests/data/small.json"), at).unwrap()),
        "tree" => {
            let zone = "Node 0, zone Normal\n pages free 70\n spanned 90\n present 90\n managed 90\n";
            for (file, text) in [("proc/zoneinfo", zone), ("sys/devices/system/cpu/online", "0\n")] {
                let file = at.join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, text).unwrap();
            }
        }
        "socket" => return Some(pool.publish(at).unwrap()),
        _ => {}
    }
    None
}

//! Runs programs of this machine with their own allocator and with this library, and prints a table.
//!
//! `cargo run --release -p zonal-malloc --example real_programs -- [ROUNDS] [redis|duckdb|arrow]...` needs
//! `redis-server` or `valkey-server`, or Python with `duckdb`, or with `pyarrow` and `numpy`. The variable `PYTHON` names
//! another interpreter. Programs that are missing are named. Each number is the median of the rounds, which run the
//! variants in turn, with the smallest and the largest one. With `--short`, one round has a hundredth of the work, and shows
//! only that all runs.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

type Failure = Box<dyn Error>;
/// The numbers of one run, by name.
type Numbers = Vec<(String, f64)>;

/// The name of each variant, and the variables of its program.
const VARIANTS: [(&str, &[(&str, &str)]); 4] = [
    ("own allocator", &[]),
    // Without a pool, because it seems to belong to another process.
    ("mimalloc, no pool", &[("OWNER", "1")]),
    ("pool, on use", &[("SIZE", "4G"), ("HUGE_PAGES", "transparent")]),
    ("pool, prefaulted", &[("SIZE", "4G"), ("HUGE_PAGES", "transparent"), ("PREFAULT", "yes")]),
];
const PORT: &str = "7211";
/// Keys of the server, which are chosen at random.
const KEYS: usize = 2_000_000;
/// Rows of the tables that are queried.
const ROWS: usize = 20_000_000;

fn main() -> Result<(), Failure> {
    let mut arguments: Vec<String> = env::args().skip(1).collect();
    let given = arguments.len();
    arguments.retain(|argument| argument != "--short");
    let is_short = arguments.len() < given;
    let part = if is_short { 100 } else { 1 };
    let rounds = match arguments.first().and_then(|first| first.parse().ok()) {
        Some(rounds) => {
            arguments.remove(0);
            rounds
        }
        None if is_short => 1,
        None => 3,
    };
    let library = library()?;
    let wanted = |name: &str| arguments.is_empty() || arguments.iter().any(|argument| argument == name);
    if wanted("redis") {
        match ["valkey", "redis"].into_iter().find(|name| is_there(&format!("{name}-server"), &["--version"]))
        {
            Some(name) => table(name, rounds, |variant| server(name, &library, variant, part))?,
            None => println!("not measured: neither valkey-server nor redis-server is installed"),
        }
    }
    let python = env::var("PYTHON").unwrap_or("python3".into());
    for (name, package) in [("duckdb", "duckdb"), ("arrow", "pyarrow, numpy")] {
        if !wanted(name) {
        } else if is_there(&python, &["-c", &format!("import {package}")]) {
            table(name, rounds, |variant| queries(&python, name, &library, variant, part))?;
        } else {
            println!("not measured: {python} lacks {package}");
        }
    }
    Ok(())
}

/// Builds the library in the profile of this example, unless it is built, and returns its file.
fn library() -> Result<PathBuf, Failure> {
    if let Some(folder) = env::var_os(zonal_testing::BUILT_FOLDER) {
        return Ok(Path::new(&folder).join("libzonal_malloc.so"));
    }
    let own = env::current_exe()?;
    let folder = own.ancestors().nth(2).ok_or("the example is not in a target folder")?;
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "-q", "-p", "zonal-malloc", "--target-dir"]).arg(folder.join(".."));
    if folder.ends_with("release") {
        build.arg("--release");
    } else {
        println!("without --release, the numbers say little");
    }
    if !build.current_dir(env!("CARGO_MANIFEST_DIR")).status()?.success() {
        return Err("the library was not built".into());
    }
    Ok(folder.join("libzonal_malloc.so"))
}

fn is_there(program: &str, arguments: &[&str]) -> bool {
    let mut call = Command::new(program);
    call.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    call.status().is_ok_and(|status| status.success())
}

/// Runs all variants in each round, and prints medians and ranges.
fn table(
    program: &str,
    rounds: usize,
    run: impl Fn(usize) -> Result<Numbers, Failure>,
) -> Result<(), Failure> {
    let mut found: Vec<BTreeMap<usize, Vec<f64>>> = vec![BTreeMap::new(); VARIANTS.len()];
    let mut names = Vec::new();
    for round in 0..rounds {
        for step in 0..VARIANTS.len() {
            let variant = (round + step) % VARIANTS.len();
            let numbers = run(variant)?;
            for (column, (_, value)) in numbers.iter().enumerate() {
                found[variant].entry(column).or_default().push(*value);
            }
            names = numbers.into_iter().map(|(name, _)| name).collect();
        }
    }
    println!("\n{program}, median of {rounds} rounds (least-most)\n");
    println!("| variant | {} |\n|---|{}", names.join(" | "), "---:|".repeat(names.len()));
    for ((variant, _), columns) in VARIANTS.iter().zip(&found) {
        let cells: Vec<_> = columns.values().map(|values| cell(values)).collect();
        println!("| {variant} | {} |", cells.join(" | "));
    }
    Ok(())
}

/// Returns the median of the values, the smallest and the largest one.
fn cell(values: &[f64]) -> String {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some((least, most)) = sorted.first().zip(sorted.last()).filter(|(least, _)| !least.is_nan()) else {
        return "-".into();
    };
    let median = sorted[sorted.len() / 2];
    let decimals = if *most >= 100.0 { 0 } else { 2 };
    format!("{median:.decimals$} ({least:.decimals$}-{most:.decimals$})")
}

/// Adds the library and the variables of a variant.
fn preload(call: &mut Command, library: &Path, variant: usize, report: &Path) {
    if variant == 0 {
        return;
    }
    call.env("LD_PRELOAD", library).env("ZONAL_MALLOC_REPORT", report);
    for (name, value) in VARIANTS[variant].1 {
        call.env(format!("ZONAL_MALLOC_{name}"), value);
    }
}

/// Returns the MiB that mimalloc used of the pool, from the report.
fn used(report: &Path) -> f64 {
    let text = fs::read_to_string(report).unwrap_or_default();
    let number = text.split_once("used or kept ").and_then(|(_, rest)| rest.split_once(" MiB"));
    number.and_then(|(number, _)| number.parse().ok()).unwrap_or(f64::NAN)
}

/// A running server, which is ended when this is dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Measures a server with the benchmark that belongs to it, with this part of the work.
fn server(name: &str, library: &Path, variant: usize, part: usize) -> Result<Numbers, Failure> {
    let folder = tempfile::tempdir()?;
    let report = folder.path().join("report");
    let mut call = Command::new(format!("{name}-server"));
    call.args(["--port", PORT, "--save", "", "--dir"]).arg(folder.path()).stdout(Stdio::null());
    preload(&mut call, library, variant, &report);
    let mut server = Server(call.spawn()?);
    let client = |arguments: &[&str]| -> Result<String, Failure> {
        let Output { status, stdout, stderr } =
            Command::new(format!("{name}-cli")).args(["-p", PORT]).args(arguments).output()?;
        if !status.success() {
            return Err(format!("{name}-cli {arguments:?}: {}", String::from_utf8_lossy(&stderr)).into());
        }
        Ok(String::from_utf8(stdout)?)
    };
    while client(&["ping"]).is_err() {
        if let Some(status) = server.0.try_wait()? {
            return Err(format!("{name}-server ended: {status}").into());
        }
        thread::sleep(Duration::from_millis(50));
    }
    let mut numbers = Vec::new();
    for (name_of, test, count, pipeline) in [
        ("SET/s, 32 at once", "set", 3_000_000, "32"),
        ("GET/s, 32 at once", "get", 3_000_000, "32"),
        ("LPUSH/s, 32 at once", "lpush", 2_000_000, "32"),
        ("SET/s", "set", 200_000, "1"),
        ("GET/s", "get", 200_000, "1"),
    ] {
        let mut call = Command::new(format!("{name}-benchmark"));
        let (count, keys) = ((count / part).to_string(), (KEYS / part).to_string());
        call.args(["-p", PORT, "-t", test, "-n", &count, "-P", pipeline, "-r", &keys, "-d", "100", "--csv"]);
        let csv = String::from_utf8(call.output()?.stdout)?;
        let rate = csv.lines().last().and_then(|line| line.split('"').nth(3)?.parse().ok());
        numbers.push((name_of.to_owned(), rate.ok_or_else(|| format!("{name}-benchmark: {csv}"))?));
    }
    let process = server.0.id();
    let [faults, user, system] = fields(process)?;
    // SAFETY: the call only reads a setting.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    numbers.push(("CPU, s".into(), (user + system) / ticks));
    numbers.push(("page faults".into(), faults));
    numbers.push(("resident MiB".into(), resident(process)?));
    client(&["bgsave"])?;
    while !client(&["info", "persistence"])?.contains("rdb_bgsave_in_progress:0") {
        thread::sleep(Duration::from_millis(50));
    }
    if !client(&["info", "persistence"])?.contains("rdb_last_bgsave_status:ok") {
        return Err("BGSAVE failed".into());
    }
    let stats = client(&["info", "stats"])?;
    let fork = stats.lines().find_map(|line| line.strip_prefix("latest_fork_usec:")?.trim().parse().ok());
    numbers.push(("fork, us".into(), fork.unwrap_or(f64::NAN)));
    let _ = client(&["shutdown", "nosave"]);
    server.0.wait()?;
    numbers.push(("pool used, MiB".into(), used(&report)));
    Ok(numbers)
}

/// Returns the minor page faults of a process, and its ticks of user and system time.
fn fields(process: u32) -> Result<[f64; 3], Failure> {
    let text = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let (_, fields) = text.rsplit_once(") ").ok_or("no name in stat")?;
    let fields: Vec<&str> = fields.split(' ').collect();
    let field = |at: usize| -> Result<f64, Failure> { Ok(fields.get(at).ok_or("stat is short")?.parse()?) };
    Ok([field(7)?, field(11)?, field(12)?])
}

fn resident(process: u32) -> Result<f64, Failure> {
    let text = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
}

/// Runs the queries of `analytics.py`, on this part of the rows.
fn queries(
    python: &str,
    name: &str,
    library: &Path,
    variant: usize,
    part: usize,
) -> Result<Numbers, Failure> {
    let folder = tempfile::tempdir()?;
    let report = folder.path().join("report");
    let mut call = Command::new(python);
    call.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/analytics.py"))
        .args([name, &(ROWS / part).to_string()]);
    preload(&mut call, library, variant, &report);
    let Output { status, stdout, stderr } = call.output()?;
    if !status.success() {
        return Err(format!("{name}: {status}: {}", String::from_utf8_lossy(&stderr)).into());
    }
    let text = String::from_utf8(stdout)?;
    let mut words = text.split_whitespace();
    let mut numbers = Vec::new();
    while let (Some(name), Some(value)) = (words.next(), words.next()) {
        let name = match name {
            "cpu" => "CPU, s".into(),
            "faults" => "page faults".into(),
            "resident" => "resident MiB".into(),
            query => format!("{query}, s"),
        };
        numbers.push((name, value.parse()?));
    }
    numbers.push(("pool used, MiB".into(), used(&report)));
    Ok(numbers)
}

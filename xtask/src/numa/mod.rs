//! `cargo xtask numa` runs pools in virtual machines with several nodes, under Debian's kernels.
//!
//! A *guest* is one boot of a kernel with an initial file system, which contains our programs, on a machine that QEMU
//! emulates. Its output on the serial console determines the outcome. Related files: `numa/kernels.rs` finds kernels,
//! and `numa/programs.rs` builds the programs. `numa/initramfs.rs` packs the file system, and `numa/script.rs` has the
//! script that the guest runs. `numa/machine.rs` describes the machine, `numa/boot.rs` runs QEMU, and `numa/console.rs`
//! evaluates the output. `numa/oom/` drives kernels out of memory.

pub(crate) mod boot;
mod console;
pub(crate) mod initramfs;
pub(crate) mod kernels;
mod machine;
mod oom;
mod programs;
mod script;

use std::path::Path;
use std::time::Duration;

use crate::skips;
use crate::steps::{Outcome, Step};
use boot::{Content, Guest, Seen};
use kernels::{Arch, Image, Origin, SERIES, Series};
use script::Form;

/// What the command line may have.
const OPTIONS: &str = "--kernel 6.1|6.12, --short, --fetch, and --oom with --case WORD and --keep FOLDER";

/// The options on the command line.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    series: Vec<Series>,
    form: Extent,
    oom: oom::Options,
}

/// The extent of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// All guests.
    All,
    /// The placement of pages under one kernel.
    Short,
    /// Only download the kernels.
    Fetch,
    /// Drive kernels out of memory.
    Oom,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let (mut series, mut form, mut oom) = (Vec::new(), Extent::All, oom::Options::default());
        let mut words = arguments.iter().map(String::as_str);
        while let Some(word) = words.next() {
            match word {
                "--short" => form = Extent::Short,
                "--fetch" => form = Extent::Fetch,
                "--oom" => form = Extent::Oom,
                "--case" => oom.words.push(words.next().ok_or("--case needs a word")?.to_owned()),
                "--keep" => oom.keep = Some(words.next().ok_or("--keep needs a folder")?.into()),
                "--kernel" => {
                    let wanted = words.next().unwrap_or_default();
                    let known = SERIES.into_iter().find(|series| series.name() == wanted);
                    series.push(known.ok_or_else(|| {
                        format!("--kernel {wanted}: there are {}", SERIES.map(Series::name).join(", "))
                    })?);
                }
                other => {
                    return Err(format!("numa has no option `{other}`; options are {OPTIONS}"));
                }
            }
        }
        if series.is_empty() {
            series = SERIES.to_vec();
        }
        if form != Extent::Oom && oom != oom::Options::default() {
            return Err("--case and --keep are options of --oom".into());
        }
        oom.check()?;
        Ok(Self { series, form, oom })
    }
}

/// Returns the steps of `cargo xtask numa`. A missing tool is a failure in these steps, because the user requested the
/// run.
pub(crate) fn steps(arguments: &[String]) -> Result<Vec<Step>, String> {
    if arguments.iter().any(|word| word == "--help" || word == "-h") {
        return Err(format!("usage: cargo xtask numa [OPTION...]; options are {OPTIONS}"));
    }
    let Options { series, form, oom } = Options::parse(arguments)?;
    Ok(match form {
        Extent::Short => vec![short(series[0], Origin::Fetched, Outcome::Failed)],
        Extent::Fetch => {
            let wanted = series.into_iter().map(|series| (series, Arch::X86_64));
            wanted
                .chain([(Series::AARCH64, Arch::Aarch64)])
                .map(|(series, arch)| fetch(series, arch))
                .collect()
        }
        Extent::Oom => oom::steps(&series, &oom, Outcome::Failed),
        Extent::All => long(&series, Outcome::Failed),
    })
}

/// Returns the guests of the long checks. Missing kernels are downloaded.
pub(crate) fn deep() -> Vec<Step> {
    let mut steps = long(&SERIES, Outcome::Skipped);
    steps.extend(oom::steps(&SERIES, &oom::Options::default(), Outcome::Skipped));
    steps
}

/// Returns the guest of the everyday checks, which tests the placement of pages. It is skipped if a file or tool is
/// missing, because nothing is downloaded.
pub(crate) fn every_day() -> Step {
    Step::new("guest with several nodes, in short", |root| {
        let there =
            SERIES.into_iter().rev().find(|series| kernels::present(root, *series, Arch::X86_64).is_some());
        run(root, there.unwrap_or(Series::NEWEST), Origin::Present, Form::Placement, Outcome::Skipped)
    })
}

fn short(series: Series, origin: Origin, missing: fn(String) -> Outcome) -> Step {
    Step::new(format!("guest with several nodes, Linux {}, in short", series.name()), move |root| {
        run(root, series, origin, Form::Placement, missing)
    })
}

fn long(series: &[Series], missing: fn(String) -> Outcome) -> Vec<Step> {
    let checks = series.iter().map(|&series| {
        Step::new(format!("guest with several nodes, Linux {}", series.name()), move |root| {
            run(root, series, Origin::Fetched, Form::Everything, missing)
        })
    });
    let mut steps: Vec<Step> = checks.collect();
    let newest = series.last().copied().unwrap_or(Series::NEWEST);
    steps.push(Step::new(format!("tests of zonal-linux in a guest, Linux {}", newest.name()), move |root| {
        run(root, newest, Origin::Fetched, Form::Tests, missing)
    }));
    steps.push(Step::new("tests of zonal-linux in a guest, aarch64", move |root| {
        run(root, Series::AARCH64, Origin::Fetched, Form::TestsOnAarch64, missing)
    }));
    steps
}

fn fetch(series: Series, arch: Arch) -> Step {
    Step::new(format!("kernel {} for {}", series.name(), arch.name()), move |root| {
        match kernels::fetched(root, series, arch) {
            Ok(Image { kernel, .. }) => {
                println!("{}", kernel.display());
                Outcome::Passed
            }
            Err(why) => Outcome::Failed(why),
        }
    })
}

/// Boots one guest and evaluates its output. If something that the guest needs is missing, `missing` creates the
/// outcome.
fn run(root: &Path, series: Series, origin: Origin, form: Form, missing: fn(String) -> Outcome) -> Outcome {
    if let Some(tool) = machine::missing_tool(form.arch()).or_else(|| programs::missing_tool(form.arch())) {
        return missing(tool);
    }
    let image = match kernels::image(root, series, form.arch(), origin) {
        Ok(image) => image,
        Err(why) => return missing(why),
    };
    match try_run(root, series, &image, form) {
        Ok(()) => Outcome::Passed,
        Err(why) => Outcome::Failed(why),
    }
}

fn try_run(root: &Path, series: Series, image: &Image, form: Form) -> Result<(), String> {
    let programs = programs::build(root, form)?;
    let label = format!("{}-{}", series.name(), form.name());
    let content =
        Content { arch: form.arch(), script: form.script(&programs), programs: &programs, files: Vec::new() };
    let guest =
        Guest::new(root, &label, image, &content, |initramfs| machine::boot(form.arch(), image, initramfs))?;
    let seen = guest.run(form.time_limit())?;
    for (name, why) in &seen.report.skipped {
        skips::add(root, &format!("guest {label}"), name, why)?;
    }
    print_seen(&label, &seen);
    seen.report
        .verdict(form.may_skip())
        .map_err(|why| format!("{why}; all it printed is in {}", seen.log.display()))
}

/// Prints the counts and times of a guest.
fn print_seen(label: &str, seen: &Seen) {
    let seconds =
        |time: Option<Duration>| time.map_or("-".into(), |time| format!("{:.1}", time.as_secs_f64()));
    println!(
        "guest {label}: {} hold, {} do not, {} skipped; up after {} s, off after {:.1} s",
        seen.report.held,
        seen.report.failed.len(),
        seen.report.skipped.len(),
        seconds(seen.up),
        seen.total.as_secs_f64()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Options, String> {
        Options::parse(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn options_name_kernels_and_how_much() {
        let all = Options { series: SERIES.to_vec(), form: Extent::All, oom: oom::Options::default() };
        assert_eq!(parse(&[]).unwrap(), all);
        let short = parse(&["--kernel", "6.1", "--short"]).unwrap();
        assert_eq!((short.series[0].name(), short.series.len(), short.form), ("6.1", 1, Extent::Short));
        assert_eq!(parse(&["--fetch"]).unwrap().form, Extent::Fetch);
        assert!(parse(&["--kernel", "5.4"]).unwrap_err().contains("6.1, 6.12"));
        assert!(parse(&["--kernel"]).is_err() && parse(&["short"]).is_err());
    }

    #[test]
    fn options_of_cases_need_the_cases() {
        let chosen = parse(&["--oom", "--case", "bind", "--keep", "logs"]).unwrap();
        assert_eq!(
            (chosen.form, chosen.oom.words, chosen.oom.keep),
            (Extent::Oom, vec!["bind".into()], Some("logs".into()))
        );
        assert!(parse(&["--keep", "logs"]).unwrap_err().contains("options of --oom"));
        assert!(parse(&["--oom", "--case", "nothing"]).unwrap_err().contains(", bind, bind-two, "));
        assert!(steps(&["--help".into()]).map(drop).unwrap_err().contains("--oom with --case WORD"));
    }
}

//! `cargo xtask numa` runs pools in virtual machines with several nodes, under Debian's kernels.
//!
//! A *guest* is one boot of a kernel with an initial file system, which contains our programs, on a machine that QEMU
//! emulates. Its output on the serial console determines the outcome. Related files: `numa/kernels.rs` finds kernels,
//! and `numa/programs.rs` builds the programs. `numa/initramfs.rs` packs the file system, and `numa/script.rs` has the
//! script that the guest runs. `numa/machine.rs` describes the machine, `numa/boot.rs` runs QEMU, and `numa/console.rs`
//! evaluates the output.

pub(crate) mod boot;
mod console;
pub(crate) mod initramfs;
pub(crate) mod kernels;
mod machine;
mod programs;
mod script;

use std::path::Path;
use std::time::Duration;

use crate::skips;
use crate::steps::{Outcome, Step};
use boot::Guest;
use kernels::{Arch, Image, Origin, SERIES, Series};
use script::Form;

/// The options on the command line.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    series: Vec<Series>,
    form: Extent,
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
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let (mut series, mut form) = (Vec::new(), Extent::All);
        let mut words = arguments.iter().map(String::as_str);
        while let Some(word) = words.next() {
            match word {
                "--short" => form = Extent::Short,
                "--fetch" => form = Extent::Fetch,
                "--kernel" => {
                    let wanted = words.next().unwrap_or_default();
                    let known = SERIES.into_iter().find(|series| series.name() == wanted);
                    series.push(known.ok_or_else(|| {
                        format!("--kernel {wanted}: there are {}", SERIES.map(Series::name).join(", "))
                    })?);
                }
                other => {
                    return Err(format!(
                        "numa has no option `{other}`; it has --kernel, --short and --fetch"
                    ));
                }
            }
        }
        if series.is_empty() {
            series = SERIES.to_vec();
        }
        Ok(Self { series, form })
    }
}

/// Returns the steps of `cargo xtask numa`. A missing tool is a failure in these steps, because the user requested the
/// run.
pub(crate) fn steps(arguments: &[String]) -> Result<Vec<Step>, String> {
    let Options { series, form } = Options::parse(arguments)?;
    Ok(match form {
        Extent::Short => vec![short(series[0], Origin::Fetched, Outcome::Failed)],
        Extent::Fetch => {
            let wanted = series.into_iter().map(|series| (series, Arch::X86_64));
            wanted
                .chain([(Series::AARCH64, Arch::Aarch64)])
                .map(|(series, arch)| fetch(series, arch))
                .collect()
        }
        Extent::All => long(&series, Outcome::Failed),
    })
}

/// Returns the guests of the long checks. Missing kernels are downloaded.
pub(crate) fn deep() -> Vec<Step> {
    long(&SERIES, Outcome::Skipped)
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
    let guest = Guest::new(root, &label, image, &programs, form)?;
    let seen = guest.run(form.time_limit())?;
    for (name, why) in &seen.report.skipped {
        skips::add(root, &format!("guest {label}"), name, why)?;
    }
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
    seen.report
        .verdict(form.may_skip())
        .map_err(|why| format!("{why}; all it printed is in {}", seen.log.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Options, String> {
        Options::parse(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn options_name_kernels_and_how_much() {
        assert_eq!(parse(&[]).unwrap(), Options { series: SERIES.to_vec(), form: Extent::All });
        let short = parse(&["--kernel", "6.1", "--short"]).unwrap();
        assert_eq!((short.series[0].name(), short.series.len(), short.form), ("6.1", 1, Extent::Short));
        assert_eq!(parse(&["--fetch"]).unwrap().form, Extent::Fetch);
        assert!(parse(&["--kernel", "5.4"]).unwrap_err().contains("6.1, 6.12"));
        assert!(parse(&["--kernel"]).is_err() && parse(&["short"]).is_err());
    }
}

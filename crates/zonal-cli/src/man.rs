//! `zonal man`: the manual's pages in the format of `man`.
//!
//! The pages are generated from the definition of the command line: one page for `zonal` and one for each command.
//! Related files: `man/after_help.rs` splits the text after the options into sections, and `completions.rs` generates
//! completions from the same definition.

mod after_help;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Command};
use clap_mangen::Man;
use roff::{Roff, bold, roman};
use zonal_machine::output::{self, Kind, MANUAL_MARK, Replace};

use crate::layout;
use crate::outcome::{Failure, print, warn_of_left_over};
use crate::values::ForceArg;
use after_help::Block;

/// The section of the manual for user commands.
const SECTION: &str = "1";

/// Print a page of the manual, or write all of them, in the format that `man` reads
#[derive(Args, Clone, Debug)]
#[command(after_help = examples())]
pub(crate) struct ManArgs {
    /// Name of the page, such as zonal-run, or a folder for all pages: one that exists, or a path with a slash, which is
    /// created
    #[arg(value_name = "PAGE|DIR", default_value = "zonal")]
    page: PathBuf,

    /// List the names of all pages
    #[arg(long, conflicts_with = "page")]
    list: bool,

    #[command(flatten)]
    force: ForceArg,
}

fn examples() -> String {
    let examples = [
        ("zonal man zonal-run | man -l -", "reads a page"),
        ("zonal man ~/.local/share/man/man1", "installs all pages"),
        ("zonal man --list", "the names of all pages"),
    ];
    format!("Examples:\n{}", layout::entries(examples))
}

/// Runs `zonal man` for a definition of the command line. Returns exit code 2 if there is no such page.
///
/// The pages' text does not depend on the width of the terminal.
pub(crate) fn run(args: &ManArgs, command: fn() -> Command) -> ExitCode {
    let pages = layout::unlimited(|| pages(command()));
    let is_page = pages.iter().any(|(name, _)| args.page == *name);
    let has_slash = args.page.as_os_str().as_encoded_bytes().contains(&b'/');
    let done = match !args.list && !is_page && (has_slash || args.page.is_dir()) {
        true => write_all(&args.page, &pages, args.force.replace()),
        false => find(args, &pages).and_then(|text| print(&text)),
    };
    done.map_or_else(Failure::report, |()| ExitCode::SUCCESS)
}

/// Writes all pages into a folder, and replaces older ones. Writes none if one of them may not be replaced.
fn write_all(folder: &Path, pages: &[(String, Command)], replace: Replace) -> Result<(), Failure> {
    let files = pages.iter().map(|(name, command)| (folder.join(format!("{name}.{SECTION}")), command));
    for (path, _) in files.clone().filter(|_| folder.is_dir()) {
        output::check(&path, Kind::Manual, replace)?;
    }
    output::create_folder(folder)?;
    warn_of_left_over(&folder.join(&pages[0].0));
    for (path, command) in files {
        let text = layout::unlimited(|| render(command.clone(), pages));
        output::write(&path, &text, Kind::Manual, replace)?;
    }
    Ok(())
}

fn find(args: &ManArgs, pages: &[(String, Command)]) -> Result<String, Failure> {
    if args.list {
        return Ok(pages.iter().map(|(name, _)| format!("{name}\n")).collect());
    }
    let Some((_, command)) = pages.iter().find(|(name, _)| args.page == *name) else {
        let known: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        let text = format!("there is no page `{}`; the pages are: {}", args.page.display(), known.join(", "));
        return Err(Failure::bad_input(text));
    };
    Ok(render(command.clone(), pages))
}

/// Returns all commands by the names of their pages, in order.
fn pages(command: Command) -> Vec<(String, Command)> {
    fn collect(command: &Command, into: &mut Vec<(String, Command)>) {
        let name = command.get_display_name().unwrap_or_else(|| command.get_name());
        into.push((name.to_owned(), command.clone()));
        command.get_subcommands().filter(|sub| !sub.is_hide_set()).for_each(|sub| collect(sub, into));
    }
    let mut command = command.disable_help_subcommand(true).term_width(0);
    command.build();
    let mut pages = Vec::new();
    collect(&command, &mut pages);
    pages
}

/// Returns the page of one command.
fn render(mut command: Command, pages: &[(String, Command)]) -> String {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let usage = command.render_usage().to_string();
    command = command.override_usage(usage.trim_start_matches("Usage: ").to_owned());
    let is_main = name == pages[0].0;
    if is_main {
        // `zonal` accepts all options of `zonal run`, which have a page of their own.
        command = command.mut_args(|arg| {
            let is_own = matches!(arg.get_id().as_str(), "help" | "version");
            arg.hide(!is_own)
        });
    }
    let blocks = match command.get_after_help() {
        Some(text) if !is_main => after_help::blocks(&text.to_string()),
        _ => Vec::new(),
    };
    let has_subcommands = command.get_subcommands().any(|sub| !sub.is_hide_set());
    let man = Man::new(command.subcommand_help_heading("COMMANDS")).section(SECTION);
    // The title is written here because the generator drops the empty date.
    let version = env!("CARGO_PKG_VERSION");
    let title = format!(".TH {name} {SECTION} \"\" \"zonal {version}\" \"User Commands\"\n");
    let mut text = [MANUAL_MARK, &title].concat().into_bytes();
    let mut write = || -> std::io::Result<()> {
        man.render_name_section(&mut text)?;
        man.render_synopsis_section(&mut text)?;
        man.render_description_section(&mut text)?;
        man.render_options_section(&mut text)?;
        if has_subcommands {
            man.render_subcommands_section(&mut text)?;
        }
        after(&blocks, &name, pages).to_writer(&mut text)
    };
    write().expect("a vector accepts every write");
    tidy(&String::from_utf8(text).expect("names and help texts are UTF-8"))
}

/// Returns the sections after the options: tables, notes, examples, exit status and related pages.
fn after(blocks: &[Block], name: &str, pages: &[(String, Command)]) -> Roff {
    let mut roff = Roff::new();
    let is_examples = |block: &&Block| matches!(block, Block::Table { title, .. } if title == "Examples");
    let (examples, others): (Vec<&Block>, Vec<&Block>) = blocks.iter().partition(is_examples);
    let (tables, notes): (Vec<&Block>, Vec<&Block>) =
        others.into_iter().partition(|block| matches!(block, Block::Table { .. }));
    tables.into_iter().for_each(|block| add(&mut roff, block));
    if !notes.is_empty() {
        roff.control("SH", ["NOTES"]);
    }
    notes.into_iter().chain(examples).for_each(|block| add(&mut roff, block));
    roff.control("SH", ["EXIT STATUS"]);
    let codes = [
        ("0", "Success."),
        ("1", "The work failed."),
        ("2", "The usage or the input was wrong."),
        ("130", "The command was interrupted."),
    ];
    for (code, meaning) in codes {
        roff.control("TP", []).text([bold(code)]).text([roman(meaning)]);
    }
    roff.control("SH", ["SEE ALSO"]);
    let mut line = Vec::new();
    for page in related(name, pages) {
        line.extend([bold(page), roman(format!("({SECTION}), "))]);
    }
    line.pop();
    roff.text(line.into_iter().chain([roman(format!("({SECTION})"))]).collect::<Vec<_>>());
    roff
}

/// Returns the pages of the commands above and below a command.
fn related<'a>(name: &str, pages: &'a [(String, Command)]) -> Vec<&'a str> {
    let is_below =
        |lower: &str, upper: &str| lower.strip_prefix(upper).is_some_and(|rest| rest.starts_with('-'));
    let names = pages.iter().map(|(page, _)| page.as_str());
    names.filter(|page| is_below(page, name) || is_below(name, page)).collect()
}

fn add(roff: &mut Roff, block: &Block) {
    match block {
        Block::Table { title, entries } => {
            roff.control("SH", [&*title.to_uppercase()]);
            for (label, text) in entries {
                roff.control("TP", []).text([bold(label)]);
                if !text.is_empty() {
                    roff.text([roman(text)]);
                }
            }
        }
        Block::Paragraph(text) => {
            roff.control("PP", []).text([roman(text)]);
        }
    }
}

/// Sets words between backticks in bold, and removes empty lines and breaks that follow another one.
fn tidy(page: &str) -> String {
    let mut tidied: Vec<String> = Vec::new();
    for line in page.lines().map(str::trim_end).filter(|line| !line.is_empty()) {
        let before = tidied.last().map_or("", String::as_str);
        if (line == ".br" && before == ".br") || (line == ".PP" && before.starts_with(".SH")) {
            continue;
        }
        let parts: Vec<&str> = line.split('`').collect();
        let is_text = !line.starts_with('.') && parts.len() % 2 == 1;
        let part = |(at, part): (usize, &&str)| match at % 2 {
            1 if is_text => format!("\\fB{part}\\fR"),
            _ => (*part).to_owned(),
        };
        let glue = if is_text { "" } else { "`" };
        tidied.push(parts.iter().enumerate().map(part).collect::<Vec<_>>().join(glue));
    }
    tidied.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    fn command() -> Command {
        let run = Command::new("run").about("Run `it`").arg(Arg::new("pool").long("pool"));
        let run = run.after_help("Kinds:\n  a  first\n\nIt ends.\n\nExamples:\n  zonal run --pool 1\n");
        Command::new("zonal").about("Tests").arg(Arg::new("seed").long("seed")).subcommand(run)
    }

    #[test]
    fn every_command_has_a_page_and_pages_name_each_other() {
        let pages = pages(command());
        let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["zonal", "zonal-run"]);
        let main = render(pages[0].1.clone(), &pages);
        assert!(main.contains("zonal\\-run(1)") && main.contains("\\fBzonal\\-run\\fR(1)"), "{main}");
        assert!(!main.contains("seed"), "options of `run` are on another page: {main}");
    }

    #[test]
    fn sections_stand_in_the_order_of_manuals() {
        let pages = pages(command());
        let page = render(pages[1].1.clone(), &pages);
        let sections: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix(".SH ")).collect();
        let expected = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "KINDS", "NOTES", "EXAMPLES"];
        assert_eq!(sections[..7], expected);
        assert_eq!(sections[7..], ["\"EXIT STATUS\"", "\"SEE ALSO\""]);
        assert!(page.contains("Run \\fBit\\fR"), "{page}");
    }

    #[test]
    fn a_page_that_does_not_exist_is_named() {
        let args = |page: &str, list| ManArgs { page: page.into(), list, force: ForceArg::default() };
        let pages = pages(command());
        let failure = find(&args("run", false), &pages).unwrap_err();
        assert!(format!("{failure:?}").contains("no page `run`; the pages are: zonal, zonal-run"));
        assert_eq!(find(&args("zonal", true), &pages).unwrap(), "zonal\nzonal-run\n");
    }
}

//! `zonal completions`: scripts by which shells complete the commands and options of `zonal`.
//!
//! The scripts are generated from the definition of the command line, so they have every option. Related files:
//! `man.rs` generates the manual from the same definition.

use std::process::ExitCode;

use clap::{Args, Command, ValueEnum};

use crate::layout;
use crate::outcome::{Failure, print};

/// Print a completion script for a shell
#[derive(Args, Clone, Debug)]
#[command(after_help = examples())]
pub(crate) struct CompletionsArgs {
    /// The shell that reads the script
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// A shell that `zonal` has completions for.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

fn examples() -> String {
    let examples = [
        ("zonal completions bash > ~/.local/share/bash-completion/completions/zonal", ""),
        ("zonal completions zsh > ~/.zfunc/_zonal", "with ~/.zfunc in fpath"),
        ("zonal completions fish > ~/.config/fish/completions/zonal.fish", ""),
    ];
    format!("Examples:\n{}", layout::entries(examples))
}

/// Runs `zonal completions` for a definition of the command line.
pub(crate) fn run(args: &CompletionsArgs, command: Command) -> ExitCode {
    print(&script(args.shell, command)).map_or_else(Failure::report, |()| ExitCode::SUCCESS)
}

fn script(shell: Shell, mut command: Command) -> String {
    use clap_complete::{Shell as Generator, generate};

    let generator = match shell {
        Shell::Bash => Generator::Bash,
        Shell::Zsh => Generator::Zsh,
        Shell::Fish => Generator::Fish,
    };
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    generate(generator, &mut command, name, &mut script);
    String::from_utf8(script).expect("names and help texts are UTF-8")
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    #[test]
    fn scripts_have_commands_and_options_and_no_character_that_print_escapes() {
        let sized = Command::new("fill").about("Fill it").arg(Arg::new("pool").long("pool"));
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = script(shell, Command::new("zonal").subcommand(sized.clone()));
            assert!(script.contains("fill") && script.contains("pool"), "{shell:?}: {script}");
            assert!(!script.contains(|c: char| c.is_control() && c != '\n'), "{shell:?}: {script}");
        }
    }
}

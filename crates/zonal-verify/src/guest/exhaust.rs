//! Actions that use up the memory of a machine: pages of the process under a memory policy, and requests of the kernel.
//!
//! A process can request only single movable pages. All other requests are made by a kernel module that reads commands
//! from `/proc/requester`; `cargo xtask numa --oom` builds it, and its source describes the commands.
//!
//! Related files: `bin/exhaust.rs` performs the actions of its command line.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::str::FromStr;
use std::thread;

use super::kernel::{Mode, listed, set_policy, write};

const SCORE: &str = "/proc/self/oom_score_adj";
const REQUESTER: &str = "/proc/requester";
const MIB: usize = 1 << 20;

/// The names of the policies that [`Action::Policy`] can set.
const POLICIES: [(&str, Mode); 4] = [
    ("bind", Mode::Bind),
    ("preferred", Mode::Preferred),
    ("preferred-many", Mode::PreferredMany),
    ("interleave", Mode::Interleave),
];

/// An action, which is written `NAME=VALUE` or `NAME`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// `score=N`: sets how readily the kernel kills this process, from -1000, never, to 1000.
    Score(i32),
    /// `policy=NAME:NODES`: sets the memory policy of this process.
    Policy(Policy),
    /// `touch=MIB`: stores to new pages until the process has this many MiB more, and keeps them.
    Touch(usize),
    /// `request=COMMAND`: writes a command to the kernel module. A request that the kernel refuses is no error.
    Request(String),
    /// `hold`: prints `held` and waits until the process is killed.
    Hold,
}

/// A memory policy and its nodes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Policy {
    mode: Mode,
    nodes: Vec<u16>,
}

impl FromStr for Action {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        let number = |error: std::num::ParseIntError| format!("{name}={value}: {error}");
        match name {
            "score" => match value.parse().map_err(number)? {
                score @ -1000..=1000 => Ok(Self::Score(score)),
                score => Err(format!("score={score}: allowed are -1000 to 1000")),
            },
            "policy" => value.parse().map(Self::Policy),
            "touch" => value.parse().map(Self::Touch).map_err(number),
            "request" if !value.is_empty() => Ok(Self::Request(value.to_owned())),
            "hold" if text == "hold" => Ok(Self::Hold),
            _ => Err(format!(
                "{text}: actions are score=N, policy=NAME:NODES, touch=MIB, request=COMMAND and hold"
            )),
        }
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, nodes) = text.split_once(':').unwrap_or((text, ""));
        let known = POLICIES.iter().find(|(known, _)| *known == name);
        let names = POLICIES.map(|(name, _)| name).join(", ");
        let &(_, mode) = known.ok_or_else(|| format!("policy={text}: policies are {names}"))?;
        let nodes = listed(nodes);
        if nodes.is_empty() || nodes.iter().any(|&node| node >= 64) {
            return Err(format!("policy={text}: the nodes must be a list of ids below 64, such as 0-2,4"));
        }
        Ok(Self { mode, nodes })
    }
}

/// Performs actions in their order. The pages and the requests are held until the last action has ended.
///
/// # Errors
/// Returns the first action that cannot be performed, such as a policy over nodes that do not exist.
pub fn exhaust(actions: &[Action]) -> Result<(), String> {
    let mut pages: Vec<Vec<u8>> = Vec::new();
    let mut requester: Option<File> = None;
    for action in actions {
        match action {
            Action::Score(score) => write(SCORE, score)?,
            Action::Policy(policy) => set_policy(policy.mode, &policy.nodes)?,
            Action::Touch(mib) => pages.extend((0..*mib).map(|_| vec![1; MIB])),
            Action::Request(command) => request(&mut requester, command)?,
            Action::Hold => {
                println!("held");
                loop {
                    thread::park();
                }
            }
        }
    }
    // Otherwise, the compiler might leave out the stores.
    std::hint::black_box(&pages);
    Ok(())
}

/// Writes a command to the kernel module, and opens its file the first time.
fn request(requester: &mut Option<File>, command: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{REQUESTER}: {command}: {error}");
    let file = match requester {
        Some(file) => file,
        None => requester.insert(OpenOptions::new().write(true).open(REQUESTER).map_err(failed)?),
    };
    match file.write(command.as_bytes()) {
        Ok(_) => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {
            println!("refused: {command}");
            Ok(())
        }
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_parsed() {
        let parse = |text: &str| text.parse::<Action>();
        assert_eq!(parse("score=-1000"), Ok(Action::Score(-1000)));
        assert_eq!(parse("touch=64"), Ok(Action::Touch(64)));
        assert_eq!(parse("request=free"), Ok(Action::Request("free".into())));
        assert_eq!(parse("hold"), Ok(Action::Hold));
        let policy = Policy { mode: Mode::PreferredMany, nodes: vec![1, 2] };
        assert_eq!(parse("policy=preferred-many:1-2"), Ok(Action::Policy(policy)));
    }

    #[test]
    fn wrong_actions_are_named() {
        let why = |text: &str| text.parse::<Action>().unwrap_err();
        assert!(why("score=1001").contains("-1000 to 1000"));
        assert!(why("policy=near:1").contains("policies are bind, preferred"));
        assert!(why("policy=bind:64").contains("below 64") && why("policy=bind:").contains("below 64"));
        assert!(why("touch=-1").starts_with("touch=-1: ") && why("hold=1").contains("actions are"));
        assert!(why("request=").contains("actions are") && why("pause").starts_with("pause: "));
    }

    #[test]
    fn what_is_touched_is_held_and_a_wrong_policy_is_an_error() {
        assert_eq!(exhaust(&[Action::Touch(1)]), Ok(()));
        let nowhere = Action::Policy(Policy { mode: Mode::Bind, nodes: vec![63] });
        let failed = thread::spawn(|| exhaust(&[nowhere])).join().unwrap();
        assert!(failed.unwrap_err().starts_with("set_mempolicy: "));
    }
}

//! Children under `ptrace(2)`, which are followed, or run to a breakpoint, and killed. x86-64 only.

use std::collections::HashSet;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::ptr::null_mut;

use zonal_linux::{Order, Pfn};

use super::sequences::Sequence;

/// An instruction at which a child can be killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) address: u64,
    pub(super) is_in_sequence: bool,
}

/// How a child ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// It was killed inside the operation.
    Killed,
    /// The operation was over before.
    Over,
}

/// A child that has prepared its operation, and stands at its begin.
pub(super) struct Child {
    process: std::process::Child,
}

impl Child {
    /// Starts a child of this program, and lets it run to the begin of its operation.
    pub(super) fn start(
        operation: &str,
        file: BorrowedFd<'_>,
        is_named: bool,
        given: &[(Pfn, Order)],
    ) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
        command.args(["--child", operation, "--file", &file.as_raw_fd().to_string()]);
        command.env("LD_BIND_NOW", "1"); // else the first call of a library's function would be followed into the linker
        if is_named {
            command.arg("--named");
        }
        for (first, order) in given {
            command.arg(format!("--given={}:{}", first.get(), order.get()));
        }
        let fd = file.as_raw_fd();
        let prepare = move || {
            // SAFETY: the calls change only this new process, here and below.
            unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
            // SAFETY: as above.
            unsafe { libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong) };
            // SAFETY: as above.
            match unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, null_mut::<u8>(), null_mut::<u8>()) } {
                -1 => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            }
        };
        // SAFETY: the closure only makes system calls.
        unsafe { command.pre_exec(prepare) };
        let process = command.spawn().expect("this program can be started and traced");
        let child = Self { process };
        assert_eq!(child.wait().stopped_signal(), Some(libc::SIGTRAP), "the program begins");
        child.go(libc::PTRACE_CONT);
        assert_eq!(child.wait().stopped_signal(), Some(libc::SIGUSR1), "the operation begins");
        child
    }

    /// Follows the child through its operation, and kills it at the end; returns the address of each instruction that it was
    /// about to execute, in the order of first arrival, those of sequences marked.
    ///
    /// A step inside a sequence would restart it, so the child runs through a sequence at once. Ends early if there are more than
    /// `longest`.
    pub(super) fn follow(self, sequences: &[Sequence], longest: usize) -> Vec<Place> {
        let base = self.base();
        let mut seen = HashSet::new();
        let mut places = Vec::new();
        while places.len() <= longest {
            let at = self.instruction();
            let entered = sequences.iter().find(|sequence| sequence.instructions[0] == at.wrapping_sub(base));
            let sequence = entered.map_or(&[][..], |sequence| &sequence.instructions);
            let inner = sequence.iter().map(|&inner| Place { address: base + inner, is_in_sequence: true });
            let place = Place { address: at, is_in_sequence: entered.is_some() };
            let new = std::iter::once(place).chain(inner);
            places.extend(new.filter(|place| seen.insert(place.address)));
            match entered {
                None => self.go(libc::PTRACE_SINGLESTEP),
                Some(sequence) => {
                    let ends = [sequence.end, sequence.abort].map(|end| base + end);
                    let before = ends.map(|end| self.break_at(end));
                    self.go(libc::PTRACE_CONT);
                    let stopped = self.wait().stopped_signal();
                    assert_eq!(stopped, Some(libc::SIGTRAP), "the child left a sequence elsewhere");
                    for (end, word) in ends.into_iter().zip(before).rev() {
                        self.poke(end, word);
                    }
                    self.set_instruction(self.instruction() - 1);
                    continue;
                }
            }
            let status = self.wait();
            match status.stopped_signal() {
                Some(libc::SIGTRAP) => {}
                Some(libc::SIGUSR1) => break,
                _ => panic!("the child ended in its operation, or got a signal: {status}"),
            }
        }
        self.kill(End::Over);
        places
    }

    /// Runs the child until it is about to execute the instruction at `address`, and kills it.
    pub(super) fn run_to_and_kill(self, address: u64) -> End {
        self.break_at(address);
        self.go(libc::PTRACE_CONT);
        let status = self.wait();
        match (status.stopped_signal(), status.signal()) {
            (Some(libc::SIGTRAP), _) => self.kill(End::Killed),
            (Some(libc::SIGUSR1), _) => self.kill(End::Over),
            // The breakpoint has killed the child, because another of its threads, which is not traced, was there first.
            (None, Some(libc::SIGTRAP)) => End::Killed,
            _ => panic!("the child ended in its operation, or got a signal: {status}"),
        }
    }

    /// Puts a breakpoint at an address, and returns the word that was there.
    fn break_at(&self, address: u64) -> i64 {
        // SAFETY: the call reads the child's memory.
        let word = unsafe { libc::ptrace(libc::PTRACE_PEEKTEXT, self.pid(), address, null_mut::<u8>()) };
        self.poke(address, (word & !0xff) | 0xcc);
        word
    }

    fn poke(&self, address: u64, word: i64) {
        // SAFETY: the call changes the child's memory, which nothing here refers to.
        unsafe { libc::ptrace(libc::PTRACE_POKETEXT, self.pid(), address, word) };
    }

    fn registers(&self) -> libc::user_regs_struct {
        // SAFETY: zeros are a valid value.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        // SAFETY: the call writes the structure.
        unsafe { libc::ptrace(libc::PTRACE_GETREGS, self.pid(), null_mut::<u8>(), &raw mut registers) };
        registers
    }

    /// Returns the address of the instruction that the child is about to execute.
    fn instruction(&self) -> u64 {
        self.registers().rip
    }

    fn set_instruction(&self, address: u64) {
        let registers = libc::user_regs_struct { rip: address, ..self.registers() };
        // SAFETY: the call reads the structure.
        unsafe { libc::ptrace(libc::PTRACE_SETREGS, self.pid(), null_mut::<u8>(), &raw const registers) };
    }

    /// Returns the address at which the program file is mapped.
    fn base(&self) -> u64 {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid())).expect("the child lives");
        let program = std::env::current_exe().expect("this program has a path");
        let line =
            maps.lines().find(|line| line.ends_with(&*program.to_string_lossy())).expect("it is mapped");
        let start = line.split('-').next().expect("lines begin with a range");
        u64::from_str_radix(start, 16).expect("ranges are in hexadecimal")
    }

    fn pid(&self) -> libc::pid_t {
        self.process.id() as libc::pid_t
    }

    fn go(&self, how: libc::c_uint) {
        // SAFETY: the call continues the child.
        unsafe { libc::ptrace(how, self.pid(), null_mut::<u8>(), null_mut::<u8>()) };
    }

    /// Waits until the child stops or ends.
    fn wait(&self) -> ExitStatus {
        let mut status = 0;
        // SAFETY: the call writes the status.
        unsafe { libc::waitpid(self.pid(), &raw mut status, libc::__WALL) };
        ExitStatus::from_raw(status)
    }

    fn kill(mut self, end: End) -> End {
        let killed = self.process.kill().and_then(|()| self.process.wait());
        let signal = killed.as_ref().ok().and_then(ExitStatusExt::signal);
        assert_eq!(signal, Some(libc::SIGKILL), "the child was not killed: {killed:?}");
        end
    }
}

//! Traces a thread of a child process: stops, registers and hardware breakpoints.
//!
//! Breakpoints are hardware breakpoints. They do not change the program's text, and other threads of the child do not
//! stop at them.
#![allow(dead_code, unreachable_pub)] // each test file uses only a part

use std::io;
use std::mem::offset_of;

use libc::{c_int, c_long, c_ulonglong, c_void, pid_t, user_regs_struct};

/// Reason why a thread has stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// A signal.
    Signal(c_int),
    /// The end of the thread.
    End,
}

/// A stopped thread that has requested to be traced by its parent.
pub struct Traced(pub pid_t);

impl Traced {
    fn request(&self, request: libc::c_uint, address: u64, data: u64) -> io::Result<c_long> {
        let (address, data) = (address as *mut c_void, data as *mut c_void);
        // SAFETY: in this process, the requests used here write only through `data`, which is either a number or the
        // address of the registers in `registers`.
        let result = unsafe { libc::ptrace(request, self.0, address, data) };
        if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
    }

    /// Waits until the thread stops.
    pub fn wait(&self) -> Stop {
        let mut status = 0;
        // SAFETY: the status outlives the call.
        let found = unsafe { libc::waitpid(self.0, &mut status, libc::__WALL) };
        assert_eq!(found, self.0, "{}", io::Error::last_os_error());
        if libc::WIFSTOPPED(status) { Stop::Signal(libc::WSTOPSIG(status)) } else { Stop::End }
    }

    /// Continues the thread, and waits until it stops.
    pub fn go_on(&self) -> Stop {
        self.request(libc::PTRACE_CONT, 0, 0).expect("a stopped thread goes on");
        self.wait()
    }

    /// Executes one instruction of the thread.
    pub fn step(&self) -> Stop {
        self.request(libc::PTRACE_SINGLESTEP, 0, 0).expect("a stopped thread steps");
        self.wait()
    }

    /// Detaches from the thread.
    pub fn detach(self) {
        self.request(libc::PTRACE_DETACH, 0, 0).expect("a stopped thread can be detached");
    }

    pub fn registers(&self) -> user_regs_struct {
        // SAFETY: the registers are numbers, for which zeros are valid.
        let mut registers: user_regs_struct = unsafe { std::mem::zeroed() };
        self.request(libc::PTRACE_GETREGS, 0, (&raw mut registers).expose_provenance() as u64).unwrap();
        registers
    }

    /// Makes breakpoints effective for the very next instruction. After a breakpoint has stopped the thread, the
    /// processor is set to skip a breakpoint at the next instruction.
    pub fn heed_the_next(&self) {
        const RESUME_FLAG: u64 = 1 << 16;
        let mut registers = self.registers();
        registers.eflags &= !RESUME_FLAG;
        self.request(libc::PTRACE_SETREGS, 0, (&raw mut registers).expose_provenance() as u64).unwrap();
    }

    /// Returns the address of the next instruction.
    pub fn at(&self) -> u64 {
        self.registers().rip
    }

    /// Writes eight bytes to the child's memory.
    pub fn write(&self, address: u64, word: u64) {
        self.request(libc::PTRACE_POKEDATA, address, word).unwrap();
    }

    /// Sets breakpoints at `places`, which are at most four, and removes all others.
    ///
    /// # Errors
    /// An error if the machine does not support such breakpoints.
    pub fn break_at(&self, places: &[u64]) -> io::Result<()> {
        let register =
            |at: usize| (offset_of!(libc::user, u_debugreg) + at * size_of::<c_ulonglong>()) as u64;
        self.request(libc::PTRACE_POKEUSER, register(7), 0)?;
        let mut enabled = 0;
        for (at, &place) in places.iter().enumerate() {
            self.request(libc::PTRACE_POKEUSER, register(at), place)?;
            enabled |= 1 << (2 * at);
        }
        self.request(libc::PTRACE_POKEUSER, register(7), enabled).map(drop)
    }
}

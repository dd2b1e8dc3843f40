//! A program in a pseudo-terminal, whose screen is interpreted as a terminal emulator does.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, OptionalActions, Winsize, tcgetattr, tcsetattr, tcsetwinsize};
use zonal_testing::eventually;

pub(crate) struct Terminal {
    child: Child,
    master: File,
    /// Kept open, so that the attributes can be read after the program has ended.
    slave: File,
    screen: Arc<Mutex<vt100::Parser>>,
    output: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    /// Starts `zonal` with arguments in a terminal of 100 x 30.
    pub(crate) fn zonal(arguments: &[&str]) -> Self {
        let program = env!("CARGO_BIN_EXE_zonal");
        Self::start(Command::new("setsid").args(["--ctty", program]).args(arguments))
    }

    /// Starts a command whose program is `setsid`, which makes the terminal that of the program.
    pub(crate) fn start(command: &mut Command) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let name = OsStr::new(name.to_str().unwrap());
        let slave = OpenOptions::new().read(true).write(true).open(name).unwrap();
        tcsetwinsize(&slave, size(100, 30)).unwrap();
        let stdio = || slave.try_clone().unwrap();
        let command = command.stdin(stdio()).stdout(stdio()).stderr(stdio());
        let child = command.env("TERM", "xterm-256color").env_remove("COLUMNS").spawn().unwrap();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(cells(30), cells(100), 0)));
        let output = Arc::new(Mutex::new(Vec::new()));
        let master = File::from(master);
        let (mut from, to, all) = (master.try_clone().unwrap(), Arc::clone(&screen), Arc::clone(&output));
        thread::spawn(move || {
            let mut bytes = [0; 1 << 16];
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                all.lock().unwrap().extend_from_slice(&bytes[..count]);
                to.lock().unwrap().process(&bytes[..count]);
            }
        });
        Self { child, master, slave, screen, output }
    }

    pub(crate) fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    /// Returns everything that the program has written.
    pub(crate) fn output(&self) -> String {
        String::from_utf8_lossy(&self.output.lock().unwrap()).into_owned()
    }

    /// Waits until the screen contains a text.
    pub(crate) fn shows(&self, text: &str) {
        self.until(text, |screen| screen.contains(text));
    }

    /// Waits until the screen does not contain a text.
    pub(crate) fn hides(&self, text: &str) {
        self.until(text, |screen| !screen.contains(text));
    }

    pub(crate) fn until(&self, what: &str, holds: impl Fn(&str) -> bool) {
        let mut last = String::new();
        let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually(what, || {
                last = self.text();
                holds(&last)
            });
        }));
        waited.unwrap_or_else(|_| panic!("{what}: not in time; the screen is\n{last}"));
    }

    pub(crate) fn keys(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        self.screen.lock().unwrap().screen_mut().set_size(cells(rows), cells(columns));
        tcsetwinsize(&self.slave, size(columns, rows)).unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Ends raw mode, as a shell does when its program has stopped.
    pub(crate) fn leaves_raw_mode(&self) {
        let mut modes = tcgetattr(&self.slave).unwrap();
        modes.local_modes |= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        tcsetattr(&self.slave, OptionalActions::Now, &modes).unwrap();
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Waits until the program has been stopped.
    pub(crate) fn is_stopped(&self) {
        let stat = format!("/proc/{}/stat", self.child.id());
        eventually("the program is stopped", || {
            let text = std::fs::read_to_string(&stat).unwrap();
            text.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
        });
    }

    /// Whether the program has the terminal: raw mode, the alternate screen, the mouse, and no cursor.
    pub(crate) fn is_taken(&self) -> [bool; 4] {
        let modes = tcgetattr(&self.slave).unwrap().local_modes;
        let parser = self.screen.lock().unwrap();
        let screen = parser.screen();
        let has_mouse = screen.mouse_protocol_mode() != vt100::MouseProtocolMode::None;
        [!modes.contains(LocalModes::ICANON), screen.alternate_screen(), has_mouse, screen.hide_cursor()]
    }

    /// Waits until the terminal is as before the program. It has never been cleared or left while a style was set, which it
    /// would have kept.
    pub(crate) fn is_restored(&self) {
        eventually("the terminal is restored", || self.is_taken() == [false; 4]);
        let output = self.output();
        let (mut rest, mut is_plain) = (output.as_str(), true);
        while let Some((_, sequence)) = rest.split_once("\x1b[") {
            let end = sequence.find(|letter: char| letter.is_ascii_alphabetic()).unwrap();
            match &sequence[..=end] {
                "2J" | "?1049l" => assert!(is_plain, "a style is set before {:?}", &sequence[..=end]),
                style if style.ends_with('m') => is_plain = style == "0m",
                _ => {}
            }
            rest = &sequence[end..];
        }
    }

    /// Waits for the end of the program, and returns its exit code. The terminal must be as before.
    pub(crate) fn ends(mut self) -> Option<i32> {
        let mut status: Option<ExitStatus> = None;
        eventually("the program ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        self.is_restored();
        let status = status.unwrap();
        assert_eq!(status.signal(), None, "no signal ended it");
        status.code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A test that failed leaves its program running.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn cells(count: u16) -> NonZero<u16> {
    NonZero::new(count).unwrap()
}

fn size(columns: u16, rows: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

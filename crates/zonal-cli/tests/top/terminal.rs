//! Checks keys, sizes, signals and panics in a pseudo-terminal.

use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use zonal_live::top::{Colours, Options, run};
use zonal_live::{Sample, SimulatedSource, Source, SourceError, Watch};

use super::pty::Terminal;

fn top() -> Terminal {
    let terminal = Terminal::zonal(&["top", "--interval", "0.2"]);
    terminal.shows("NODE ZONE");
    terminal
}

#[test]
fn keys_open_panes_and_quit() {
    let mut terminal = top();
    assert_eq!(terminal.is_taken(), [true; 4]);
    for (keys, shown) in [
        ("\t", "frames / high"),
        ("3", "background_reclaimed"),
        ("4", ">= 2M"),
        ("?", "quit; Ctrl-C quits"),
        ("\x1b[Z", "quit; Ctrl-C quits"),
        ("q", ">= 2M"),
        ("1", "m l h"),
        ("n0,99999", "nodes: 0,99999_"),
        ("\r", "node 99999 does not exist"),
    ] {
        terminal.keys(keys);
        terminal.shows(shown);
    }
    terminal.keys("\x1b");
    terminal.hides("nodes: ");
    terminal.keys("q");
    assert_eq!(terminal.ends(), Some(0));
}

#[test]
fn clicks_open_panes() {
    let mut terminal = top();
    let text = terminal.text();
    let column = text.lines().nth(1).unwrap().find("4 Blocks").unwrap() + 1;
    terminal.keys(&format!("\x1b[<0;{column};2M\x1b[<0;{column};2m"));
    terminal.shows(">= 2M");
    terminal.keys("q");
    assert_eq!(terminal.ends(), Some(0));
}

#[test]
fn sizes_change_while_it_runs() {
    // Without readings, only the changes of the size let it draw.
    let mut terminal = Terminal::zonal(&["top", "--interval", "3600"]);
    terminal.shows("NODE ZONE");
    terminal.until("the second reading", |screen| screen.contains("/s  "));
    terminal.resize(40, 10);
    terminal.hides("2 Pagesets");
    terminal.resize(20, 5);
    terminal.shows("32 x 7 is the least");
    terminal.resize(1, 1);
    terminal.resize(120, 40);
    terminal.shows("Last 60 s until");
    terminal.keys("q");
    assert_eq!(terminal.ends(), Some(0));
}

#[test]
fn ctrl_c_exits_with_130() {
    let mut terminal = top();
    terminal.keys("\x03");
    assert_eq!(terminal.ends(), Some(130));
}

#[test]
fn signals_restore_the_terminal() {
    for (signal, code) in [
        (Signal::TERM, 143),
        (Signal::HUP, 129),
        (Signal::INT, 130),
        (Signal::QUIT, 131),
        (Signal::USR1, 138),
        (Signal::USR2, 140),
        (Signal::ALARM, 142),
    ] {
        let terminal = top();
        terminal.signal(signal);
        assert_eq!(terminal.ends(), Some(code), "{signal:?}");
    }
}

#[test]
fn a_stop_restores_the_terminal_until_it_continues() {
    let mut terminal = top();
    terminal.keys("\x1a");
    terminal.is_stopped();
    terminal.is_restored();
    terminal.signal(Signal::CONT);
    terminal.until("taken again", |screen| terminal.is_taken() == [true; 4] && screen.contains("NODE ZONE"));
    terminal.signal(Signal::TSTP);
    terminal.is_stopped();
    terminal.is_restored();
    terminal.signal(Signal::CONT);
    terminal.shows("NODE ZONE");
    terminal.keys("q");
    assert_eq!(terminal.ends(), Some(0));
}

/// A shell has changed the terminal's modes meanwhile.
#[test]
fn a_stop_that_cannot_be_handled_is_repaired_when_it_continues() {
    let mut terminal = top();
    terminal.signal(Signal::STOP);
    terminal.is_stopped();
    terminal.leaves_raw_mode();
    terminal.signal(Signal::CONT);
    terminal.until("taken again", |_| terminal.is_taken() == [true; 4]);
    terminal.keys("q");
    assert_eq!(terminal.ends(), Some(0));
}

#[test]
fn colours_are_off_if_requested() {
    let colours = |value: &str| {
        let program = env!("CARGO_BIN_EXE_zonal");
        let mut command = Command::new("setsid");
        let mut terminal = Terminal::start(command.args(["--ctty", program, "top"]).env("NO_COLOR", value));
        terminal.shows("NODE ZONE");
        terminal.keys("q");
        terminal.until("the end of the view", |_| terminal.is_taken() == [false; 4]);
        let output = terminal.output();
        assert_eq!(terminal.ends(), Some(0));
        let is_coloured = output.contains("\x1b[38;5;") || output.contains("\x1b[48;5;");
        (is_coloured, output.contains("\x1b[7m"))
    };
    assert_eq!(colours("1"), (false, true), "reversed text instead");
    assert_eq!(colours(""), (true, false), "an empty value does not count");
}

#[test]
fn a_terminal_without_a_cursor_is_refused() {
    let program = env!("CARGO_BIN_EXE_zonal");
    let mut command = Command::new("setsid");
    command.args(["--ctty", "env", "TERM=dumb", program, "top"]);
    let terminal = Terminal::start(&mut command);
    terminal.shows("TERM is dumb");
    assert_eq!(terminal.ends(), Some(2));
}

/// Panics at its third reading.
struct Panics(SimulatedSource, u32);

impl Source for Panics {
    fn title(&self) -> String {
        "a source that panics".to_owned()
    }

    fn read(&mut self) -> Result<Sample, SourceError> {
        self.1 += 1;
        assert!(self.1 < 3, "planted in the source");
        self.0.read()
    }
}

/// The test starts itself in a pseudo-terminal, because the panic ends the process.
#[test]
fn a_panic_restores_the_terminal_before_its_message() {
    const CHILD: &str = "ZONAL_TOP_PANICS";
    if std::env::var_os(CHILD).is_some() {
        let watch = Watch::start(Box::new(Panics(SimulatedSource::new(2, 2), 0))).unwrap();
        let options =
            Options { interval: Duration::from_millis(100), nodes: Vec::new(), colours: Colours::On };
        let _ = run(watch, options);
        return;
    }
    let test = "terminal::a_panic_restores_the_terminal_before_its_message";
    let this = std::env::current_exe().unwrap();
    let mut command = Command::new("setsid");
    command.arg("--ctty").arg(this).args(["--exact", test, "--nocapture"]).env(CHILD, "1");
    let terminal = Terminal::start(&mut command);
    terminal.shows("planted in the source");
    let output = terminal.output();
    let (left, message) = (output.find("\x1b[?1049l").unwrap(), output.find("planted in").unwrap());
    assert!(left < message, "{output:?}");
    assert_eq!(terminal.ends(), Some(101));
}

//! The loop: events of the terminal, signals and readings change the state, and the screen shows it.
//!
//! Each of the three has a thread that sends messages to the loop. A source that does not answer therefore delays only
//! its own thread.

use std::io;
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossterm::event::{self, Event};
use jiff::tz::TimeZone;
use signal_hook::consts::{
    SIGALRM, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGSTOP, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2,
};
use signal_hook::iterator::Signals;
use signal_hook::low_level::raise;

use super::app::App;
use super::draw::draw;
use super::keys::Action;
use super::reading::Reading;
use super::terminal::Screen;
use super::theme::Colours;
use crate::Watch;

/// Time until the second reading, because there are no rates before it.
const FIRST_INTERVAL: Duration = Duration::from_secs(1);
/// Time without a message after which the loop checks whether a reading is overdue.
const IDLE: Duration = Duration::from_millis(1250);

/// What to show, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Time between two readings.
    pub interval: Duration,
    /// Nodes to show, which exist; all if there are none.
    pub nodes: Vec<u64>,
    /// Whether colours are used.
    pub colours: Colours,
}

/// How the view ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// By a key.
    Quit,
    /// By Ctrl-C.
    Interrupted,
    /// By a signal.
    Signal(i32),
}

enum Message {
    Event(Event),
    Signal(i32),
    Reading(Box<Reading>),
    /// The terminal cannot be read any more.
    NoInput(io::Error),
    /// The thread that reads the source has ended, which it does only by a panic.
    NoReader,
}

/// Shows a source in this terminal until a key or a signal ends it.
///
/// # Errors
/// When the terminal cannot be used.
///
/// # Panics
/// When the source panics.
pub fn run(watch: Watch, options: Options) -> io::Result<End> {
    let (to_loop, messages) = channel();
    let (to_reader, orders) = channel();
    // Handlers are registered before the terminal is taken, so that no signal ends the process without returning it.
    listen_to_signals(to_loop.clone())?;
    let interval = options.interval;
    let app = App::new(Reading::of(&watch), options.nodes, interval, options.colours, TimeZone::system());
    let mut view = View { app, screen: Screen::take()?, to_reader, started: Instant::now() };
    view.draw()?;
    listen_to_events(to_loop.clone())?;
    let reader = start("source", move || read(watch, interval, &orders, to_loop))?;
    let end = view.follow(&messages)?;
    drop(view);
    match end {
        Some(end) => Ok(end),
        None => reader.join().map_or_else(|panic| resume_unwind(panic), |()| Ok(End::Quit)),
    }
}

/// The state, and what it is shown on.
struct View {
    app: App,
    screen: Screen,
    to_reader: Sender<Duration>,
    started: Instant,
}

/// What follows from a message.
enum Next {
    Nothing,
    Draw,
    End(Option<End>),
}

impl View {
    /// Handles messages until one ends the view; `None` if the reader has ended.
    fn follow(&mut self, messages: &Receiver<Message>) -> io::Result<Option<End>> {
        loop {
            let mut must_draw = false;
            let mut next = messages.recv_timeout(IDLE);
            self.app.is_at(self.started.elapsed());
            if let Err(RecvTimeoutError::Timeout) = next {
                must_draw = self.app.is_overdue();
            }
            // All messages that have come are handled before the next drawing.
            while let Ok(message) = next {
                match self.handle(message)? {
                    Next::Nothing => {}
                    Next::Draw => must_draw = true,
                    Next::End(end) => return Ok(end),
                }
                next = messages.recv_timeout(Duration::ZERO);
            }
            if must_draw {
                self.draw()?;
            }
        }
    }

    fn handle(&mut self, message: Message) -> io::Result<Next> {
        let action = match message {
            Message::Reading(reading) => {
                self.app.take(*reading);
                return Ok(Next::Draw);
            }
            Message::NoInput(error) => return Err(error),
            Message::NoReader => return Ok(Next::End(None)),
            Message::Signal(SIGTSTP) => Action::Suspend,
            Message::Signal(SIGCONT) => {
                self.screen.enter_again()?;
                Action::Draw
            }
            Message::Signal(SIGINT) => Action::Interrupt,
            Message::Signal(signal) => return Ok(Next::End(Some(End::Signal(signal)))),
            Message::Event(Event::Key(key)) => self.app.key(key),
            Message::Event(Event::Mouse(mouse)) => self.app.mouse(mouse),
            Message::Event(Event::Resize(..)) => Action::Draw,
            Message::Event(_) => Action::Nothing,
        };
        self.act(action)
    }

    fn act(&mut self, action: Action) -> io::Result<Next> {
        Ok(match action {
            Action::Nothing => Next::Nothing,
            Action::Draw => Next::Draw,
            Action::Quit => Next::End(Some(End::Quit)),
            Action::Interrupt => Next::End(Some(End::Interrupted)),
            Action::Redraw => {
                self.screen.redraw();
                Next::Draw
            }
            Action::Interval(interval) => {
                // A reader that has ended reports that by a message of its own.
                let _ = self.to_reader.send(interval);
                Next::Draw
            }
            Action::Suspend => {
                self.screen.leave()?;
                raise(SIGSTOP)?;
                self.screen.enter_again()?;
                Next::Draw
            }
        })
    }

    fn draw(&mut self) -> io::Result<()> {
        let drawn = self.screen.draw(|buffer| draw(buffer, &self.app))?;
        self.app.drew(drawn);
        Ok(())
    }
}

fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.to_owned()).spawn(work)
}

fn listen_to_signals(to_loop: Sender<Message>) -> io::Result<()> {
    let ending = [SIGTERM, SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM];
    let mut signals = Signals::new(ending.iter().chain(&[SIGTSTP, SIGCONT]))?;
    let listen = move || {
        let _ = signals.forever().try_for_each(|signal| to_loop.send(Message::Signal(signal)));
    };
    start("signals", listen).map(drop)
}

fn listen_to_events(to_loop: Sender<Message>) -> io::Result<()> {
    let listen = move || {
        loop {
            let message = event::read().map_or_else(Message::NoInput, Message::Event);
            let is_last = matches!(message, Message::NoInput(_));
            if to_loop.send(message).is_err() || is_last {
                return;
            }
        }
    };
    start("events", listen).map(drop)
}

/// Reports that the reader has ended, also when it panics.
struct Farewell(Sender<Message>);

impl Drop for Farewell {
    fn drop(&mut self) {
        // Without a loop there is nothing to report to.
        let _ = self.0.send(Message::NoReader);
    }
}

/// Reads the source whenever it is due. Orders change the interval, and the end of the loop ends this.
fn read(mut watch: Watch, mut interval: Duration, orders: &Receiver<Duration>, to_loop: Sender<Message>) {
    let to_loop = Farewell(to_loop);
    let mut last = Instant::now();
    let mut due = last + interval.min(FIRST_INTERVAL);
    loop {
        match orders.recv_timeout(due.saturating_duration_since(Instant::now())) {
            Ok(new) => {
                interval = new;
                due = last + interval;
            }
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                last = Instant::now();
                watch.tick();
                let reading = Message::Reading(Box::new(Reading::of(&watch)));
                if to_loop.0.send(reading).is_err() {
                    return;
                }
                // A reading that takes longer than the interval is followed by the next one after a pause.
                let next = due + interval;
                due = if next > Instant::now() { next } else { Instant::now() + interval };
            }
        }
    }
}

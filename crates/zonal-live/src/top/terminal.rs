//! Takes the terminal, and returns it as it was: also after a panic, a signal, or a stop by Ctrl-Z.

use std::io::{self, BufWriter, Stdout, Write};
use std::panic;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use crossterm::cursor::{Hide, Show};
use crossterm::event::{DisableMouseCapture, EnableMouseCapture};
use crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use crossterm::{execute, queue};
use ratatui::backend::{Backend, CrosstermBackend};
use ratatui::layout::Rect;
use ratatui::{Frame, Terminal};

/// Whether this process has the terminal.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);
static HOOK: Once = Once::new();
/// Bytes that one write to the terminal may have.
const WRITE_BYTES: usize = 64 << 10;

/// The terminal of this process, in raw mode and on its alternate screen.
pub(super) struct Screen(Terminal<CrosstermBackend<BufWriter<Stdout>>>);

impl Screen {
    /// Takes the terminal. It is returned when the result is dropped, and before the message of a panic is printed.
    pub(super) fn take() -> io::Result<Self> {
        HOOK.call_once(|| {
            let print = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                give_back();
                print(info);
            }));
        });
        enter()?;
        let writer = BufWriter::with_capacity(WRITE_BYTES, io::stdout());
        let terminal = Terminal::new(CrosstermBackend::new(writer));
        terminal.map(Self).inspect_err(|_| give_back())
    }

    /// Draws, unless a panic elsewhere has already returned the terminal.
    pub(super) fn draw(&mut self, render: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        // Relaxed: the worst case is one drawing after the message of a panic.
        if IS_TAKEN.load(Ordering::Relaxed) {
            self.0.draw(render)?;
        }
        Ok(())
    }

    /// Returns the terminal until [`Self::enter_again`].
    pub(super) fn leave(&mut self) -> io::Result<()> {
        Write::flush(self.0.backend_mut())?;
        give_back();
        Ok(())
    }

    /// Takes the terminal again after other programs have used it, and forgets what it showed.
    pub(super) fn enter_again(&mut self) -> io::Result<()> {
        enter()?;
        self.redraw()
    }

    /// Lets the next drawing write every cell. `Terminal::clear` would ask the terminal where its cursor is, and the
    /// thread that reads events would take the answer.
    pub(super) fn redraw(&mut self) -> io::Result<()> {
        let size = self.0.backend().size()?;
        self.0.resize(Rect::new(0, 0, size.width, size.height))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

fn enter() -> io::Result<()> {
    enable_raw_mode()?;
    // Relaxed: a panic on another thread may still be too early to find a terminal that it must return.
    IS_TAKEN.store(true, Ordering::Relaxed);
    execute!(io::stdout(), EnterAlternateScreen, EnableMouseCapture, Hide)
}

/// Returns the terminal if this process has it. Failures are ignored, because a terminal that is gone needs nothing.
fn give_back() {
    // Relaxed: only one of several callers may return the terminal, and they share nothing else.
    if IS_TAKEN.swap(false, Ordering::Relaxed) {
        let mut out = io::stdout();
        let _ = queue!(out, DisableMouseCapture, LeaveAlternateScreen, Show);
        let _ = out.flush();
        let _ = disable_raw_mode();
    }
}

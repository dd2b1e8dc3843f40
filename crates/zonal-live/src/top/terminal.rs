//! Takes the terminal, and returns it as it was: also after a panic, a signal, or a stop by Ctrl-Z.

use std::io::{self, BufWriter, Stdout, Write};
use std::panic;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{DisableMouseCapture, EnableMouseCapture};
use crossterm::style::{Attribute, Print, SetAttribute, SetBackgroundColor, SetForegroundColor};
use crossterm::terminal::{self, Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{execute, queue};
use ratatui_core::buffer::{Buffer, Cell};
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier};

/// Whether this process has the terminal.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);
static HOOK: Once = Once::new();
/// Bytes that one write to the terminal may have.
const WRITE_BYTES: usize = 64 << 10;

/// The terminal of this process, in raw mode and on its alternate screen.
pub(super) struct Screen {
    out: BufWriter<Stdout>,
    /// What the terminal shows.
    shown: Buffer,
}

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
        Ok(Self { out: BufWriter::with_capacity(WRITE_BYTES, io::stdout()), shown: Buffer::default() })
    }

    /// Draws by `render`, and writes the cells that differ from what the terminal shows. Writes nothing if a panic
    /// elsewhere has already returned the terminal.
    pub(super) fn draw<T>(&mut self, render: impl FnOnce(&mut Buffer) -> T) -> io::Result<T> {
        let (width, height) = terminal::size()?;
        let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
        let drawn = render(&mut buffer);
        // Relaxed: the worst case is one drawing after the message of a panic.
        if !IS_TAKEN.load(Ordering::Relaxed) {
            return Ok(drawn);
        }
        if self.shown.area != buffer.area {
            queue!(self.out, Clear(ClearType::All))?;
            self.shown = Buffer::empty(buffer.area);
        }
        let mut last: Option<(u16, u16, &Cell)> = None;
        for (x, y, cell) in self.shown.diff(&buffer) {
            if last.is_none_or(|(last_x, last_y, _)| (last_x + 1, last_y) != (x, y)) {
                queue!(self.out, MoveTo(x, y))?;
            }
            if last.is_none_or(|(_, _, last)| last.style() != cell.style()) {
                write_style(&mut self.out, cell)?;
            }
            queue!(self.out, Print(cell.symbol()))?;
            last = Some((x, y, cell));
        }
        // A terminal clears with the style that is set, and keeps it for the next program.
        queue!(self.out, SetAttribute(Attribute::Reset))?;
        self.out.flush()?;
        self.shown = buffer;
        Ok(drawn)
    }

    /// Returns the terminal until [`Self::enter_again`].
    pub(super) fn leave(&mut self) -> io::Result<()> {
        self.out.flush()?;
        give_back();
        Ok(())
    }

    /// Takes the terminal again after other programs have used it, and forgets what it showed.
    ///
    /// After `SIGSTOP`, this process still counts as having the terminal, although a shell has changed its modes since, and
    /// raw mode is not enabled twice. Therefore the terminal is returned first.
    pub(super) fn enter_again(&mut self) -> io::Result<()> {
        self.redraw();
        self.leave()?;
        enter()
    }

    /// Lets the next drawing write every cell.
    pub(super) fn redraw(&mut self) {
        self.shown = Buffer::default();
    }
}

/// Writes the style of a cell. The theme has no other colours and modifiers.
fn write_style(out: &mut impl Write, cell: &Cell) -> io::Result<()> {
    queue!(out, SetAttribute(Attribute::Reset))?;
    for (modifier, attribute) in [
        (Modifier::BOLD, Attribute::Bold),
        (Modifier::DIM, Attribute::Dim),
        (Modifier::UNDERLINED, Attribute::Underlined),
        (Modifier::REVERSED, Attribute::Reverse),
    ] {
        if cell.modifier.contains(modifier) {
            queue!(out, SetAttribute(attribute))?;
        }
    }
    if let Color::Indexed(colour) = cell.fg {
        queue!(out, SetForegroundColor(crossterm::style::Color::AnsiValue(colour)))?;
    }
    if let Color::Indexed(colour) = cell.bg {
        queue!(out, SetBackgroundColor(crossterm::style::Color::AnsiValue(colour)))?;
    }
    Ok(())
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

fn enter() -> io::Result<()> {
    terminal::enable_raw_mode()?;
    // Relaxed: a panic on another thread may still be too early to find a terminal that it must return.
    IS_TAKEN.store(true, Ordering::Relaxed);
    execute!(io::stdout(), EnterAlternateScreen, EnableMouseCapture, Hide)
}

/// Returns the terminal if this process has it. Failures are ignored, because a terminal that is gone needs nothing.
fn give_back() {
    // Relaxed: only one of several callers may return the terminal, and they share nothing else.
    if IS_TAKEN.swap(false, Ordering::Relaxed) {
        let mut out = io::stdout();
        let _ = queue!(out, SetAttribute(Attribute::Reset), DisableMouseCapture, LeaveAlternateScreen, Show);
        let _ = out.flush();
        let _ = terminal::disable_raw_mode();
    }
}

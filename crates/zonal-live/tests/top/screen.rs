//! A screen of any size, with a view on it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers, MouseEvent, MouseEventKind};
use jiff::tz::TimeZone;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use zonal_live::top::{Action, App, Colours, Reading, draw};
use zonal_live::{Source, Watch};

pub(crate) struct Screen {
    pub(crate) app: App,
    buffer: Buffer,
    watch: Watch,
    seconds: u64,
}

impl Screen {
    /// Shows a source that has been read `ticks` times, one second apart.
    pub(crate) fn new(source: impl Source + 'static, ticks: u64, size: (u16, u16), colours: Colours) -> Self {
        let watch = Watch::start(Box::new(source)).unwrap();
        let interval = Duration::from_secs(1);
        let app = App::new(Reading::of(&watch), Vec::new(), interval, colours, TimeZone::UTC);
        let buffer = Buffer::empty(Rect::new(0, 0, size.0, size.1));
        let mut screen = Self { app, buffer, watch, seconds: 0 };
        (1..ticks).for_each(|_| screen.tick());
        screen.draw();
        screen
    }

    /// Reads the source, one second later.
    pub(crate) fn tick(&mut self) {
        self.watch.tick();
        self.seconds += 1;
        self.app.is_at(Duration::from_secs(self.seconds));
        self.app.take(Reading::of(&self.watch));
    }

    /// Lets time pass without a reading.
    pub(crate) fn wait(&mut self, seconds: u64) {
        self.seconds += seconds;
        self.app.is_at(Duration::from_secs(self.seconds));
        self.draw();
    }

    pub(crate) fn draw(&mut self) {
        self.buffer.reset();
        let drawn = draw(&mut self.buffer, &self.app);
        self.app.drew(drawn);
    }

    pub(crate) fn resize(&mut self, width: u16, height: u16) {
        self.buffer.resize(Rect::new(0, 0, width, height));
        self.draw();
    }

    pub(crate) fn key(&mut self, code: KeyCode) -> Action {
        let action = self.app.key(KeyEvent::new(code, KeyModifiers::NONE));
        self.draw();
        action
    }

    /// Types letters.
    pub(crate) fn keys(&mut self, letters: &str) {
        letters.chars().for_each(|letter| {
            self.key(KeyCode::Char(letter));
        });
    }

    pub(crate) fn mouse(&mut self, kind: MouseEventKind, column: u16, row: u16) -> Action {
        let action = self.app.mouse(MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE });
        self.draw();
        action
    }

    pub(crate) fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Returns the text of the screen, without spaces at the ends of lines.
    pub(crate) fn text(&self) -> String {
        let area = self.buffer().area;
        let line = |y| {
            let line: String = (0..area.width).map(|x| self.buffer()[(x, y)].symbol()).collect();
            line.trim_end().to_owned() + "\n"
        };
        (0..area.height).map(line).collect()
    }

    /// Returns the first position of a text on the screen.
    pub(crate) fn find(&self, wanted: &str) -> (u16, u16) {
        let text = self.text();
        let found = text.lines().enumerate().find_map(|(row, line)| Some((row, line.find(wanted)?, line)));
        let (row, at, line) = found.unwrap_or_else(|| panic!("{wanted} is not in\n{text}"));
        (line[..at].chars().count() as u16, row as u16)
    }

    /// Returns the text, a second grid that has a letter for the style of each cell, and what the letters mean.
    pub(crate) fn with_styles(&self) -> String {
        let buffer = self.buffer();
        let mut letters: BTreeMap<String, char> = BTreeMap::new();
        let mut legend = String::new();
        let mut grid = String::new();
        for y in 0..buffer.area.height {
            let mut line = String::new();
            for x in 0..buffer.area.width {
                let cell = &buffer[(x, y)];
                let style = format!("fg {:?}, bg {:?}, {:?}", cell.fg, cell.bg, cell.modifier);
                let next = match letters.len() {
                    0..26 => (b'a' + letters.len() as u8) as char,
                    count => (b'A' + (count - 26) as u8) as char,
                };
                let plain = style == "fg Reset, bg Reset, NONE";
                let letter = if plain { ' ' } else { *letters.entry(style.clone()).or_insert(next) };
                if letter == next && !plain {
                    writeln!(legend, "{letter}: {style}").unwrap();
                }
                line.push(letter);
            }
            writeln!(grid, "{}", line.trim_end()).unwrap();
        }
        format!("{}\n--- styles\n{grid}\n{legend}", self.text())
    }
}

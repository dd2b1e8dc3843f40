//! Draws at random sizes between random events. Nothing may panic or write outside the screen.

use crossterm::event::{KeyCode, MouseButton, MouseEventKind};
use zonal_live::top::Colours;
use zonal_live::{Sample, SimulatedSource, Source, SourceError};

use super::machine::Machine;
use super::screen::Screen;

/// A generator of numbers (xorshift), the same ones in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

const KEYS: [KeyCode; 16] = [
    KeyCode::Up,
    KeyCode::Down,
    KeyCode::Left,
    KeyCode::Right,
    KeyCode::PageUp,
    KeyCode::PageDown,
    KeyCode::Home,
    KeyCode::End,
    KeyCode::Tab,
    KeyCode::BackTab,
    KeyCode::Enter,
    KeyCode::Esc,
    KeyCode::Backspace,
    KeyCode::F(1),
    KeyCode::Delete,
    KeyCode::Insert,
];
const LETTERS: &[u8] = b"1234sSrnmatpghjklG?/+-=_ 0,2-39x";

fn try_events(screen: &mut Screen, random: &mut Random, steps: u64) {
    for _ in 0..steps {
        let size = match random.below(4) {
            0 => (1 + random.below(45), 1 + random.below(12)),
            _ => (1 + random.below(300), 1 + random.below(100)),
        };
        screen.resize(size.0 as u16, size.1 as u16);
        // What lies over the panes is closed often, because it takes most keys.
        if random.below(2) == 0 {
            screen.key(KeyCode::Esc);
        }
        for _ in 0..4 {
            let (x, y) = (random.below(size.0) as u16, random.below(size.1) as u16);
            match random.below(8) {
                0 => drop(screen.mouse(MouseEventKind::Down(MouseButton::Left), x, y)),
                1 => drop(screen.mouse(MouseEventKind::Moved, x, y)),
                2 => drop(screen.mouse(MouseEventKind::ScrollDown, x, y)),
                3 => drop(screen.mouse(MouseEventKind::ScrollRight, x, y)),
                4 => drop(screen.key(KEYS[random.below(KEYS.len() as u64) as usize])),
                5 => screen.tick(),
                _ => {
                    let letter = LETTERS[random.below(LETTERS.len() as u64) as usize];
                    screen.key(KeyCode::Char(letter.into()));
                }
            }
        }
    }
}

#[test]
fn any_size_and_any_event() {
    for seed in 1_u64..=12 {
        let mut random = Random(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let colours = if seed % 2 == 0 { Colours::On } else { Colours::Off };
        let mut screen = match seed % 3 {
            0 => Screen::new(SimulatedSource::new(9, 30), 3, (80, 24), colours),
            1 => Screen::new(Machine { failures: 20..40, ..Machine::new() }, 1, (80, 24), colours),
            _ => Screen::new(SimulatedSource::new(1, 1), 1, (80, 24), colours),
        };
        try_events(&mut screen, &mut random, 60);
    }
}

#[test]
fn every_small_size() {
    let mut screen = Screen::new(Machine::new(), 5, (80, 24), Colours::On);
    for pane in ["1", "2", "3", "4", "?", "?n"] {
        screen.keys(pane);
        for width in 1..90 {
            for height in 1..14 {
                screen.resize(width, height);
            }
        }
    }
}

/// Reports the largest numbers, and far more orders than exist.
struct Hostile;

impl Source for Hostile {
    fn title(&self) -> String {
        "hostile".to_owned()
    }

    fn read(&mut self) -> Result<Sample, SourceError> {
        let mut sample = SimulatedSource::new(3, 2).read()?;
        sample.page_bytes = u64::MAX;
        for zone in &mut sample.zones {
            zone.free_blocks = vec![u64::MAX; 100_000];
            (zone.managed, zone.free, zone.in_pagesets) = (u64::MAX, u64::MAX, u64::MAX);
            (zone.min, zone.low, zone.high) = (u64::MAX, 0, u64::MAX);
        }
        for pageset in &mut sample.pagesets {
            (pageset.count, pageset.high, pageset.cpu) = (u64::MAX, u64::MAX, u64::MAX - pageset.cpu);
            (pageset.refills, pageset.drains) = (Some(u64::MAX), Some(u64::MAX));
        }
        Ok(sample)
    }
}

#[test]
fn any_numbers() {
    let mut screen = Screen::new(Hostile, 3, (80, 24), Colours::On);
    for pane in ["1", "2", "3", "4"] {
        screen.key(KeyCode::Esc);
        screen.keys(pane);
        try_events(&mut screen, &mut Random(77), 15);
    }
}

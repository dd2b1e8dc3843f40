//! Colours and other attributes. Everything that a colour says is also said by a symbol, a letter or a word.

use ratatui_core::style::{Color, Modifier, Style};

use crate::sample::Pressure;

/// Whether colours are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Colours {
    /// Colours of the 256-colour palette.
    On,
    /// Bold, dim and reversed text only, as `NO_COLOR` requests.
    Off,
}

/// Steps of the heat map, each with the colours of its cells and their text.
const HEAT: [(u8, u8); 10] = [
    (236, 244),
    (17, 252),
    (18, 252),
    (24, 255),
    (30, 255),
    (36, 16),
    (71, 16),
    (106, 16),
    (178, 16),
    (220, 16),
];

impl Colours {
    fn of(self, colour: u8, without: Modifier) -> Style {
        match self {
            Self::On => Style::new().fg(Color::Indexed(colour)),
            Self::Off => Style::new().add_modifier(without),
        }
    }

    fn on(self, text: u8, behind: u8, without: Modifier) -> Style {
        match self {
            Self::On => Style::new().fg(Color::Indexed(text)).bg(Color::Indexed(behind)),
            Self::Off => Style::new().add_modifier(without),
        }
    }

    /// Returns the style of the line at the top.
    pub(super) fn title(self) -> Style {
        self.on(255, 24, Modifier::REVERSED)
    }

    /// Returns the style of the open pane's name.
    pub(super) fn tab(self) -> Style {
        self.on(16, 75, Modifier::REVERSED).add_modifier(Modifier::BOLD)
    }

    /// Returns the style of keys and other names.
    pub(super) fn key(self) -> Style {
        self.of(75, Modifier::BOLD)
    }

    /// Returns the style of a table's head.
    pub(super) fn head(self) -> Style {
        self.on(252, 237, Modifier::UNDERLINED)
    }

    /// Returns the head's style for the column by which a table is sorted.
    pub(super) fn sorted(self) -> Style {
        self.on(220, 237, Modifier::UNDERLINED).add_modifier(Modifier::BOLD)
    }

    /// Returns the style of the selected row, whose cells keep their colours.
    pub(super) fn selected(self) -> Style {
        match self {
            Self::On => Style::new().bg(Color::Indexed(238)).add_modifier(Modifier::BOLD),
            Self::Off => Style::new().add_modifier(Modifier::REVERSED),
        }
    }

    /// Returns the style of the heat map's selected cell.
    pub(super) fn cursor(self) -> Style {
        self.on(16, 231, Modifier::REVERSED).add_modifier(Modifier::BOLD)
    }

    /// Returns the style of what is less important.
    pub(super) fn dim(self) -> Style {
        self.of(244, Modifier::DIM)
    }

    /// Returns the style of what is more important.
    pub(super) const fn strong() -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// Returns the style of a problem that the user must see.
    pub(super) fn problem(self) -> Style {
        self.on(231, 124, Modifier::REVERSED).add_modifier(Modifier::BOLD)
    }

    /// Returns the style of what is not as usual, such as a pause.
    pub(super) fn notice(self) -> Style {
        self.on(16, 178, Modifier::REVERSED)
    }

    /// Returns the style of free frames, by how scarce they are.
    pub(super) fn pressure(self, pressure: Pressure) -> Style {
        match pressure {
            Pressure::None => self.of(71, Modifier::empty()),
            Pressure::BelowHigh => self.of(178, Modifier::empty()),
            Pressure::BelowLow => self.of(208, Modifier::BOLD),
            Pressure::BelowMin => self.of(196, Modifier::BOLD).add_modifier(Modifier::BOLD),
        }
    }

    /// Returns the style of allocations where they were preferred.
    pub(super) fn hit(self) -> Style {
        self.of(71, Modifier::empty())
    }

    /// Returns the style of allocations elsewhere.
    pub(super) fn miss(self) -> Style {
        self.of(208, Modifier::empty())
    }

    /// Returns the style of what is neither good nor bad.
    pub(super) fn neutral(self) -> Style {
        self.of(74, Modifier::empty())
    }

    /// Returns the style of a heat map step.
    pub(super) fn heat(self, step: usize) -> Style {
        let (behind, text) = HEAT[step.min(HEAT.len() - 1)];
        self.on(text, behind, Modifier::empty())
    }
}

/// Returns the step of a value between 0 and 1 in the heat map: 0 for nothing, 1 for little, 9 for everything.
pub(super) fn step(value: f64) -> usize {
    let last = HEAT.len() - 1;
    if value > 0.0 { ((value * last as f64).ceil() as usize).min(last) } else { 0 }
}

/// Returns the words for the pressure of a zone.
#[must_use]
pub const fn words(pressure: Pressure) -> &'static str {
    match pressure {
        Pressure::None => "ok",
        Pressure::BelowHigh => "< high",
        Pressure::BelowLow => "< low",
        Pressure::BelowMin => "< MIN!",
    }
}

//! Colours of tables and charts for light and dark mode, distinguishable by colour-blind readers.
//!
//! Charts are drawn in the light colours; [`css`] returns the CSS rules that replace each with its dark
//! counterpart, so one drawing serves both modes. Neighbours: `report/canvas.rs` draws with them.

use std::fmt::Write as _;

use plotters::style::RGBColor;

use crate::experiment::results::Role;

/// Text and frames.
pub(super) const INK: RGBColor = RGBColor(40, 44, 52);
/// Secondary text.
pub(super) const SOFT: RGBColor = RGBColor(92, 98, 108);
/// Grid lines.
pub(super) const GRID: RGBColor = RGBColor(222, 224, 228);
/// Background.
pub(super) const PAPER: RGBColor = RGBColor(255, 255, 255);

const GREY: RGBColor = RGBColor(108, 114, 126);
const BLUE: RGBColor = RGBColor(0, 108, 174);
const VERMILION: RGBColor = RGBColor(196, 78, 32);
const GREEN: RGBColor = RGBColor(0, 122, 90);
const PINK: RGBColor = RGBColor(170, 66, 126);
const YELLOW: RGBColor = RGBColor(148, 110, 0);
const PURPLE: RGBColor = RGBColor(104, 80, 164);
const SKY: RGBColor = RGBColor(20, 122, 150);

/// Light colours and their dark counterparts. Other colours are the same in both modes.
const MODES: [(RGBColor, RGBColor); 12] = [
    (INK, RGBColor(226, 229, 233)),
    (SOFT, RGBColor(164, 170, 180)),
    (GRID, RGBColor(58, 63, 72)),
    (PAPER, RGBColor(24, 27, 32)),
    (GREY, RGBColor(176, 182, 192)),
    (BLUE, RGBColor(92, 178, 236)),
    (VERMILION, RGBColor(245, 142, 98)),
    (GREEN, RGBColor(52, 196, 154)),
    (PINK, RGBColor(232, 144, 196)),
    (YELLOW, RGBColor(226, 188, 72)),
    (PURPLE, RGBColor(178, 160, 230)),
    (SKY, RGBColor(110, 205, 226)),
];

/// Colours of variants: greys for the baseline, blue and similar colours for the published mechanism, vermilion
/// and similar colours for this project's variants.
const BASELINES: [RGBColor; 2] = [GREY, SKY];
const PUBLISHED: [RGBColor; 3] = [BLUE, GREEN, PURPLE];
const OURS: [RGBColor; 3] = [VERMILION, PINK, YELLOW];

/// Colours for a few lines in one chart.
const LINES: [RGBColor; 8] = [BLUE, VERMILION, GREEN, PURPLE, YELLOW, GREY, PINK, SKY];

/// Gradient for many ordered lines; all its colours have similar brightness.
const RAMP: [RGBColor; 5] = [
    RGBColor(62, 112, 190),
    RGBColor(24, 142, 134),
    RGBColor(128, 132, 36),
    RGBColor(206, 106, 44),
    RGBColor(204, 84, 140),
];

/// Number of further variants of a role that are distinguished along the gradient.
const MANY: usize = 16;

/// Fill colours of causes, most expensive first; the remaining causes use [`REST`].
pub(super) const CAUSES: [RGBColor; 6] = [
    RGBColor(59, 120, 181),
    RGBColor(230, 159, 0),
    RGBColor(46, 150, 116),
    RGBColor(204, 121, 167),
    RGBColor(140, 199, 238),
    RGBColor(188, 72, 30),
];
pub(super) const REST: RGBColor = RGBColor(176, 180, 188);

/// Returns the colour of the `nth` variant of a role.
pub(super) fn variant(role: Role, nth: usize) -> RGBColor {
    let colors: &[RGBColor] = match role {
        Role::Baseline => &BASELINES,
        Role::Published => &PUBLISHED,
        Role::Ours => &OURS,
    };
    // Further variants take their colours from the gradient.
    colors.get(nth).copied().unwrap_or_else(|| ramp(nth - colors.len(), MANY))
}

/// Returns the colour of line `at` of `of` lines.
pub(super) fn line(at: usize, of: usize) -> RGBColor {
    if of <= LINES.len() {
        return LINES[at.min(LINES.len() - 1)];
    }
    ramp(at, of)
}

/// Returns colour `at` of `of` colours along the gradient; `of` is at least two.
fn ramp(at: usize, of: usize) -> RGBColor {
    let place = at.min(of - 1) as f64 / (of - 1) as f64 * (RAMP.len() - 1) as f64;
    let below = (place.floor() as usize).min(RAMP.len() - 2);
    let share = place - below as f64;
    let (from, to) = (RAMP[below], RAMP[below + 1]);
    let mix = |a: u8, b: u8| (f64::from(a) + (f64::from(b) - f64::from(a)) * share).round() as u8;
    RGBColor(mix(from.0, to.0), mix(from.1, to.1), mix(from.2, to.2))
}

/// Returns the maximum number of lines with distinct colours.
pub(super) const fn distinct_lines() -> usize {
    LINES.len()
}

/// Returns a text colour that is readable on `fill`, in light and dark mode.
pub(super) fn text_on(fill: RGBColor) -> RGBColor {
    let light = 0.3 * f64::from(fill.0) + 0.59 * f64::from(fill.1) + 0.11 * f64::from(fill.2);
    if light > 135.0 { RGBColor(17, 17, 17) } else { RGBColor(254, 254, 254) }
}

/// Formats a colour for CSS and SVG.
pub(super) fn hex(color: RGBColor) -> String {
    format!("#{:02X}{:02X}{:02X}", color.0, color.1, color.2)
}

/// Returns the CSS for charts within `scope` (a selector, or empty for a whole document): dark mode, and rounded
/// line joints.
pub(super) fn css(scope: &str) -> String {
    let mut rules = format!("{scope}polyline{{stroke-linejoin:round;stroke-linecap:round}}");
    rules.push_str("@media screen and (prefers-color-scheme:dark){");
    for (light, dark) in MODES {
        let (light, dark) = (hex(light), hex(dark));
        let _ = write!(rules, "{scope}[fill=\"{light}\"]{{fill:{dark}}}");
        let _ = write!(rules, "{scope}[stroke=\"{light}\"]{{stroke:{dark}}}");
    }
    rules.push('}');
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the relative luminance defined by WCAG.
    fn luminance(color: RGBColor) -> f64 {
        let linear = |byte: u8| {
            let share = f64::from(byte) / 255.0;
            if share <= 0.04045 { share / 12.92 } else { ((share + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * linear(color.0) + 0.7152 * linear(color.1) + 0.0722 * linear(color.2)
    }

    fn contrast(a: RGBColor, b: RGBColor) -> f64 {
        let (a, b) = (luminance(a) + 0.05, luminance(b) + 0.05);
        if a > b { a / b } else { b / a }
    }

    #[test]
    fn colours_of_text_can_be_read_in_both_modes() {
        let dark_paper = MODES.iter().find(|(light, _)| *light == PAPER).unwrap().1;
        for (light, dark) in MODES.iter().filter(|(light, _)| ![GRID, PAPER].contains(light)) {
            assert!(contrast(*light, PAPER) >= 4.5, "{light:?} {}", contrast(*light, PAPER));
            assert!(contrast(*dark, dark_paper) >= 4.5, "{dark:?}");
        }
        for at in 0..32 {
            let color = line(at, 32);
            assert!(contrast(color, PAPER) >= 2.9 && contrast(color, dark_paper) >= 2.9, "{color:?}");
        }
        for fill in CAUSES.into_iter().chain([REST]) {
            assert!(contrast(fill, text_on(fill)) >= 3.5, "{fill:?} {}", contrast(fill, text_on(fill)));
        }
    }

    #[test]
    fn a_ramp_goes_from_its_first_colour_to_its_last() {
        for of in [2, 7, 40] {
            let colors: Vec<RGBColor> = (0..of).map(|at| ramp(at, of)).collect();
            assert_eq!((colors[0], colors[of - 1]), (RAMP[0], RAMP[RAMP.len() - 1]), "{of}");
            assert!(colors.windows(2).all(|pair| pair[0] != pair[1]), "{colors:?}");
        }
        assert_eq!(ramp(RAMP.len() - 2, RAMP.len()), RAMP[RAMP.len() - 2]);
    }

    #[test]
    fn fills_are_the_same_in_both_modes() {
        let lines = (0..40).map(|at| line(at, 40));
        for fill in CAUSES.into_iter().chain([REST]).chain(lines) {
            assert!(MODES.iter().all(|(light, _)| *light != fill), "{fill:?}");
        }
    }

    #[test]
    fn no_two_colours_have_the_same_light_one() {
        for (at, (light, _)) in MODES.iter().enumerate() {
            assert!(MODES[..at].iter().all(|(other, _)| other != light), "{light:?}");
        }
    }
}

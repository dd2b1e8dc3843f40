//! Colours of charts for light and dark mode. Colour-blind readers can distinguish them.
//!
//! Charts are drawn in the light colours. CSS rules replace each of these with its dark counterpart, so one drawing
//! serves both modes. Other colours are the same in both modes. Related files: `page.css` has the colours of pages.

use plotters::prelude::{ColorMap, DerivedColorMap};
pub use plotters::style::RGBColor as Color;

/// Text and frames.
pub const INK: Color = Color(40, 44, 52);
/// Secondary text.
pub const SOFT: Color = Color(92, 98, 108);
/// Grid lines.
pub(crate) const GRID: Color = Color(222, 224, 228);
/// Background.
pub(crate) const PAPER: Color = Color(255, 255, 255);

/// Grey for lines and bars.
pub const GREY: Color = Color(108, 114, 126);
/// Blue for lines and bars.
pub const BLUE: Color = Color(0, 108, 174);
/// Vermilion for lines and bars.
pub const VERMILION: Color = Color(196, 78, 32);
/// Green for lines and bars.
pub const GREEN: Color = Color(0, 122, 90);
/// Pink for lines and bars.
pub const PINK: Color = Color(170, 66, 126);
/// Yellow for lines and bars.
pub const YELLOW: Color = Color(148, 110, 0);
/// Purple for lines and bars.
pub const PURPLE: Color = Color(104, 80, 164);
/// Light blue for lines and bars.
pub const SKY: Color = Color(20, 122, 150);

/// Colours and their dark counterparts.
const MODES: [(Color, Color); 12] = [
    (INK, Color(226, 229, 233)),
    (SOFT, Color(164, 170, 180)),
    (GRID, Color(58, 63, 72)),
    (PAPER, Color(24, 27, 32)),
    (GREY, Color(176, 182, 192)),
    (BLUE, Color(92, 178, 236)),
    (VERMILION, Color(245, 142, 98)),
    (GREEN, Color(52, 196, 154)),
    (PINK, Color(232, 144, 196)),
    (YELLOW, Color(226, 188, 72)),
    (PURPLE, Color(178, 160, 230)),
    (SKY, Color(110, 205, 226)),
];

/// Colours for a few lines in one chart.
const LINES: [Color; 8] = [BLUE, VERMILION, GREEN, PURPLE, YELLOW, GREY, PINK, SKY];

/// Maximum number of lines for which [`line()`] returns unrelated colours.
pub const DISTINCT_LINES: usize = LINES.len();

/// Gradient for many ordered lines. All its colours have similar brightness.
const RAMP: [Color; 5] =
    [Color(62, 112, 190), Color(24, 142, 134), Color(128, 132, 36), Color(206, 106, 44), Color(204, 84, 140)];

/// Fill colours for the parts of stacked bars, the same in both modes.
pub const FILLS: [Color; 6] = [
    Color(59, 120, 181),
    Color(230, 159, 0),
    Color(46, 150, 116),
    Color(204, 121, 167),
    Color(140, 199, 238),
    Color(188, 72, 30),
];
/// Fill colour for the remainder of a stacked bar.
pub const REST: Color = Color(176, 180, 188);

/// Levels of a heat map.
pub(crate) const HEAT_LEVELS: usize = 9;
/// Gradient of a heat map in light mode, from small to large values.
const HEAT: [Color; 3] = [Color(238, 244, 250), Color(112, 170, 216), Color(10, 72, 128)];
/// Gradient of a heat map in dark mode.
const DARK_HEAT: [Color; 3] = [Color(36, 44, 54), Color(38, 98, 148), Color(176, 218, 248)];

/// Returns the colour of line `at` among `of` lines.
#[must_use]
pub fn line(at: usize, of: usize) -> Color {
    if of <= DISTINCT_LINES { LINES[at.min(DISTINCT_LINES - 1)] } else { ramp(at, of) }
}

/// Returns colour number `at` of `of` colours along a gradient. `of` must be at least two.
#[must_use]
pub fn ramp(at: usize, of: usize) -> Color {
    DerivedColorMap::new(&RAMP).get_color_normalized(at as f64, 0.0, (of - 1) as f64)
}

/// Returns a text colour that is readable on `fill`, in light and dark mode.
pub(crate) fn text_on(fill: Color) -> Color {
    let light = 0.3 * f64::from(fill.0) + 0.59 * f64::from(fill.1) + 0.11 * f64::from(fill.2);
    if light > 135.0 { Color(17, 17, 17) } else { Color(254, 254, 254) }
}

/// Returns the fill and text colours of a heat map level.
fn heat(gradient: &[Color; 3], level: usize) -> (Color, Color) {
    let at = level as f64 / (HEAT_LEVELS - 1) as f64;
    let fill = DerivedColorMap::new(gradient).get_color_normalized(at, 0.0, 1.0);
    let (dark, light) = (Color(0, 0, 0), Color(255, 255, 255));
    (fill, if contrast(fill, dark) > contrast(fill, light) { dark } else { light })
}

/// Returns the contrast of two colours, as defined by WCAG 2.
fn contrast(a: Color, b: Color) -> f64 {
    let linear = |byte: u8| {
        let share = f64::from(byte) / 255.0;
        if share <= 0.04045 { share / 12.92 } else { ((share + 0.055) / 1.055).powf(2.4) }
    };
    let [a, b] = [a, b].map(|c| 0.2126 * linear(c.0) + 0.7152 * linear(c.1) + 0.0722 * linear(c.2) + 0.05);
    if a > b { a / b } else { b / a }
}

/// Formats a colour for CSS and SVG.
#[must_use]
pub fn hex(color: Color) -> String {
    format!("#{:02X}{:02X}{:02X}", color.0, color.1, color.2)
}

/// Returns the CSS rules of charts: dark mode, levels of heat maps, and rounded line joints.
pub(crate) fn css() -> String {
    let levels = |gradient: &[Color; 3]| -> String {
        let rule = |level| {
            let (fill, text) = heat(gradient, level);
            let (fill, text) = (hex(fill), hex(text));
            format!(".h{level}{{background:{fill};fill:{fill};color:{text}}}")
        };
        (0..HEAT_LEVELS).map(rule).collect()
    };
    let (heat, dark_heat) = (levels(&HEAT), levels(&DARK_HEAT));
    let rules = MODES.map(|(light, dark)| {
        let (light, dark) = (hex(light), hex(dark));
        format!("svg [fill=\"{light}\"]{{fill:{dark}}}svg [stroke=\"{light}\"]{{stroke:{dark}}}")
    });
    let rules = rules.concat();
    format!(
        "svg polyline{{stroke-linejoin:round;stroke-linecap:round}}\
         {heat}@media screen and (prefers-color-scheme:dark){{{rules}{dark_heat}}}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_of_text_can_be_read_in_both_modes() {
        let dark_paper = MODES.iter().find(|(light, _)| *light == PAPER).unwrap().1;
        for (light, dark) in MODES.iter().filter(|(light, _)| ![GRID, PAPER].contains(light)) {
            assert!(contrast(*light, PAPER) >= 4.5, "{light:?} {}", contrast(*light, PAPER));
            assert!(contrast(*dark, dark_paper) >= 4.5, "{dark:?}");
        }
        for color in (0..32).map(|at| line(at, 32)) {
            assert!(contrast(color, PAPER) >= 2.9 && contrast(color, dark_paper) >= 2.9, "{color:?}");
        }
        for fill in FILLS.into_iter().chain([REST]) {
            assert!(contrast(fill, text_on(fill)) >= 3.5, "{fill:?} {}", contrast(fill, text_on(fill)));
        }
    }

    #[test]
    fn texts_of_heat_maps_can_be_read_on_every_level() {
        for gradient in [&HEAT, &DARK_HEAT] {
            let levels: Vec<(Color, Color)> = (0..HEAT_LEVELS).map(|level| heat(gradient, level)).collect();
            for (fill, text) in &levels {
                assert!(contrast(*fill, *text) >= 4.5, "{fill:?} {}", contrast(*fill, *text));
            }
            assert!(levels.windows(2).all(|pair| contrast(pair[0].0, pair[1].0) > 1.1), "{levels:?}");
        }
    }

    #[test]
    fn a_ramp_goes_from_its_first_colour_to_its_last() {
        for of in [2, 7, 40] {
            let colors: Vec<Color> = (0..of).map(|at| ramp(at, of)).collect();
            assert_eq!((colors[0], colors[of - 1]), (RAMP[0], RAMP[RAMP.len() - 1]), "{of}");
            assert!(colors.windows(2).all(|pair| pair[0] != pair[1]), "{colors:?}");
        }
    }

    #[test]
    fn only_colours_of_their_own_change_in_dark_mode() {
        let fixed = FILLS.into_iter().chain([REST]).chain((0..40).map(|at| line(at, 40)));
        let light: Vec<Color> = MODES.iter().map(|(light, _)| *light).chain(fixed).collect();
        for (at, color) in MODES.iter().map(|(light, _)| light).enumerate() {
            assert!(light[at + 1..].iter().all(|other| other != color), "{color:?}");
        }
    }
}

//! Texts of charts: printable characters, fonts, and the width of a text.
//!
//! Widths are upper estimates, because the font of the reader is unknown. Related files: every chart and the page use
//! this module.

use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontDesc, FontFamily, FontStyle, IntoFont, TextStyle};
use unicode_width::UnicodeWidthChar;

use crate::color::{Color, INK, SOFT};

/// Drawing units per pixel.
pub(crate) const FINE: f64 = 10.0;

/// Factor by which plotters divides text sizes.
const TEXT_SCALE: f64 = 1.24;
/// Width of a text column relative to the font size, for a wide sans-serif font.
const COLUMN: f64 = 0.6;

/// Escapes each character of `text` that is invisible, reverses the direction of text, or cannot be represented in XML,
/// as `\uXXXX`. Escaping twice has the same result as escaping once.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut shown = String::new();
    for letter in text.chars() {
        if is_visible(letter) {
            shown.push(letter);
        } else {
            shown.extend(letter.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")));
        }
    }
    shown
}

fn is_visible(letter: char) -> bool {
    match letter {
        ' '..='~' => true,
        '\u{2028}' | '\u{2029}' => false,
        _ if letter.is_whitespace() => !letter.is_control(),
        // The letter in front keeps combining characters from being escaped.
        _ => format!("a{letter}").escape_debug().count() == 2,
    }
}

/// Appearance of a text in a chart. The size is in pixels.
#[derive(Clone, Copy)]
pub(crate) struct Font {
    size: f64,
    color: Color,
    weight: FontStyle,
}

impl Font {
    pub(crate) const TITLE: Self = Self { size: 14.0, color: INK, weight: FontStyle::Bold };
    pub(crate) const LABEL: Self = Self { size: 12.0, color: INK, weight: FontStyle::Normal };
    pub(crate) const HEAD: Self = Self { size: 12.0, color: INK, weight: FontStyle::Bold };
    pub(crate) const TICK: Self = Self { size: 11.0, color: SOFT, weight: FontStyle::Normal };

    /// Returns the width of `text` in pixels.
    pub(crate) fn width(self, text: &str) -> f64 {
        let columns = text.chars().map(|letter| letter.width().unwrap_or(0)).sum::<usize>();
        columns as f64 * self.size * COLUMN
    }

    /// Truncates the printable form of `text` to at most `room` pixels.
    pub(crate) fn fit(self, text: &str, room: f64) -> String {
        let text = printable(text);
        if self.width(&text) <= room {
            return text;
        }
        let mut left = room - self.width("…");
        let fits = |letter: &char| {
            left -= self.width(letter.encode_utf8(&mut [0; 4]));
            left >= 0.0
        };
        let kept: String = text.chars().take_while(fits).collect();
        format!("{}…", kept.trim_end())
    }

    /// Returns the style of a text on its point's given side, vertically centred.
    pub(crate) fn at(self, side: HPos) -> TextStyle<'static> {
        let font = FontDesc::new(FontFamily::SansSerif, self.size * FINE * TEXT_SCALE, self.weight);
        font.into_font().color(&self.color).pos(Pos::new(side, VPos::Center))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_seen_is_written_out() {
        assert_eq!(printable("a\u{1}\u{9b}\u{202e}\n<b> \\u"), "a\\u0001\\u009b\\u202e\\u000a<b> \\u");
        let shown = "größe e\u{301} \u{4e00}…";
        assert_eq!(printable(shown), shown);
    }

    /// A text of several megabytes must be measured only once, not again for each removed letter.
    #[test]
    fn texts_are_cut_where_they_no_longer_fit() {
        let long = "variant ".repeat(1 << 18);
        let cut = Font::LABEL.fit(&long, 100.0);
        assert!(cut.ends_with('…') && Font::LABEL.width(&cut) <= 100.0, "{cut}");
        assert!(Font::LABEL.width(&cut) > 80.0, "{cut}");
        assert_eq!(Font::LABEL.fit("variant", 100.0), "variant");
    }
}

//! Drawing in CSS pixels, and the accessible SVG around a drawing.
//!
//! The SVG backend supports only integer coordinates, so everything is drawn [`FINE`] times as large and scaled
//! down. Text widths are upper estimates because the reader's font is unknown. Neighbours: `report/frame.rs`
//! draws the common parts of charts, the chart modules the rest.

use std::fmt::{Debug, Write as _};
use std::ops::Add;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use zonal_machine::Escaped;
use zonal_machine::output::DRAWING_MARK;

use super::style;

/// Drawing units per pixel.
const FINE: f64 = 10.0;
/// Factor by which plotters divides text sizes.
const TEXT_SCALE: f64 = 1.24;

/// A chart, usable as a document or inside another document.
#[derive(Clone, Debug)]
pub(super) struct Chart {
    /// File name without extension; unique in a report.
    pub(super) name: String,
    /// Title, in one line.
    pub(super) title: String,
    /// Text alternative for readers who cannot see the chart: axes, lines, and where the numbers are.
    pub(super) about: String,
    /// Width and height, in pixels.
    pub(super) size: (f64, f64),
    /// SVG elements of the drawing.
    body: String,
}

/// Position of a text relative to its point.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    Left,
    Middle,
    Right,
}

/// Appearance of a text; sizes in pixels.
#[derive(Clone, Copy)]
pub(super) struct Font {
    pub(super) size: f64,
    pub(super) color: RGBColor,
    pub(super) weight: Weight,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Weight {
    Normal,
    Bold,
}

impl Font {
    pub(super) const TITLE: Self = Self { size: 14.0, color: style::INK, weight: Weight::Bold };
    pub(super) const LABEL: Self = Self { size: 12.0, color: style::INK, weight: Weight::Normal };
    pub(super) const HEAD: Self = Self { size: 12.0, color: style::INK, weight: Weight::Bold };
    pub(super) const TICK: Self = Self { size: 11.0, color: style::SOFT, weight: Weight::Normal };

    pub(super) const fn in_color(self, color: RGBColor) -> Self {
        Self { color, ..self }
    }

    /// Returns the maximum width of `text`, in pixels.
    pub(super) fn width(self, text: &str) -> f64 {
        self.wide(printable(text).chars().map(glyph).sum())
    }

    /// Truncates `text` to a width of at most `room` pixels.
    pub(super) fn fit(self, text: &str, room: f64) -> String {
        let (mut sum, mut cut) = (0.0, 0);
        for (at, letter) in text.char_indices() {
            sum = printable(letter.encode_utf8(&mut [0; 4])).chars().map(glyph).fold(sum, Add::add);
            if self.wide(sum) > room {
                return format!("{}…", text[..cut].trim_end());
            }
            if self.wide(sum) + self.width("…") <= room {
                cut = at + letter.len_utf8();
            }
        }
        text.to_owned()
    }

    /// Returns the width of glyphs with a total relative width of `glyphs`, in pixels.
    fn wide(self, glyphs: f64) -> f64 {
        let bold = if self.weight == Weight::Bold { 1.1 } else { 1.0 };
        glyphs * self.size * bold
    }
}

/// Returns the width of a character relative to its font size, for a wide sans-serif font.
fn glyph(letter: char) -> f64 {
    match letter {
        'i' | 'j' | 'l' | 'I' | '\'' | '|' | '.' | ',' | ':' | ';' | '!' | ' ' | '(' | ')' | '-' => 0.39,
        'f' | 't' | 'r' | '/' => 0.43,
        'm' | 'w' | 'M' | 'W' | '@' | '%' | '…' => 1.0,
        'A'..='Z' => 0.74,
        letter if letter < '\u{2e80}' => 0.64,
        _ => 1.1,
    }
}

/// A drawing area.
pub(super) struct Canvas<'a> {
    area: DrawingArea<SVGBackend<'a>, Shift>,
}

fn fine((x, y): (f64, f64)) -> (i32, i32) {
    ((x * FINE).round() as i32, (y * FINE).round() as i32)
}

fn stroke(color: RGBColor, width: f64) -> ShapeStyle {
    color.stroke_width((width * FINE).round() as u32)
}

fn drawn<E: Debug>(result: Result<(), E>) {
    result.expect("drawing to memory does not fail");
}

impl Canvas<'_> {
    /// Draws a line through points.
    pub(super) fn line(&self, points: &[(f64, f64)], color: RGBColor, width: f64) {
        let points: Vec<(i32, i32)> = points.iter().copied().map(fine).collect();
        drawn(self.area.draw(&PathElement::new(points, stroke(color, width))));
    }

    /// Draws a filled rectangle from its upper left to its lower right corner.
    pub(super) fn fill(&self, from: (f64, f64), to: (f64, f64), color: RGBColor) {
        drawn(self.area.draw(&Rectangle::new([fine(from), fine(to)], color.filled())));
    }

    /// Draws a dot.
    pub(super) fn dot(&self, at: (f64, f64), radius: f64, color: RGBColor) {
        drawn(self.area.draw(&Circle::new(fine(at), (radius * FINE) as i32, color.filled())));
    }

    /// Draws a hollow circle.
    pub(super) fn ring(&self, at: (f64, f64), radius: f64, color: RGBColor) {
        drawn(self.area.draw(&Circle::new(fine(at), (radius * FINE) as i32, stroke(color, 1.4))));
    }

    /// Draws a hollow square.
    pub(super) fn square(&self, (x, y): (f64, f64), half: f64, color: RGBColor) {
        let (left, right, top, bottom) = (x - half, x + half, y - half, y + half);
        let corners = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)];
        self.line(&corners, color, 1.4);
    }

    /// Draws a text that is vertically centred at `at`.
    pub(super) fn text(&self, text: &str, at: (f64, f64), anchor: Anchor, font: Font) {
        let across = match anchor {
            Anchor::Left => HPos::Left,
            Anchor::Middle => HPos::Center,
            Anchor::Right => HPos::Right,
        };
        let weight = if font.weight == Weight::Bold { FontStyle::Bold } else { FontStyle::Normal };
        let font_size = font.size * FINE * TEXT_SCALE;
        let look = FontDesc::new(FontFamily::SansSerif, font_size, weight).color(&font.color);
        let look = look.pos(Pos::new(across, VPos::Center));
        drawn(self.area.draw_text(&printable(text), &look, fine(at)));
    }
}

impl Chart {
    /// Draws a chart of a given size in pixels.
    pub(super) fn draw(
        name: String,
        title: String,
        about: String,
        size: (f64, f64),
        draw: impl FnOnce(&Canvas<'_>),
    ) -> Self {
        let mut text = String::new();
        let units = ((size.0 * FINE) as u32, (size.1 * FINE) as u32);
        let canvas = Canvas { area: SVGBackend::with_string(&mut text, units).into_drawing_area() };
        canvas.fill((0.0, 0.0), size, style::PAPER);
        draw(&canvas);
        drawn(canvas.area.present());
        drop(canvas);
        // The backend's root element has neither a title nor the size in pixels, so it is replaced.
        let body = text.split_once('\n').map_or("", |(_root, rest)| rest).replace('\r', "");
        Self { name, title, about, size, body }
    }

    /// Returns the chart as a standalone SVG document.
    pub(super) fn document(&self) -> String {
        DRAWING_MARK.to_owned() + &self.svg(&format!("<style>{}</style>\n", style::css("")))
    }

    /// Returns the chart as an element of a document that contains the styles.
    pub(super) fn inline(&self) -> String {
        self.svg("")
    }

    fn svg(&self, style: &str) -> String {
        let (width, height) = self.size;
        let id = &self.name;
        let mut text = String::new();
        let _ = writeln!(
            text,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {} {}\" role=\"img\" aria-labelledby=\"{id}-title {id}-about\">",
            (width * FINE) as u32,
            (height * FINE) as u32,
        );
        let _ = writeln!(text, "<title id=\"{id}-title\">{}</title>", escape(&self.title));
        let _ = writeln!(text, "<desc id=\"{id}-about\">{}</desc>", escape(&self.about));
        text.push_str(style);
        text.push_str(&self.body);
        text
    }
}

/// Escapes all characters of `text` that are invisible or that XML cannot represent.
pub(super) fn printable(text: &str) -> String {
    Escaped(text).to_string()
}

fn escape(text: &str) -> String {
    maud::html! { (printable(text)) }.into_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the longest prefix of a text that fits, by removing one letter after another.
    fn popped(font: Font, text: &str, room: f64) -> String {
        if font.width(text) <= room {
            return text.to_owned();
        }
        let mut cut = text.to_owned();
        while !cut.is_empty() && font.width(&cut) + font.width("…") > room {
            cut.pop();
        }
        format!("{}…", cut.trim_end())
    }

    #[test]
    fn texts_are_cut_where_they_no_longer_fit() {
        let mut random = fastrand::Rng::with_seed(3);
        let letters: Vec<char> = "aiM  W.\u{202e}\n\u{4e00}é…".chars().collect();
        for _ in 0..2000 {
            let text: String = (0..random.usize(..30)).map(|_| random.choice(&letters).unwrap()).collect();
            let room = random.f64() * 250.0;
            for font in [Font::TITLE, Font::TICK] {
                assert_eq!(font.fit(&text, room), popped(font, &text, room), "{text:?} in {room}");
            }
        }
    }

    /// Checks that truncation does not measure the whole text again for each removed letter, which would take
    /// hours.
    #[test]
    fn a_long_text_is_measured_once() {
        let long = "variant ".repeat(1 << 18);
        assert!(Font::LABEL.fit(&long, 100.0).ends_with('…'));
        assert_eq!(Font::LABEL.fit(&long, f64::INFINITY), long);
        assert!(Font::LABEL.fit(&long, Font::LABEL.width(&long) - 1.0).len() + 20 > long.len());
    }
}

//! A chart: a title, a legend, and panels in a grid. It is a figure of a page or an SVG document.
//!
//! The SVG backend of plotters supports only integer coordinates, so everything is drawn [`FINE`] times as large and
//! scaled down. On a page, the legend and the panels wrap, so that they stay readable on narrow screens. Related files:
//! `lines.rs` and `bars.rs` draw panels.

use std::fmt::Write as _;

use maud::{Markup, PreEscaped, html};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::Color as _;
use plotters::style::text_anchor::HPos;

use crate::color::{self, Color};
use crate::text::{FINE, Font, printable};

/// Width of a panel, in pixels.
pub(crate) const PANEL_WIDTH: f64 = 520.0;
/// Space around a panel.
pub(crate) const MARGIN: f64 = 12.0;
/// Panels per row of a document.
const COLUMNS: usize = 2;
/// Smallest size of a wide panel on a narrow screen, relative to its full size.
const SHRUNK_MIN: f64 = 0.78;
const TITLE_HEIGHT: f64 = 28.0;
const KEY_HEIGHT: f64 = 18.0;
const KEY_GAP: f64 = 18.0;
const SYMBOL_WIDTH: f64 = 20.0;

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(crate) type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// A symbol of a legend or a plot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Symbol {
    /// A piece of a line.
    Line,
    /// A dot: a value of a line.
    Dot,
    /// A hollow circle: a value to compare with.
    Ring,
    /// A hollow square: another kind of value to compare with.
    Square,
    /// A filled square: a bar or a part of it.
    Fill,
    /// A line across a bar: a value to compare with.
    Tick,
    /// Nothing: the entry of the legend is a remark.
    None,
}

/// An entry of a legend.
#[derive(Clone, Debug)]
pub struct Key {
    /// The symbol.
    pub symbol: Symbol,
    /// Its colour.
    pub color: Color,
    /// Its meaning.
    pub text: String,
}

impl Key {
    /// Creates an entry.
    pub fn new(symbol: Symbol, color: Color, text: impl Into<String>) -> Self {
        Self { symbol, color, text: text.into() }
    }

    fn width(&self) -> f64 {
        SYMBOL_WIDTH + Font::LABEL.width(&printable(&self.text)) + KEY_GAP
    }
}

/// A panel of a chart.
#[derive(Clone, Debug)]
pub struct Panel {
    size: (f64, f64),
    /// SVG elements, in drawing units.
    body: String,
}

/// A chart.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Name of its file without extension, unique in the page. It consists of lower-case letters, digits and hyphens.
    pub name: String,
    /// Title.
    pub title: String,
    /// Text alternative for readers that do not see the chart: the axes, the lines, and where the numbers are.
    pub about: String,
    /// Legend.
    pub keys: Vec<Key>,
    /// Panels.
    pub panels: Vec<Panel>,
}

pub(crate) fn fine((x, y): (f64, f64)) -> (i32, i32) {
    ((x * FINE).round() as i32, (y * FINE).round() as i32)
}

pub(crate) fn stroke(color: Color, width: f64) -> ShapeStyle {
    color.stroke_width((width * FINE).round() as u32)
}

/// Draws a symbol around a place, in drawing units.
pub(crate) fn draw_symbol(area: &Area<'_>, symbol: Symbol, (x, y): (i32, i32), color: Color) -> Drawn {
    let half = |pixels: f64| (pixels * FINE) as i32;
    let circle = |radius: f64, style: ShapeStyle| area.draw(&Circle::new((x, y), half(radius), style));
    let corners = |pixels: f64| {
        let size = half(pixels);
        [(x - size, y - size), (x + size, y - size), (x + size, y + size), (x - size, y + size)]
    };
    let line = |(dx, dy): (i32, i32), width: f64| {
        area.draw(&PathElement::new([(x - dx, y - dy), (x + dx, y + dy)], stroke(color, width)))
    };
    match symbol {
        Symbol::Line => line((half(7.0), 0), 2.0),
        Symbol::Dot => circle(2.8, color.filled()),
        Symbol::Ring => circle(5.0, stroke(color, 1.4)),
        Symbol::Square => {
            let around = corners(4.5).into_iter().cycle().take(5).collect::<Vec<_>>();
            area.draw(&PathElement::new(around, stroke(color, 1.4)))
        }
        Symbol::Fill => {
            let [from, _, to, _] = corners(6.0);
            area.draw(&Rectangle::new([from, to], color.filled()))
        }
        Symbol::Tick => line((0, half(8.0)), 2.2),
        Symbol::None => Ok(()),
    }
}

impl Panel {
    /// Creates a panel from SVG elements in drawing units.
    pub(crate) fn of(size: (f64, f64), body: Markup) -> Self {
        Self { size, body: body.into_string() }
    }

    pub(crate) fn draw(size: (f64, f64), draw: impl FnOnce(&Area<'_>) -> Drawn) -> Self {
        let mut text = String::new();
        let (width, height) = fine(size);
        let area = SVGBackend::with_string(&mut text, (width as u32, height as u32)).into_drawing_area();
        draw(&area).and_then(|()| area.present()).expect("drawing to memory does not fail");
        drop(area);
        // The root element of the backend has neither a title nor the size in pixels, so it is removed.
        let body = text.split_once('\n').map_or("", |(_root, rest)| rest).replace('\r', "");
        Self { size, body: body.trim_end().trim_end_matches("</svg>").to_owned() }
    }

    /// Whether the panel is wider than a panel with axes.
    fn is_wide(&self) -> bool {
        self.size.0 > PANEL_WIDTH
    }

    /// Returns the panel as an element of an HTML page. A wide panel shrinks on a narrow screen until its texts become
    /// too small, and then scrolls.
    fn inline(&self) -> Markup {
        let ((width, height), (fine_width, fine_height)) = (self.size, fine(self.size));
        let least = self.is_wide().then(|| format!("min-width:{:.0}px", width * SHRUNK_MIN));
        html! {
            svg width=(width) height=(height) viewBox={ "0 0 " (fine_width) " " (fine_height) } style=[least] {
                (PreEscaped(&self.body))
            }
        }
    }
}

impl Chart {
    /// Returns the chart as an SVG document.
    #[must_use]
    pub fn document(&self) -> String {
        let row_width = |row: &[Panel]| row.iter().map(|panel| panel.size.0.max(PANEL_WIDTH)).sum();
        let width = self.panels.chunks(COLUMNS).map(row_width).fold(PANEL_WIDTH, f64::max);
        let head = self.head(width);
        let mut y = head.size.1;
        let mut body = head.body;
        for row in self.panels.chunks(COLUMNS) {
            let mut left = 0.0;
            for panel in row {
                let (x, y) = fine((left, y));
                left += panel.size.0.max(PANEL_WIDTH);
                let _ = writeln!(body, "<g transform=\"translate({x} {y})\">\n{}</g>", panel.body);
            }
            y += row.iter().map(|panel| panel.size.1).fold(0.0, f64::max);
        }
        let height = y + MARGIN;
        let (view, name) = (fine((width, height)), &self.name);
        let svg = html! {
            svg xmlns="http://www.w3.org/2000/svg" width=(width) height=(height)
                viewBox={ "0 0 " (view.0) " " (view.1) } role="img"
                aria-labelledby={ (name) "-title " (name) "-about" } {
                title id={ (name) "-title" } { (printable(&self.title)) }
                desc id={ (name) "-about" } { (printable(&self.about)) }
                style { (PreEscaped(color::css())) }
                rect width=(view.0) height=(view.1) fill=(color::hex(color::PAPER)) {}
                (PreEscaped(body))
            }
        };
        svg.into_string() + "\n"
    }

    /// Returns the chart as a figure of a page.
    pub(crate) fn figure(&self) -> Markup {
        let is_wide = self.panels.iter().any(Panel::is_wide);
        let is_single = matches!(self.panels.as_slice(), [panel] if panel.size.0 == PANEL_WIDTH);
        html! {
            figure.single[is_single].wide[is_wide] aria-labelledby={ (self.name) "-title" } {
                figcaption id={ (self.name) "-title" } { (printable(&self.title)) }
                div.keys aria-hidden="true" {
                    @for key in &self.keys { span {
                        @if key.symbol != Symbol::None {
                            (Panel::draw((SYMBOL_WIDTH, KEY_HEIGHT), |area| {
                                let middle = fine((SYMBOL_WIDTH / 2.0, KEY_HEIGHT / 2.0));
                                draw_symbol(area, key.symbol, middle, key.color)
                            }).inline())
                        }
                        (printable(&key.text))
                    } }
                }
                div.scroll[is_wide] role=[is_wide.then_some("region")] tabindex=[is_wide.then_some("0")]
                    aria-label=[is_wide.then(|| printable(&self.title))] {
                    div.panels role="img" aria-label=(printable(&self.about)) {
                        @for panel in &self.panels { (panel.inline()) }
                    }
                }
            }
        }
    }

    /// Returns the title and the legend of a document.
    fn head(&self, width: f64) -> Panel {
        let places = self.places(width);
        let lines = places.last().map_or(0, |(_, line)| line + 1);
        let height = TITLE_HEIGHT + lines as f64 * KEY_HEIGHT + 8.0;
        let room = width - 2.0 * MARGIN;
        Panel::draw((width, height), |area| {
            let title = Font::TITLE.fit(&self.title, room);
            area.draw_text(&title, &Font::TITLE.at(HPos::Left), fine((MARGIN, TITLE_HEIGHT / 2.0 + 2.0)))?;
            for (key, (x, line)) in self.keys.iter().zip(places) {
                let y = TITLE_HEIGHT + KEY_HEIGHT * (line as f64 + 0.5);
                draw_symbol(area, key.symbol, fine((x + SYMBOL_WIDTH / 2.0 - 3.0, y)), key.color)?;
                let text = Font::LABEL.fit(&key.text, room - SYMBOL_WIDTH);
                area.draw_text(&text, &Font::LABEL.at(HPos::Left), fine((x + SYMBOL_WIDTH, y)))?;
            }
            Ok(())
        })
    }

    /// Returns each legend entry's position: pixels from the left, and number of the line.
    fn places(&self, width: f64) -> Vec<(f64, usize)> {
        let (mut x, mut line) = (MARGIN, 0);
        let place = |key: &Key| {
            if x > MARGIN && x + key.width() > width {
                (x, line) = (MARGIN, line + 1);
            }
            let place = (x, line);
            x += key.width();
            place
        };
        self.keys.iter().map(place).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A panel with axes shrinks with the screen. A wider one shrinks only as long as its texts are readable.
    #[test]
    fn wide_panels_scroll_on_narrow_screens() {
        let chart = |width| {
            let panels = vec![Panel::of((width, 90.0), html! { rect width="9000" {} })];
            let [name, title, about] = ["a", "A <chart>", "What it shows."].map(str::to_owned);
            Chart { name, title, about, keys: Vec::new(), panels }
        };
        let wide = chart(1000.0).figure().into_string();
        assert!(
            wide.contains("<figure class=\" wide\"") && wide.contains("style=\"min-width:780px\""),
            "{wide}"
        );
        assert!(wide.contains("role=\"region\" tabindex=\"0\" aria-label=\"A &lt;chart&gt;\""), "{wide}");
        let narrow = chart(PANEL_WIDTH).figure().into_string();
        assert!(narrow.contains("<figure class=\"single\"") && !narrow.contains("min-width"), "{narrow}");
        assert!(!narrow.contains("region"), "{narrow}");
        // A document is as wide as its widest row.
        assert!(chart(1000.0).document().contains("viewBox=\"0 0 10000 "), "{}", chart(1000.0).document());
        assert!(chart(100.0).document().contains("viewBox=\"0 0 5200 "));
    }

    #[test]
    fn a_legend_wider_than_its_chart_takes_more_lines() {
        let keys = (0..9).map(|at| Key::new(Symbol::Line, color::INK, format!("variant {at}"))).collect();
        let (name, title, about) = ("a".to_owned(), String::new(), String::new());
        let chart = Chart { name, title, about, keys, panels: Vec::new() };
        let places = chart.places(300.0);
        assert!(places.iter().zip(&chart.keys).all(|((x, _), key)| x + key.width() <= 300.0));
        assert!(
            places
                .windows(2)
                .all(|two| two[1].1 == two[0].1 && two[1].0 > two[0].0 || two[1].1 == two[0].1 + 1)
        );
        assert_eq!(chart.head(300.0).size.1, TITLE_HEIGHT + 8.0 + KEY_HEIGHT * (places[8].1 + 1) as f64);
    }
}

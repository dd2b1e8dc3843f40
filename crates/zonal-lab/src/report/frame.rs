//! Common parts of charts: panels with axes, labels at the ends of lines, legends.
//!
//! A panel is a plot with its surrounding text; panels are arranged in a grid below the title and legend of their
//! chart. Neighbours: `report/scaling.rs` and `report/series.rs` draw lines in plots, `report/bars.rs` and
//! `report/causes.rs` draw bars.

use plotters::style::RGBColor;

use super::canvas::{Anchor, Canvas, Font};
use super::scale::Scale;
use super::style;

/// Width of a panel.
pub(super) const PANEL_WIDTH: f64 = 520.0;
/// Panels per row of the grid.
pub(super) const COLUMNS: usize = 2;
/// Space around a chart.
pub(super) const MARGIN: f64 = 12.0;

const TITLE_HEIGHT: f64 = 28.0;
const LEGEND_LINE: f64 = 18.0;
const LEGEND_GAP: f64 = 18.0;
const MARK_WIDTH: f64 = 20.0;
/// Line height of labels.
const LABEL_LINE: f64 = 14.0;
/// Distance from the end of the plot to its labels.
const LABEL_GAP: f64 = 16.0;
/// Maximum width of a label at the end of a line.
const LABEL_WIDTH_MAX: f64 = 160.0;
const TICK_GAP: f64 = 4.0;

/// Symbol of a legend entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Symbol {
    Line,
    Dot,
    Ring,
    Square,
    Fill,
    Tick,
    /// No symbol: a remark.
    None,
}

/// A legend entry.
pub(super) struct Key {
    pub(super) symbol: Symbol,
    pub(super) color: RGBColor,
    pub(super) text: String,
}

impl Key {
    pub(super) fn new(symbol: Symbol, color: RGBColor, text: impl Into<String>) -> Self {
        Self { symbol, color, text: text.into() }
    }

    fn width(&self) -> f64 {
        MARK_WIDTH + Font::LABEL.width(&self.text) + LEGEND_GAP
    }
}

/// Title and legend of a chart of a given width.
pub(super) struct Head<'a> {
    pub(super) title: &'a str,
    pub(super) keys: &'a [Key],
    pub(super) width: f64,
}

impl Head<'_> {
    /// Returns the position of each entry: horizontal position in pixels, and line number.
    fn places(&self) -> Vec<(f64, usize)> {
        let (mut x, mut line) = (MARGIN, 0);
        let place = |key: &Key| {
            if x > MARGIN && x + key.width() > self.width {
                (x, line) = (MARGIN, line + 1);
            }
            let place = (x, line);
            x += key.width();
            place
        };
        self.keys.iter().map(place).collect()
    }

    pub(super) fn height(&self) -> f64 {
        let lines = self.places().last().map_or(0, |(_, line)| line + 1);
        TITLE_HEIGHT + lines as f64 * LEGEND_LINE + if lines > 0 { 6.0 } else { 0.0 }
    }

    pub(super) fn draw(&self, canvas: &Canvas<'_>) {
        let title = Font::TITLE.fit(self.title, self.width - 2.0 * MARGIN);
        canvas.text(&title, (MARGIN, TITLE_HEIGHT / 2.0 + 2.0), Anchor::Left, Font::TITLE);
        for (key, (x, line)) in self.keys.iter().zip(self.places()) {
            let y = TITLE_HEIGHT + LEGEND_LINE * (line as f64 + 0.5);
            draw_symbol(canvas, key, (x + MARK_WIDTH / 2.0 - 3.0, y));
            let text = Font::LABEL.fit(&key.text, self.width - 2.0 * MARGIN - MARK_WIDTH);
            canvas.text(&text, (x + MARK_WIDTH, y), Anchor::Left, Font::LABEL);
        }
    }
}

fn draw_symbol(canvas: &Canvas<'_>, key: &Key, (x, y): (f64, f64)) {
    match key.symbol {
        Symbol::Line => canvas.line(&[(x - 7.0, y), (x + 7.0, y)], key.color, 2.0),
        Symbol::Dot => canvas.dot((x, y), 3.0, key.color),
        Symbol::Ring => canvas.ring((x, y), 5.0, key.color),
        Symbol::Square => canvas.square((x, y), 4.5, key.color),
        Symbol::Fill => canvas.fill((x - 6.0, y - 6.0), (x + 6.0, y + 6.0), key.color),
        Symbol::Tick => canvas.line(&[(x, y - 7.0), (x, y + 7.0)], key.color, 2.5),
        Symbol::None => {}
    }
}

/// Returns the upper left corners of panels in a grid below `top`, and the size of the grid.
pub(super) fn grid(heights: &[f64], top: f64) -> (Vec<(f64, f64)>, (f64, f64)) {
    let mut corners = Vec::new();
    let mut y = top;
    for line in heights.chunks(COLUMNS) {
        corners.extend((0..line.len()).map(|at| (at as f64 * PANEL_WIDTH, y)));
        y += line.iter().copied().fold(0.0, f64::max);
    }
    (corners, (width(heights.len()), y + MARGIN))
}

/// Returns the width of a chart with `panels` panels.
pub(super) fn width(panels: usize) -> f64 {
    PANEL_WIDTH * panels.clamp(1, COLUMNS) as f64
}

/// A plot with axes, in pixels of its chart.
#[derive(Clone, Copy)]
pub(super) struct Plot<'a> {
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
    pub(super) x: Scale,
    pub(super) y: Scale,
    /// Title of the horizontal axis, with its unit.
    pub(super) x_name: &'a str,
    /// Unit of the vertical axis.
    pub(super) y_unit: &'a str,
}

/// Height of a panel with a [`Plot`].
pub(super) const PLOT_PANEL_HEIGHT: f64 = 290.0;

impl<'a> Plot<'a> {
    /// Creates the plot of the panel at `corner`, with space for `labels` at the ends of its lines.
    pub(super) fn new(
        (x, y): (f64, f64),
        label_width: f64,
        scales: (Scale, Scale),
        names: (&'a str, &'a str),
    ) -> Self {
        Self {
            left: x + 66.0,
            right: x + PANEL_WIDTH - MARGIN - 4.0 - label_width,
            top: y + 30.0,
            bottom: y + PLOT_PANEL_HEIGHT - 46.0,
            x: scales.0,
            y: scales.1,
            x_name: names.0,
            y_unit: names.1,
        }
    }

    /// Returns the position of a point.
    pub(super) fn at(&self, x: f64, y: f64) -> (f64, f64) {
        (self.x.place(x, self.left, self.right), self.y.place(y, self.bottom, self.top))
    }

    /// Draws the title of the panel, its axes and grid lines, with `ticks` on the horizontal axis.
    pub(super) fn axes(&self, canvas: &Canvas<'_>, title: &str, ticks: &[(f64, String)]) {
        let title = Font::HEAD.fit(title, PANEL_WIDTH - 190.0);
        canvas.text(&title, (self.left, self.top - 16.0), Anchor::Left, Font::HEAD);
        if self.y.is_logarithmic() {
            let beside = self.left + Font::HEAD.width(&title) + 6.0;
            canvas.text("logarithmic", (beside, self.top - 16.0), Anchor::Left, Font::TICK);
        }
        for (value, text) in self.y.marks(6, self.y_unit) {
            let y = self.y.place(value, self.bottom, self.top);
            canvas.line(&[(self.left, y), (self.right, y)], style::GRID, 1.0);
            let text = Font::TICK.fit(&text, 58.0);
            canvas.text(&text, (self.left - 6.0, y), Anchor::Right, Font::TICK);
        }
        canvas.line(&[(self.left, self.bottom), (self.right, self.bottom)], style::SOFT, 1.0);
        let mut free = f64::INFINITY;
        for (value, text) in ticks.iter().rev() {
            let x = self.x.place(*value, self.left, self.right);
            canvas.line(&[(x, self.bottom), (x, self.bottom + 4.0)], style::SOFT, 1.0);
            let half = Font::TICK.width(text) / 2.0;
            if x + half <= free {
                canvas.text(text, (x, self.bottom + 13.0), Anchor::Middle, Font::TICK);
                free = x - half - TICK_GAP;
            }
        }
        let x_name = Font::TICK.fit(&self.x_title(), self.right - self.left);
        let middle = f64::midpoint(self.left, self.right);
        canvas.text(&x_name, (middle, self.bottom + 30.0), Anchor::Middle, Font::TICK);
    }

    fn x_title(&self) -> String {
        if self.x.is_logarithmic() {
            format!("{} (logarithmic)", self.x_name)
        } else {
            self.x_name.to_owned()
        }
    }
}

/// A label at the end of a line.
pub(super) struct EndLabel<'a> {
    /// Position of the end of the line.
    pub(super) end: (f64, f64),
    pub(super) text: &'a str,
    pub(super) color: RGBColor,
}

/// Returns the width that labels need beside a plot.
pub(super) fn label_width(texts: &[&str]) -> f64 {
    let widths = texts.iter().map(|text| Font::LABEL.width(text));
    LABEL_GAP + widths.fold(0.0, f64::max).min(LABEL_WIDTH_MAX)
}

/// How labels avoid overlapping each other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum GiveWay {
    /// Labels move apart and are connected to their lines by thin leader lines.
    Move,
    /// Later labels are omitted.
    LeaveOut,
}

/// Draws labels beside the ends of lines, without overlaps.
pub(super) fn end_labels(canvas: &Canvas<'_>, plot: &Plot<'_>, labels: Vec<EndLabel<'_>>, way: GiveWay) {
    let mut labels = labels;
    labels.sort_by(|a, b| a.end.1.total_cmp(&b.end.1));
    if way == GiveWay::LeaveOut {
        let mut free = f64::NEG_INFINITY;
        labels.retain(|label| {
            let fits = label.end.1 >= free;
            free = if fits { label.end.1 + LABEL_LINE } else { free };
            fits
        });
    }
    let wanted: Vec<f64> = labels.iter().map(|label| label.end.1).collect();
    let x = plot.right + LABEL_GAP;
    for (label, y) in labels.iter().zip(apart(&wanted, plot.top - 8.0, plot.bottom + 8.0)) {
        let elbow = plot.right + 5.0;
        let (end_x, end_y) = label.end;
        canvas.line(&[(end_x, end_y), (elbow.max(end_x), end_y), (x - 3.0, y)], label.color, 0.7);
        let text = Font::LABEL.fit(label.text, LABEL_WIDTH_MAX);
        canvas.text(&text, (x, y), Anchor::Left, Font::LABEL.in_color(label.color));
    }
}

/// Whether all labels fit beside a plot without overlaps or truncation; otherwise a legend is needed.
pub(super) fn labels_fit(texts: &[&str]) -> bool {
    let height = PLOT_PANEL_HEIGHT - 60.0;
    let narrow = texts.iter().all(|text| Font::LABEL.width(text) <= LABEL_WIDTH_MAX);
    narrow && texts.len() as f64 * LABEL_LINE <= height
}

/// Returns ascending positions as close to `wanted` as a spacing of one line permits, within the bounds if they
/// fit.
fn apart(wanted: &[f64], top: f64, bottom: f64) -> Vec<f64> {
    let mut places: Vec<f64> = Vec::with_capacity(wanted.len());
    for want in wanted {
        let free = places.last().map_or(top, |last| last + LABEL_LINE);
        places.push(want.max(free));
    }
    let mut limit = bottom;
    for place in places.iter_mut().rev() {
        *place = place.min(limit);
        limit = *place - LABEL_LINE;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_keep_their_distance_and_their_order() {
        let places = apart(&[10.0, 11.0, 12.0, 99.0, 100.0], 0.0, 100.0);
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= LABEL_LINE - 1e-9), "{places:?}");
        assert_eq!((places[0], places[4]), (10.0, 100.0));
    }

    #[test]
    fn a_legend_wider_than_its_chart_takes_more_lines() {
        let keys: Vec<Key> =
            (0..9).map(|at| Key::new(Symbol::Line, style::INK, format!("variant {at}"))).collect();
        let head = Head { title: "", keys: &keys, width: 300.0 };
        let places = head.places();
        assert!(places.iter().zip(&keys).all(|((x, _), key)| x + key.width() <= 300.0));
        assert_eq!(unique_lines(&places), places.last().unwrap().1 + 1);
        assert!(head.height() > 3.0 * LEGEND_LINE);
    }

    fn unique_lines(places: &[(f64, usize)]) -> usize {
        super::super::parts::unique(places.iter().map(|(_, line)| *line)).len()
    }
}

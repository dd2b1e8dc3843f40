//! Panels with groups of horizontal bars that start at one origin. Related files: `scale.rs` has the axis, `chart.rs`
//! arranges the panels, and `gauges.rs` has bars in front of ranges.

use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::Color as _;
use plotters::style::text_anchor::HPos;

use crate::chart::{Area, Drawn, MARGIN, PANEL_WIDTH, Panel, Symbol, draw_symbol, fine, stroke};
use crate::color::{Color, GRID, PAPER, SOFT, text_on};
use crate::scale::Scale;
use crate::text::{FINE, Font};

const TITLE_HEIGHT: f64 = 26.0;
const GROUP_HEIGHT: f64 = 22.0;
pub(crate) const BAR_LINE: f64 = 20.0;
pub(crate) const BAR_HEIGHT: f64 = 14.0;
const NAME_WIDTH: f64 = 150.0;
pub(crate) const AXIS_HEIGHT: f64 = 38.0;
/// Space below a panel without an axis.
const BOTTOM: f64 = 14.0;
/// Space between a bar and the text next to it.
pub(crate) const GAP: f64 = 7.0;

/// A bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Its name.
    pub name: String,
    /// Its parts, from the origin on: the length, the colour, and a text that is shown if it fits.
    pub parts: Vec<(f64, Color, String)>,
    /// Smallest and largest measured value.
    pub spread: Option<(f64, f64)>,
    /// A value to compare with.
    pub mark: Option<(Symbol, f64)>,
    /// Text next to the bar, such as its value.
    pub text: String,
}

/// A panel with bars.
#[derive(Clone, Debug)]
pub struct Bars<'a> {
    /// Its title.
    pub title: &'a str,
    /// Scale of bar lengths.
    pub scale: &'a Scale,
    /// Name of the axis, if one is shown.
    pub axis: Option<&'a str>,
    /// Groups of bars, each with a title, which can be empty.
    pub groups: Vec<(String, Vec<Bar>)>,
    /// Space for the texts next to the longest bars, in pixels.
    pub text_width: f64,
}

/// What all panels with horizontal bars have: the title, the axis, and space for texts on both sides.
pub(crate) struct Frame<'a> {
    pub(crate) title: &'a str,
    pub(crate) scale: &'a Scale,
    pub(crate) axis: Option<&'a str>,
    pub(crate) name_width: f64,
    pub(crate) text_width: f64,
}

pub(crate) type Plot<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Scale, RangedCoordf64>>;

/// Returns the height of a panel's title.
pub(crate) fn title_height(title: &str) -> f64 {
    if title.is_empty() { 6.0 } else { TITLE_HEIGHT }
}

impl Frame<'_> {
    /// Draws the title and the axis of a panel with bars that are `height` high together.
    pub(crate) fn draw<'a, 'b>(
        &self,
        area: &'a Area<'b>,
        height: f64,
    ) -> Result<Plot<'a, 'b>, DrawingAreaErrorKind<std::io::Error>> {
        let (top, bottom) = (title_height(self.title), if self.axis.is_some() { 0.0 } else { BOTTOM });
        let title = Font::HEAD.fit(self.title, PANEL_WIDTH - 2.0 * MARGIN);
        area.draw_text(&title, &Font::HEAD.at(HPos::Left), fine((MARGIN, top / 2.0)))?;
        let width = PANEL_WIDTH - 2.0 * MARGIN - self.name_width - self.text_width;
        let mut plot = ChartBuilder::on(area)
            .margin_top((top * FINE) as u32)
            .margin_left((MARGIN * FINE) as u32)
            .margin_right(((MARGIN + self.text_width) * FINE) as u32)
            .y_label_area_size((self.name_width * FINE) as u32)
            .x_label_area_size(self.axis.map_or(0.0, |_| AXIS_HEIGHT * FINE) as u32)
            .margin_bottom((bottom * FINE) as u32)
            .build_cartesian_2d(self.scale.clone().spaced(width), height..0.0)?;
        if let Some(axis) = self.axis {
            plot.configure_mesh()
                .disable_y_mesh()
                .disable_y_axis()
                .y_labels(0)
                .light_line_style(TRANSPARENT)
                .bold_line_style(stroke(GRID, 1.0))
                .axis_style(stroke(SOFT, 1.0))
                .set_all_tick_mark_size((4.0 * FINE) as i32)
                .label_style(Font::TICK.at(HPos::Center))
                .axis_desc_style(Font::TICK.at(HPos::Center))
                .x_desc(Font::TICK.fit(axis, width))
                .draw()?;
        }
        Ok(plot)
    }
}

impl Bars<'_> {
    /// Draws the panel.
    #[must_use]
    pub fn panel(&self) -> Panel {
        let bottom = if self.axis.is_some() { AXIS_HEIGHT } else { BOTTOM };
        let height = title_height(self.title) + self.bars_height() + bottom;
        Panel::draw((PANEL_WIDTH, height), |area| self.draw(area))
    }

    fn bars_height(&self) -> f64 {
        let heights =
            self.groups.iter().map(|(title, bars)| group_head(title) + bars.len() as f64 * BAR_LINE);
        heights.sum()
    }

    fn draw(&self, area: &Area<'_>) -> Drawn {
        let frame = Frame {
            title: self.title,
            scale: self.scale,
            axis: self.axis,
            name_width: NAME_WIDTH,
            text_width: self.text_width,
        };
        let plot = frame.draw(area, self.bars_height())?;
        let mut y = 0.0;
        for (title, bars) in &self.groups {
            let text = Font::LABEL.fit(title, PANEL_WIDTH - 2.0 * MARGIN);
            let place = fine((MARGIN, title_height(self.title) + y + GROUP_HEIGHT / 2.0));
            area.draw_text(&text, &Font::LABEL.at(HPos::Left), place)?;
            y += group_head(title);
            for bar in bars {
                bar.draw(area, &plot, y + BAR_LINE / 2.0)?;
                y += BAR_LINE;
            }
        }
        Ok(())
    }
}

impl Bar {
    fn draw(&self, area: &Area<'_>, plot: &Plot<'_, '_>, middle: f64) -> Drawn {
        let origin = plot.as_coord_spec().x_spec().origin();
        let at = |value: f64| plot.backend_coord(&(value.max(origin), middle));
        let half = (BAR_HEIGHT / 2.0 * FINE) as i32;
        let (from, y) = at(origin);
        let gap = (GAP * FINE) as i32;
        let name = Font::LABEL.fit(&self.name, NAME_WIDTH - 2.0 * GAP);
        area.draw_text(&name, &Font::LABEL.at(HPos::Right), (from - gap, y))?;
        let (mut sum, mut x) = (0.0, from);
        for (at_part, (length, color, label)) in self.parts.iter().enumerate() {
            sum += length;
            let end = at(sum).0;
            // A gap of half a pixel separates parts with similar colours.
            let right = if at_part + 1 < self.parts.len() { (end - 5).max(x) } else { end };
            area.draw(&Rectangle::new([(x, y - half), (right, y + half)], color.filled()))?;
            if f64::from(end - x) / FINE > Font::TICK.width(label) + 6.0 {
                let readable = text_on(*color);
                let style = Font::TICK.at(HPos::Center).color(&readable);
                area.draw_text(label, &style, (i32::midpoint(x, end), y))?;
            }
            x = end;
        }
        if let Some((low, high)) = self.spread {
            area.draw(&PathElement::new([at(low), at(high)], stroke(SOFT, 1.4)))?;
            x = x.max(at(high).0);
        }
        if let Some((symbol, value)) = self.mark {
            let place = at(value);
            // A light outline separates the symbol from the bar behind it.
            area.draw(&PathElement::new([(place.0, y - 85), (place.0, y + 85)], stroke(PAPER, 5.0)))?;
            draw_symbol(area, symbol, place, crate::color::INK)?;
            x = x.max(place.0 + 40);
        }
        let room = PANEL_WIDTH - GAP - f64::from(x + gap) / FINE;
        area.draw_text(&Font::LABEL.fit(&self.text, room), &Font::LABEL.at(HPos::Left), (x + gap, y))
    }
}

/// Returns the height of a group's title.
fn group_head(title: &str) -> f64 {
    if title.is_empty() { 0.0 } else { GROUP_HEIGHT }
}

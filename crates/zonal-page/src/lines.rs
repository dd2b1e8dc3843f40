//! Panels with lines on two axes. Related files: `scale.rs` has the axes, and `chart.rs` arranges the panels.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use crate::chart::{Area, Drawn, Panel, Symbol, draw_symbol, fine, stroke};
use crate::chart::{MARGIN, PANEL_WIDTH};
use crate::color::{Color, GRID, SOFT};
use crate::scale::Scale;
use crate::text::{FINE, Font};

const HEIGHT: f64 = 290.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 44.0;
const TICK: f64 = 4.0;
/// Number of lines with dots, counted from the last, that are drawn narrower one by one, so that equal lines stay
/// visible.
const WIDER_MAX: u32 = 3;

/// A line of a panel.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its colour.
    pub color: Color,
    /// Its points, in their order.
    pub points: Vec<(f64, f64)>,
    /// Whether its points have dots. A single point always has one.
    pub has_dots: bool,
    /// Symbols next to the line, such as measured values next to predicted values.
    pub marks: Vec<(Symbol, (f64, f64))>,
}

/// A panel with lines.
#[derive(Clone, Copy, Debug)]
pub struct Lines<'a> {
    /// Its title, with the unit of the vertical axis.
    pub title: &'a str,
    /// Name of the horizontal axis.
    pub x_name: &'a str,
    /// The horizontal axis.
    pub x: &'a Scale,
    /// The vertical axis.
    pub y: &'a Scale,
    /// The lines.
    pub lines: &'a [Line],
}

impl Lines<'_> {
    /// Draws the panel.
    #[must_use]
    pub fn panel(&self) -> Panel {
        Panel::draw((PANEL_WIDTH, HEIGHT), |area| self.draw(area))
    }

    fn draw(&self, area: &Area<'_>) -> Drawn {
        self.draw_title(area)?;
        let width = PANEL_WIDTH - LEFT - RIGHT;
        let mut chart = ChartBuilder::on(area)
            .margin_top((TOP * FINE) as u32)
            .margin_right((RIGHT * FINE) as u32)
            .x_label_area_size((BOTTOM * FINE) as u32)
            .y_label_area_size((LEFT * FINE) as u32)
            .build_cartesian_2d(self.x.clone().spaced(width), self.y.clone())?;
        let x_name = if self.x.is_logarithmic() { " (logarithmic)" } else { "" };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(stroke(GRID, 1.0))
            .axis_style(stroke(SOFT, 1.0))
            .set_all_tick_mark_size((TICK * FINE) as i32)
            .label_style(Font::TICK.at(HPos::Center))
            .axis_desc_style(Font::TICK.at(HPos::Center))
            .x_desc(Font::TICK.fit(&format!("{}{x_name}", self.x_name), width))
            .draw()?;
        for (at, line) in self.lines.iter().enumerate() {
            let places: Vec<(i32, i32)> =
                line.points.iter().map(|point| chart.backend_coord(point)).collect();
            if let [.., _, _] = places.as_slice() {
                let wider = if line.has_dots { WIDER_MAX.min((self.lines.len() - 1 - at) as u32) } else { 0 };
                let style = stroke(line.color, 1.6 + f64::from(wider));
                area.draw(&PathElement::new(places.clone(), style))?;
            }
            for place in places.iter().filter(|_| line.has_dots || places.len() == 1) {
                draw_symbol(area, Symbol::Dot, *place, line.color)?;
            }
            for (symbol, point) in &line.marks {
                draw_symbol(area, *symbol, chart.backend_coord(point), line.color)?;
            }
        }
        Ok(())
    }

    fn draw_title(&self, area: &Area<'_>) -> Drawn {
        let scale = if self.y.is_logarithmic() { "logarithmic" } else { "" };
        let room = PANEL_WIDTH - 2.0 * MARGIN - 8.0 - Font::TICK.width(scale);
        let title = Font::HEAD.fit(self.title, room);
        area.draw_text(&title, &Font::HEAD.at(HPos::Left), fine((MARGIN, TOP / 2.0)))?;
        let beside = fine((PANEL_WIDTH - MARGIN, TOP / 2.0));
        area.draw_text(scale, &Font::TICK.at(HPos::Right), beside)
    }
}

//! Panels with gauges: horizontal bars in front of ranges, which show how a value compares with limits.
//!
//! The form is that of bullet graphs (Stephen Few, "Bullet Graph Design Specification", 2006). Related files: `bars.rs`
//! draws the title and the axis.

use plotters::prelude::*;
use plotters::style::Color as _;
use plotters::style::text_anchor::HPos;

use crate::bars::{AXIS_HEIGHT, BAR_LINE, Frame, GAP, Plot, title_height};
use crate::chart::{Area, Drawn, PANEL_WIDTH, Panel, fine};
use crate::color::Color;
use crate::scale::Scale;
use crate::text::{FINE, Font};

const NAME_WIDTH: f64 = 104.0;
/// Height of the bar, and of the ranges behind it.
const HEIGHTS: (f64, f64) = (6.0, 16.0);
/// Opacity of the ranges, so that the bar stays visible.
const RANGE_OPACITY: f64 = 0.32;

/// A value with the limits that it is compared with.
#[derive(Clone, Debug)]
pub struct Gauge {
    /// Its name.
    pub name: String,
    /// The value.
    pub value: f64,
    /// Colour of the bar.
    pub color: Color,
    /// Ascending limits. The range below each limit, down to the limit before, has its colour.
    pub limits: Vec<(f64, Color)>,
    /// Text next to the gauge, such as the value.
    pub text: String,
}

/// A panel with gauges.
#[derive(Clone, Debug)]
pub struct Gauges<'a> {
    /// Its title.
    pub title: &'a str,
    /// Scale of the values.
    pub scale: &'a Scale,
    /// Name of the axis.
    pub axis: &'a str,
    /// The gauges.
    pub gauges: &'a [Gauge],
    /// Space for the texts next to the gauges, in pixels.
    pub text_width: f64,
}

impl Gauges<'_> {
    /// Draws the panel.
    #[must_use]
    pub fn panel(&self) -> Panel {
        let height = title_height(self.title) + self.gauges_height() + AXIS_HEIGHT;
        Panel::draw((PANEL_WIDTH, height), |area| self.draw(area))
    }

    fn gauges_height(&self) -> f64 {
        self.gauges.len() as f64 * BAR_LINE
    }

    fn draw(&self, area: &Area<'_>) -> Drawn {
        let (title, scale, text_width) = (self.title, self.scale, self.text_width);
        let frame = Frame { title, scale, axis: Some(self.axis), name_width: NAME_WIDTH, text_width };
        let plot = frame.draw(area, self.gauges_height())?;
        for (at, gauge) in self.gauges.iter().enumerate() {
            gauge.draw(area, &plot, (at as f64 + 0.5) * BAR_LINE, text_width)?;
        }
        Ok(())
    }
}

impl Gauge {
    fn draw(&self, area: &Area<'_>, plot: &Plot<'_, '_>, middle: f64, text_width: f64) -> Drawn {
        let spec = plot.as_coord_spec().x_spec();
        let (origin, end) = (spec.origin(), spec.range().end);
        let at = |value: f64| plot.backend_coord(&(value.clamp(origin, end), middle));
        let rectangle = |from: f64, to: f64, height: f64| {
            let ((left, y), (right, _)) = (at(from), at(to));
            let half = (height / 2.0 * FINE) as i32;
            [(left, y - half), (right, y + half)]
        };
        let (left, y) = at(origin);
        let name = Font::LABEL.fit(&self.name, NAME_WIDTH - 2.0 * GAP);
        area.draw_text(&name, &Font::LABEL.at(HPos::Right), (left - (GAP * FINE) as i32, y))?;
        let mut low = origin;
        for (limit, color) in &self.limits {
            area.draw(&Rectangle::new(rectangle(low, *limit, HEIGHTS.1), color.mix(RANGE_OPACITY).filled()))?;
            low = limit.max(low);
        }
        area.draw(&Rectangle::new(rectangle(origin, self.value, HEIGHTS.0), self.color.filled()))?;
        let text = Font::LABEL.fit(&self.text, text_width);
        let place = fine((PANEL_WIDTH - text_width, 0.0)).0;
        area.draw_text(&text, &Font::LABEL.at(HPos::Left), (place, y))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Chart, color};

    #[test]
    fn bars_and_ranges_have_the_lengths_of_their_values() {
        let scale = Scale::lengths([100.0], "").unwrap();
        let limits = vec![(10.0, color::VERMILION), (30.0, color::YELLOW)];
        let gauge = |value| Gauge {
            name: "0 <Normal>".to_owned(),
            value,
            color: color::BLUE,
            limits: limits.clone(),
            text: String::new(),
        };
        let gauges = [gauge(50.0), gauge(1000.0), gauge(0.0)];
        let panel =
            Gauges { title: "Free", scale: &scale, axis: "frames", gauges: &gauges, text_width: 60.0 }
                .panel();
        let [name, title, about] = ["a", "", ""].map(str::to_owned);
        let svg = Chart { name, title, about, keys: vec![], panels: vec![panel] }.document();
        let document = roxmltree::Document::parse(&svg).unwrap();
        let widths = |color: Color| -> Vec<f64> {
            let of_color =
                document.descendants().filter(|node| node.attribute("fill") == Some(&*color::hex(color)));
            of_color.filter_map(|node| node.attribute("width")?.parse().ok()).collect()
        };
        let [bars, low, middle] = [color::BLUE, color::VERMILION, color::YELLOW].map(widths);
        assert_eq!((bars.len(), low.len(), middle.len()), (3, 3, 3));
        for (width, of_ten) in [(bars[0], 5.0), (bars[1], 10.0), (bars[2], 0.0), (middle[0], 2.0)] {
            assert!((width - low[0] * of_ten).abs() < 30.0, "{width} {of_ten} {low:?}");
        }
        assert!(!svg.contains("style="));
    }
}

//! Self-contained pages with charts. All pages of zonal share this style and chart library.
//!
//! A [`Page`] is one HTML file with sections of [`Block`]s, such as sentences, [`Table`]s and [`Chart`]s. It has no
//! scripts and loads nothing. It is readable in light and dark mode, on narrow screens, on paper and with screen
//! readers. A [`Chart`] can also be written as an SVG document. Its panels have [`Lines`] on two axes, [`Bars`] or
//! [`Gauges`], and the axes are [`Scale`]s. A [`HeatMap`] shows a matrix, and a [`Topology`] the nodes of a machine. The same
//! contents always yield the same bytes. All texts are escaped, and invisible characters are written out.
//!
//! A page that is updated while it is shown consists of [`Section::fragment`]s and has the [`style()`].
//!
//! ```
//! use zonal_page::{Block, Chart, Key, Line, Lines, Page, Scale, Section, Symbol, color};
//!
//! let points = vec![(1.0, 0.5), (2.0, 0.6), (4.0, 0.9)];
//! let x = Scale::cases(points.iter().map(|point| point.0)).unwrap();
//! let y = Scale::figures(points.iter().map(|point| point.1), "s").unwrap();
//! let line = Line { color: color::BLUE, points, has_dots: true, marks: vec![(Symbol::Ring, (4.0, 0.8))] };
//! let panel = Lines { title: "wall (s)", x_name: "cpus", x: &x, y: &y, lines: &[line] }.panel();
//! let charts = [Chart {
//!     name: "wall".into(),
//!     title: "wall by cpus".into(),
//!     about: "A line of wall against cpus.".into(),
//!     keys: vec![Key::new(Symbol::Ring, color::SOFT, "published")],
//!     panels: vec![panel],
//! }];
//! let sections = vec![Section { title: "Figures".into(), blocks: vec![Block::Charts(&charts)] }];
//! let page = Page { title: "An experiment".into(), header: vec![Block::Lead("It works.".into())], sections };
//! assert!(page.html().contains("<figcaption") && charts[0].document().starts_with("<svg"));
//! ```

#![forbid(unsafe_code)]

mod bars;
mod chart;
pub mod color;
pub mod figures;
mod gauges;
mod heat;
mod lines;
mod page;
mod scale;
mod table;
mod text;
mod topology;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use bars::{Bar, Bars};
pub use chart::{Chart, Key, Panel, Symbol};
pub use color::Color;
pub use gauges::{Gauge, Gauges};
pub use heat::{HeatAxis, HeatMap, Merge};
pub use lines::{Line, Lines};
pub use page::{Block, Finding, Page, Section, slug, style};
pub use scale::{Scale, is_shown};
pub use table::{Cell, Column, Kind, Table, Tone};
pub use text::printable;
pub use topology::{Topology, TopologyNode, TopologyZone};

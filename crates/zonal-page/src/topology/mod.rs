//! Topologies: the nodes of a machine as boxes, arranged by distance, with their CPUs and zones.
//!
//! Every part of the picture has data attributes with exact values, for programs and style sheets, and a tooltip. Nodes
//! that are close to each other are in a common frame. The more nodes there are, the less is written into each.
//! Related files: `topology/groups.rs` groups the nodes, `topology/layout.rs` places them, and `chart.rs` includes the
//! panel in a figure.

mod groups;
mod layout;

use maud::{Markup, html};

use crate::chart::Panel;
use crate::color::{Color, GRID, INK, PAPER, SOFT, hex};
use crate::text::{FINE, Font, printable};
use groups::Group;
use layout::{Part, layout};

/// Maximum numbers of nodes that are shown in full, and as compact boxes.
const FULL_MAX: usize = 16;
const COMPACT_MAX: usize = 128;
/// Space around the picture, in pixels.
const BORDER: f64 = 1.0;

/// A node of a topology.
#[derive(Clone, Debug)]
pub struct TopologyNode {
    /// Id.
    pub id: u32,
    /// CPUs as ranges, such as `0-3,8`. Empty if there are none.
    pub cpus: String,
    /// Amount of managed memory, for readers.
    pub size: String,
    /// Zones.
    pub zones: Vec<TopologyZone>,
}

/// A zone of a node.
#[derive(Clone, Debug)]
pub struct TopologyZone {
    /// Name.
    pub name: String,
    /// Bytes of managed memory.
    pub managed_bytes: u64,
    /// The same for readers.
    pub size: String,
    /// Colour of its bar.
    pub color: Color,
}

/// A picture of nodes.
#[derive(Clone, Debug)]
pub struct Topology {
    /// The nodes.
    pub nodes: Vec<TopologyNode>,
    /// Distances by the indexes of two nodes.
    pub distances: Vec<Vec<u32>>,
}

/// How much is written into a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Detail {
    /// Everything.
    Full,
    /// The id, the CPUs and the memory.
    Compact,
    /// The id.
    Tiny,
}

impl TopologyNode {
    fn managed_bytes(&self) -> u64 {
        self.zones.iter().fold(0, |sum, zone| sum.saturating_add(zone.managed_bytes))
    }

    /// Returns the CPUs in words.
    fn cpus_text(&self) -> String {
        match self.cpus.as_str() {
            "" => "no CPUs".to_owned(),
            one if one.bytes().all(|letter| letter.is_ascii_digit()) => format!("CPU {one}"),
            several => format!("CPUs {several}"),
        }
    }

    fn size_text(&self) -> &str {
        if self.managed_bytes() == 0 { "no memory" } else { &self.size }
    }

    fn tooltip(&self) -> String {
        let zones: Vec<String> =
            self.zones.iter().map(|zone| format!("{} {}", zone.name, zone.size)).collect();
        let zones = if zones.is_empty() { String::new() } else { format!(" ({})", zones.join(", ")) };
        format!("node {}: {}, {}{zones}", self.id, self.cpus_text(), self.size_text())
    }
}

impl Topology {
    /// Draws the panel.
    #[must_use]
    pub fn panel(&self) -> Panel {
        let group = groups::group(&self.distances);
        let layout = layout(&group, self.sizes());
        let size = (layout.size.0 + 2.0 * BORDER, layout.size.1 + 2.0 * BORDER);
        let most = self.nodes.iter().map(TopologyNode::managed_bytes).max().unwrap_or(0).max(1);
        let body = html! {
            g.topology transform={ "scale(" (FINE) ") translate(" (BORDER) " " (BORDER) ")" } {
                @for ((x, y), part) in &layout.parts {
                    @match part {
                        Part::Node(node) => g transform={ "translate(" (x) " " (y) ")" } {
                            (self.node(&self.nodes[*node], most))
                        },
                        Part::Frame(group, size) => (self.frame(group, (*x, *y), *size)),
                    }
                }
            }
        };
        Panel::of(size, body)
    }

    fn detail(&self) -> Detail {
        match self.nodes.len() {
            nodes if nodes <= FULL_MAX => Detail::Full,
            nodes if nodes <= COMPACT_MAX => Detail::Compact,
            _ => Detail::Tiny,
        }
    }

    /// Draws the frame of a group.
    fn frame(&self, group: &Group, (x, y): (f64, f64), (width, height): (f64, f64)) -> Markup {
        let Group::Members { distances: (near, far), .. } = group else { return Markup::default() };
        let ids: Vec<String> = group.nodes().iter().map(|node| self.nodes[*node].id.to_string()).collect();
        let distance =
            if near == far { format!("distance {near}") } else { format!("distances {near} to {far}") };
        let (sizes, font) = (self.sizes(), if self.detail() == Detail::Full { 11.5 } else { 10.5 });
        html! {
            g data-distance-min=(near) data-distance-max=(far) data-nodes=(ids.join(",")) {
                title { (ids.len()) " nodes, " (distance) }
                rect x=(x) y=(y) width=(width) height=(height) rx="5" fill="none" stroke=(hex(SOFT))
                    stroke-width="1" stroke-opacity="0.55" {}
                @if sizes.head > 0.0 {
                    (text((x + sizes.gap, y + sizes.head / 2.0 + 4.5), &distance, font, SOFT, false))
                }
            }
        }
    }

    /// Draws a node. `most` is the memory of the largest node, in bytes.
    fn node(&self, node: &TopologyNode, most: u64) -> Markup {
        let (width, height) = self.sizes().node;
        let dashes = node.cpus.is_empty().then_some("4 3");
        html! {
            g data-node=(node.id) data-cpus=(printable(&node.cpus)) data-managed-bytes=(node.managed_bytes()) {
                title { (printable(&node.tooltip())) }
                rect width=(width) height=(height) rx=(if self.detail() == Detail::Tiny { 2 } else { 4 })
                    fill=(hex(PAPER)) stroke=(hex(INK)) stroke-width="1" stroke-dasharray=[dashes] {}
                @match self.detail() {
                    Detail::Full => (full(node, width, most)),
                    Detail::Compact => (compact(node, width, most)),
                    Detail::Tiny => {
                        text x=(width / 2.0) y="12" font-size="9" text-anchor="middle" font-family="sans-serif"
                            fill=(hex(INK)) { (node.id) }
                        (bar(node, (3.0, 15.0), (width - 6.0, 3.0), most))
                    },
                }
            }
        }
    }
}

/// Draws the contents of a node with a line for each zone.
fn full(node: &TopologyNode, width: f64, most: u64) -> Markup {
    let (left, right) = (10.0, width - 10.0);
    let room = right - left;
    let name = format!("node {}", node.id);
    html! {
        (text((left, 20.0), &name, 13.5, INK, true))
        (text_at_end((right, 20.0), node.size_text(), 12.0))
        (text((left, 37.0), &Font::TICK.fit(&node.cpus_text(), room), 11.0, SOFT, false))
        (bar(node, (left, 45.0), (room, 9.0), most))
        @for (at, zone) in node.zones.iter().enumerate() {
            g transform={ "translate(0 " (71.0 + 17.0 * at as f64) ")" } {
                rect x=(left) y="-8" width="9" height="9" fill=(hex(zone.color)) {}
                (text((left + 15.0, 0.0), &Font::TICK.fit(&zone.name, 70.0), 11.0, INK, false))
                (text_at_end((right, 0.0), &zone.size, 11.0))
            }
        }
    }
}

/// Draws the contents of a node with the id, CPUs and memory.
fn compact(node: &TopologyNode, width: f64, most: u64) -> Markup {
    let (left, right) = (7.0, width - 7.0);
    html! {
        (text((left, 16.0), &format!("node {}", node.id), 11.5, INK, true))
        (text((left, 30.0), &Font::TICK.fit(&node.cpus_text(), right - left), 10.5, SOFT, false))
        (text((left, 43.0), node.size_text(), 10.5, INK, false))
        (bar(node, (left, 47.0), (right - left, 4.5), most))
    }
}

/// Draws a node's memory as a bar of its zones. The bar of the largest node has the full width.
fn bar(node: &TopologyNode, (x, y): (f64, f64), (width, height): (f64, f64), most: u64) -> Markup {
    let mut from = x;
    let mut part = |zone: &TopologyZone| {
        let length = width * (zone.managed_bytes as f64 / most as f64);
        from += length;
        (from - length, length)
    };
    html! {
        rect x=(x) y=(y) width=(width) height=(height) fill=(hex(GRID)) {}
        @for zone in &node.zones {
            @let (x, length) = part(zone);
            rect data-node=(node.id) data-zone=(printable(&zone.name)) data-managed-bytes=(zone.managed_bytes)
                x={ (format!("{x:.2}")) } y=(y) width={ (format!("{length:.2}")) } height=(height)
                fill=(hex(zone.color)) {
                title { "node " (node.id) ", zone " (printable(&zone.name)) ": " (printable(&zone.size)) }
            }
        }
    }
}

/// Draws a text that begins at a place.
fn text((x, y): (f64, f64), text: &str, size: f64, color: Color, is_bold: bool) -> Markup {
    html! {
        text x=(x) y=(y) font-size=(size) font-family="sans-serif" font-weight=[is_bold.then_some("bold")]
            fill=(hex(color)) { (printable(text)) }
    }
}

/// Draws a text that ends at a place.
fn text_at_end((x, y): (f64, f64), text: &str, size: f64) -> Markup {
    html! {
        text x=(x) y=(y) font-size=(size) font-family="sans-serif" text-anchor="end" fill=(hex(INK)) {
            (printable(text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::color::FILLS;
    use crate::{Chart, Key};

    fn topology(count: u32) -> Topology {
        let zone = |name: &str, managed_bytes| TopologyZone {
            name: name.to_owned(),
            managed_bytes,
            size: format!("{managed_bytes} B"),
            color: FILLS[0],
        };
        let node = |id| TopologyNode {
            id,
            cpus: if id == 1 { String::new() } else { format!("{}-{}", 2 * id, 2 * id + 1) },
            size: "4 KiB".to_owned(),
            zones: if id == 2 { Vec::new() } else { vec![zone("DMA", 1024), zone("<Normal>", 3072)] },
        };
        let distance = |a: u32, b: u32| [10, 12][usize::from(a != b)] + 20 * u32::from(a / 2 != b / 2);
        let distances = (0..count).map(|a| (0..count).map(|b| distance(a, b)).collect()).collect();
        Topology { nodes: (0..count).map(node).collect(), distances }
    }

    fn document(topology: &Topology) -> String {
        let [name, title, about] = ["topology", "Nodes", "Nodes as boxes."].map(str::to_owned);
        Chart { name, title, about, keys: Vec::<Key>::new(), panels: vec![topology.panel()] }.document()
    }

    #[test]
    fn every_part_has_its_data_and_a_tooltip() {
        for count in [4, 28, 200] {
            let svg = document(&topology(count));
            let document = roxmltree::Document::parse(&svg).unwrap_or_else(|error| panic!("{error}: {svg}"));
            let with = |name: &str| {
                document.descendants().filter(|node| node.has_attribute(name)).collect::<Vec<_>>()
            };
            let title = |node: &roxmltree::Node<'_, '_>| {
                node.children()
                    .find(|child| child.has_tag_name("title"))
                    .and_then(|title| title.text())
                    .map(str::to_owned)
            };
            let nodes = with("data-cpus");
            assert_eq!(nodes.len(), count as usize);
            assert_eq!(nodes[0].attribute("data-node"), Some("0"));
            assert_eq!(
                (nodes[0].attribute("data-cpus"), nodes[1].attribute("data-cpus")),
                (Some("0-1"), Some(""))
            );
            assert_eq!(nodes[0].attribute("data-managed-bytes"), Some("4096"));
            let shown = title(&nodes[0]).unwrap();
            assert_eq!(shown, "node 0: CPUs 0-1, 4 KiB (DMA 1024 B, <Normal> 3072 B)");
            assert_eq!(
                title(&nodes[1]).unwrap(),
                shown.replace("CPUs 0-1", "no CPUs").replace("node 0", "node 1")
            );
            assert_eq!(title(&nodes[2]).as_deref(), Some("node 2: CPUs 4-5, no memory"));
            let zones = with("data-zone");
            assert_eq!(zones.len(), 2 * (count as usize - 1));
            assert_eq!(zones[1].attribute("data-zone"), Some("<Normal>"));
            let pair =
                with("data-nodes").into_iter().find(|group| group.attribute("data-nodes") == Some("0,1"));
            assert_eq!(pair.unwrap().attribute("data-distance-max"), Some("12"));
        }
    }

    /// A zone's bar is as long as its share of the largest node.
    #[test]
    fn bars_of_zones_are_in_proportion() {
        let svg = document(&topology(4));
        let document = roxmltree::Document::parse(&svg).unwrap();
        let zones = document.descendants().filter(|node| node.attribute("data-node") == Some("0"));
        let zones = zones.filter(|node| node.has_attribute("data-zone"));
        let widths: Vec<f64> = zones.map(|zone| zone.attribute("width").unwrap().parse().unwrap()).collect();
        assert_eq!(widths, [44.0, 132.0]);
    }

    #[test]
    fn a_thousand_nodes_stay_small() {
        let length = document(&topology(1024)).len();
        assert!(length < 1_200_000, "{length}");
    }
}

//! The help: keys, and what the panes show.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;

use super::paint::{Align, line, text, wrap};
use crate::top::app::{App, Drawn};
use crate::top::theme::Colours;

/// A line of the help: a title, or a key and what it does.
enum Entry {
    Title(&'static str),
    Key(&'static str, &'static str),
    Text(&'static str),
}

use Entry::{Key, Text, Title};

const ENTRIES: [Entry; 38] = [
    Title("Keys"),
    Key("q, Esc", "quit; Ctrl-C quits with exit code 130"),
    Key("?, F1, h", "this help; in Pagesets and Blocks, h and l move left and right"),
    Key("Tab, 1-4", "the next pane, or a pane by its number"),
    Key("arrows, jkl", "move; with PgUp, PgDn, Home, End by pages and to the ends"),
    Key("s, S", "sort by the next column; reverse the order"),
    Key("n, /", "show only some nodes, such as 0,2-3; an empty list shows all"),
    Key("Enter", "in Overview: only the node of the selected row, or all nodes again"),
    Key("p, space", "pause, and continue with the newest reading"),
    Key("+, -", "a longer or shorter interval"),
    Key("m", "in Pagesets: frames, refills or drains"),
    Key("a", "in Pagesets: CPUs share cells so that all are visible, or scroll"),
    Key("t", "in Blocks: hide or show migrate types"),
    Key("Ctrl-Z, Ctrl-L", "stop until fg; draw everything again"),
    Key("mouse", "click panes, heads of columns, rows and cells; the wheel moves"),
    Title("Overview"),
    Text(
        "The left half of a bar is 0 to the high watermark, and the right half from there to all memory of the zone. \
         Marks: m = min, l = low, h = high.",
    ),
    Key("ok", "at high or above: no reclaim is necessary"),
    Key("< high", "background reclaim goes on if it runs"),
    Key("< low", "background reclaim starts"),
    Key("< MIN!", "only urgent requests are served; others reclaim memory themselves"),
    Key("hits", "allocations served by the node that they preferred"),
    Key("misses", "allocations served here that preferred another node"),
    Key("foreign", "allocations that preferred this node and were served by another one"),
    Key("stalled", "share of the last 10 seconds in which direct reclaim stalled a caller"),
    Text(
        "Rates of a zone count towards its node, and rates below the table are sums over the nodes that are shown.",
    ),
    Title("Pagesets"),
    Text(
        "A pageset has the free frames of a zone that one CPU allocates and frees without a lock. Above high frames \
         it drains to its zone, and when it is empty it is refilled, both by batches.",
    ),
    Key("1 to 9", "ninths of high, or of the largest rate; a dot is nothing"),
    Title("Counters"),
    Text(
        "Totals count from the start of the system or of the pool. They are of all nodes, except those of locality.",
    ),
    Title("Blocks"),
    Text(
        "Free blocks of each size. Memory can be free and yet have few large blocks: huge pages need blocks of 2 MiB.",
    ),
    Title("Charts"),
    Text(
        "60 seconds, the newest at the right. The top of a chart is its peak, or for free memory the named size; a \
         dotted line is the high watermark.",
    ),
    Title("Source"),
    Text(
        "This system: /proc/zoneinfo, buddyinfo, vmstat, pagetypeinfo (root only), and numastat of each node in /sys.",
    ),
    Text(
        "A pool (--pool SOCKET): what the program publishes with Pool::publish, or zonal run with --publish.",
    ),
];

/// Draws the help over the panes, as scrolled.
pub(super) fn draw(buffer: &mut Buffer, area: Rect, app: &App, at: usize, drawn: &mut Drawn) {
    for y in area.top()..area.bottom() {
        for x in area.left()..area.right() {
            buffer[(x, y)].reset();
        }
    }
    let lines = lines(area.width, app.colours);
    drawn.page = area.height.into();
    drawn.help_end = lines.len().saturating_sub(area.height.into());
    let first = at.min(drawn.help_end);
    for (row, (key, key_style, shown)) in lines.iter().skip(first).take(area.height.into()).enumerate() {
        let place = line(area, row as u16);
        text(buffer, place, Align::Left, key, *key_style);
        let indent = INDENT.min(place.width);
        let right = Rect { x: place.x + indent, width: place.width - indent, ..place };
        text(buffer, right, Align::Left, shown, Style::new());
    }
    drawn.needs = (drawn.needs.0, lines.len() as u16 + 3);
}

/// Columns before the meaning of a key.
const INDENT: u16 = 18;

/// Returns the lines of the help for a width: what stands at the left, its style, and what stands after it.
fn lines(width: u16, colours: Colours) -> Vec<(String, Style, String)> {
    let mut lines = Vec::new();
    for entry in &ENTRIES {
        match entry {
            Title(title) => {
                if !lines.is_empty() {
                    lines.push(Default::default());
                }
                lines.push(((*title).to_owned(), Colours::strong(), String::new()));
            }
            Key(key, meaning) => {
                let columns = usize::from(width.saturating_sub(INDENT)).clamp(10, 80);
                for (at, part) in wrap(meaning, columns).into_iter().enumerate() {
                    let key = if at == 0 { format!("  {key}") } else { String::new() };
                    lines.push((key, colours.key(), part));
                }
            }
            Text(words) => {
                let parts = wrap(words, usize::from(width).saturating_sub(2).clamp(10, 94));
                lines
                    .extend(parts.into_iter().map(|part| (format!("  {part}"), Style::new(), String::new())));
            }
        }
    }
    lines
}

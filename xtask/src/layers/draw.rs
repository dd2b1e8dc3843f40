//! Draws the picture: crates as boxes with arrows, and folders as rows and columns.
//!
//! The background is white, so that the picture is readable on dark pages too. Related files: `layers/graph.rs` places
//! the boxes.

use std::fmt::Write;

use super::Imports;
use super::graph::{Rows, Slot};

/// Height of a box with text. All sizes are in pixels.
const BOX_HEIGHT: f64 = 30.0;
/// Width of a crate's box, and of the space that an arrow occupies in a row.
const CRATE_WIDTH: f64 = 130.0;
const PASSAGE_WIDTH: f64 = 20.0;
/// Space between boxes of a row, and between rows.
const GAP: f64 = 28.0;
const ROW_GAP: f64 = 44.0;
/// Width of a folder's box, and size of a cell.
const FOLDER_WIDTH: f64 = 110.0;
const CELL: f64 = 26.0;
/// Height of the names above columns.
const NAMES: f64 = 76.0;
const MARGIN: f64 = 24.0;
/// Height of a heading with the line below it.
const HEADING: f64 = 50.0;

/// Returns the picture of the crates and some crates' folders.
pub(super) fn picture(crates: &Imports, folders: &[(&str, Imports)]) -> String {
    let mut body = String::new();
    let rows = Rows::new(crates);
    let tables: f64 =
        folders.iter().map(|(_, imports)| table_width(imports) + 2.0 * GAP).sum::<f64>() - 2.0 * GAP;
    let widest = rows.rows.iter().map(|row| row_width(row)).fold(tables, f64::max);
    let mut y = MARGIN;
    heading(
        &mut body,
        MARGIN,
        y,
        "Crates",
        "An arrow points to what a crate uses. Arrows that others imply are left out.",
    );
    y = boxes(&mut body, &rows, widest, y + HEADING) + GAP;
    let (mut x, top) = (MARGIN, y);
    for (name, imports) in folders {
        heading(&mut body, x, top, &format!("Folders of {name}"), "A row uses the columns with a blue dot.");
        y = f64::max(y, table(&mut body, imports, x, top + HEADING));
        x += table_width(imports) + 2.0 * GAP;
    }
    let (width, height) = ((widest + 2.0 * MARGIN).ceil(), (y + MARGIN).ceil());
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\" fill=\"#1f2328\">\n\
         <title>The layers of zonal: crates, and folders of the core and of the Linux host</title>\n\
         <defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"8\" markerHeight=\"8\" \
         orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" fill=\"#57606a\"/></marker></defs>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{body}</svg>\n"
    )
}

fn heading(out: &mut String, x: f64, y: f64, text: &str, below: &str) {
    line(
        out,
        &format!("<text x=\"{x}\" y=\"{}\" font-size=\"16\" font-weight=\"bold\">{text}</text>", y + 14.0),
    );
    line(
        out,
        &format!("<text x=\"{x}\" y=\"{}\" font-size=\"12\" fill=\"#57606a\">{below}</text>", y + 32.0),
    );
}

/// Draws a box with a name. Its upper left corner is at `x` and `y`.
fn named_box(out: &mut String, x: f64, y: f64, width: f64, name: &str) {
    line(
        out,
        &format!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{BOX_HEIGHT}\" rx=\"4\" fill=\"#ddf4ff\" \
             stroke=\"#0969da\"/>"
        ),
    );
    let (middle, base) = (x + width / 2.0, y + BOX_HEIGHT / 2.0 + 4.5);
    line(out, &format!("<text x=\"{middle}\" y=\"{base}\" text-anchor=\"middle\">{name}</text>"));
}

fn slot_width(slot: &Slot) -> f64 {
    match slot {
        Slot::Node(_) => CRATE_WIDTH,
        Slot::Passage(..) => PASSAGE_WIDTH,
    }
}

fn row_width(row: &[Slot]) -> f64 {
    row.iter().map(|slot| slot_width(slot) + GAP).sum::<f64>() - GAP
}

/// Draws boxes and arrows in a space of this width. Returns the vertical position at which the drawing ends.
fn boxes(out: &mut String, rows: &Rows, width: f64, top: f64) -> f64 {
    let mut middles: Vec<(&Slot, f64, f64)> = Vec::new();
    for (row, y) in rows.rows.iter().zip((0..).map(|row| top + f64::from(row) * (BOX_HEIGHT + ROW_GAP))) {
        let mut x = MARGIN + (width - row_width(row)) / 2.0;
        for slot in row {
            middles.push((slot, x + slot_width(slot) / 2.0, y));
            x += slot_width(slot) + GAP;
        }
    }
    let middle = |slot: &Slot| middles.iter().find(|(known, ..)| *known == slot).map(|&(_, x, y)| (x, y));
    for (from, to) in &rows.parts {
        let (Some((x1, y1)), Some((x2, y2))) = (middle(from), middle(to)) else { continue };
        // The ends of a box's arrows are apart from each other, each shifted towards its other end.
        let shift = |slot: &Slot, towards: f64| match slot {
            Slot::Node(_) => (towards / 8.0).clamp(-CRATE_WIDTH / 3.0, CRATE_WIDTH / 3.0),
            Slot::Passage(..) => 0.0,
        };
        let (x1, x2) = (x1 + shift(from, x2 - x1), x2 + shift(to, x1 - x2));
        let (end, tip) = match to {
            Slot::Node(_) => (y2 + BOX_HEIGHT + 1.0, " marker-end=\"url(#tip)\""),
            Slot::Passage(..) => (y2, ""),
        };
        // An arrow crosses a row without a box as a straight line.
        let past = if matches!(to, Slot::Passage(..)) { format!("V{end}") } else { String::new() };
        let turn = if past.is_empty() { end } else { end + BOX_HEIGHT };
        line(
            out,
            &format!("<path d=\"M{x1} {y1}L{x2} {turn}{past}\" fill=\"none\" stroke=\"#57606a\"{tip}/>"),
        );
    }
    for (slot, x, y) in &middles {
        if let Slot::Node(name) = slot {
            named_box(out, x - CRATE_WIDTH / 2.0, *y, CRATE_WIDTH, name);
        }
    }
    top + rows.rows.len() as f64 * (BOX_HEIGHT + ROW_GAP) - ROW_GAP
}

fn table_width(imports: &Imports) -> f64 {
    // Names above columns are slanted to the right.
    FOLDER_WIDTH + 8.0 + imports.len() as f64 * CELL + 44.0
}

/// Draws folders as rows and columns. Returns the vertical position at which the drawing ends.
fn table(out: &mut String, imports: &Imports, left: f64, top: f64) -> f64 {
    let (cells, first) = (left + FOLDER_WIDTH + 8.0, top + NAMES);
    let row_height = BOX_HEIGHT + 4.0;
    let middle_of = |column: usize| cells + (column as f64 + 0.5) * CELL;
    for (at, (name, used)) in imports.iter().enumerate() {
        let y = first + at as f64 * row_height;
        let middle = y + BOX_HEIGHT / 2.0;
        named_box(out, left, y, FOLDER_WIDTH, name);
        let (x, below) = (middle_of(at), first - 8.0);
        line(
            out,
            &format!(
                "<text transform=\"translate({} {below}) rotate(-50)\" font-size=\"12\">{name}</text>",
                x + 4.0
            ),
        );
        line(
            out,
            &format!(
                "<path d=\"M{cells} {middle}H{x}M{x} {below}V{middle}\" fill=\"none\" stroke=\"#d0d7de\"/>"
            ),
        );
        line(
            out,
            &format!(
                "<rect x=\"{}\" y=\"{}\" width=\"8\" height=\"8\" fill=\"#8c959f\"/>",
                x - 4.0,
                middle - 4.0
            ),
        );
        for (column, _) in imports.iter().enumerate().filter(|(_, (other, _))| used.contains(other)) {
            line(
                out,
                &format!("<circle cx=\"{}\" cy=\"{middle}\" r=\"5\" fill=\"#0969da\"/>", middle_of(column)),
            );
        }
    }
    first + imports.len() as f64 * row_height
}

fn line(out: &mut String, text: &str) {
    writeln!(out, "{text}").expect("a string can grow");
}

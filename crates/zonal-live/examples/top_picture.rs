//! Prints a picture of the live view as SVG, for the documentation.
//!
//! `top_picture --system | --pool SOCKET | --simulated NODES [--pane 1..4] [--size 120x36] [--seconds 60] [--keys jj]` reads the source once
//! a second for that time and draws the last state. With `--short` it makes a small picture of a simulated machine.

use std::error::Error;
use std::fmt::Write;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use jiff::tz::TimeZone;
use ratatui_core::buffer::{Buffer, Cell};
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier};
use zonal_live::top::{App, Colours, Reading, draw};
use zonal_live::{PoolSource, SimulatedSource, Source, SystemSource, Watch};

/// Size of a cell in pixels.
const CELL: (u32, u32) = (9, 19);
const FONT: &str = "font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"15\"";
const BACKGROUND: &str = "#16181d";
const FOREGROUND: &str = "#d0d0d0";

struct Options {
    source: Box<dyn Source>,
    period: Duration,
    seconds: u64,
    keys: String,
    size: (u16, u16),
}

fn options() -> Result<Options, Box<dyn Error>> {
    let mut options = Options {
        source: Box::new(SimulatedSource::new(8, 8)),
        period: Duration::from_secs(1),
        seconds: 60,
        keys: String::new(),
        size: (120, 36),
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--system" => options.source = Box::new(SystemSource::live()),
            "--pool" => options.source = Box::new(PoolSource::new(PathBuf::from(value()?))),
            "--simulated" => {
                let nodes: u64 = value()?.parse()?;
                (options.source, options.period) = (Box::new(SimulatedSource::new(nodes, 4)), Duration::ZERO);
            }
            "--seconds" => options.seconds = value()?.parse()?,
            "--pane" | "--keys" => options.keys += &value()?,
            "--short" => (options.period, options.size) = (Duration::ZERO, (80, 24)),
            "--size" => {
                let text = value()?;
                let (width, height) = text.split_once('x').ok_or("a size is WIDTHxHEIGHT")?;
                options.size = (width.parse()?, height.parse()?);
            }
            other => return Err(format!("{other} is not an option of this example").into()),
        }
    }
    Ok(options)
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = options()?;
    let mut watch = Watch::start(options.source)?;
    for _ in 0..options.seconds {
        thread::sleep(options.period);
        watch.tick();
    }
    let interval = Duration::from_secs(1);
    let mut app = App::new(Reading::of(&watch), Vec::new(), interval, Colours::On, TimeZone::system());
    let empty = Buffer::empty(Rect::new(0, 0, options.size.0, options.size.1));
    for key in options.keys.chars() {
        app.drew(draw(&mut empty.clone(), &app));
        app.key(KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE));
    }
    app.drew(draw(&mut empty.clone(), &app));
    let mut buffer = empty;
    draw(&mut buffer, &app);
    print!("{}", svg(&buffer));
    Ok(())
}

/// Returns the screen as a picture.
fn svg(screen: &Buffer) -> String {
    let (width, height) = (u32::from(screen.area.width), u32::from(screen.area.height));
    let (pixels_x, pixels_y) = (width * CELL.0 + 24, height * CELL.1 + 24);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {pixels_x} {pixels_y}\" width=\"{pixels_x}\" {FONT}>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"{BACKGROUND}\"/>\n<g transform=\"translate(12 12)\">\n"
    );
    for y in 0..screen.area.height {
        let cells: Vec<&Cell> = (0..screen.area.width).map(|x| &screen[(x, y)]).collect();
        let style = |cell: &Cell| (cell.fg, cell.bg, cell.modifier);
        let mut x = 0;
        for run in cells.chunk_by(|a, b| style(a) == style(b) && is_block(a) == is_block(b)) {
            draw_run(&mut svg, x, u32::from(y), run);
            x += run.len() as u32;
        }
    }
    svg + "</g>\n</svg>\n"
}

/// Draws cells that have the same style, the first one at column `x`.
fn draw_run(svg: &mut String, x: u32, y: u32, run: &[&Cell]) {
    let first = run[0];
    let (mut text, mut behind) = (colour(first.fg, FOREGROUND), colour(first.bg, BACKGROUND));
    if first.modifier.contains(Modifier::REVERSED) {
        (text, behind) = (behind, text);
    }
    let (left, top, width) = (x * CELL.0, y * CELL.1, run.len() as u32 * CELL.0);
    if behind != BACKGROUND {
        let _ = writeln!(
            svg,
            "<rect x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{}\" fill=\"{behind}\"/>",
            CELL.1
        );
    }
    if is_block(first) {
        return draw_blocks(svg, left, top, &text, run);
    }
    let letters: String = run.iter().map(|cell| cell.symbol()).collect();
    if letters.trim().is_empty() {
        return;
    }
    let letters = letters.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let weight = if first.modifier.contains(Modifier::BOLD) { " font-weight=\"bold\"" } else { "" };
    let dim = if first.modifier.contains(Modifier::DIM) { " opacity=\"0.6\"" } else { "" };
    let _ = writeln!(
        svg,
        "<text x=\"{left}\" y=\"{}\" textLength=\"{width}\" fill=\"{text}\" xml:space=\"preserve\"{weight}{dim}>{letters}</text>",
        top + 14
    );
}

/// Draws blocks of eighths as rectangles, so that they have no gaps in any font.
fn draw_blocks(svg: &mut String, left: u32, top: u32, fill: &str, run: &[&Cell]) {
    let mut x = left;
    for same in run.chunk_by(|a, b| a.symbol() == b.symbol()) {
        let width = same.len() as u32 * CELL.0;
        let letter = same[0].symbol().chars().next().unwrap_or('█');
        let (eighths, opacity) = match letter {
            '░' => (8, "0.25"),
            block => (u32::from(block).saturating_sub(0x2580).clamp(1, 8), "1"),
        };
        let height = f64::from(CELL.1) * f64::from(eighths) / 8.0;
        let y = f64::from(top + CELL.1) - height;
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{y:.1}\" width=\"{width}\" height=\"{height:.1}\" fill=\"{fill}\" opacity=\"{opacity}\"/>"
        );
        x += width;
    }
}

fn is_block(cell: &Cell) -> bool {
    matches!(cell.symbol().chars().next(), Some('▁'..='█' | '░'))
}

/// Returns a colour of the 256-colour palette, or `default`.
fn colour(colour: Color, default: &str) -> String {
    let Color::Indexed(index) = colour else { return default.to_owned() };
    let level = |part: u8| if part == 0 { 0 } else { 55 + 40 * u32::from(part) };
    let (red, green, blue) = match index {
        16..=231 => (level((index - 16) / 36), level((index - 16) / 6 % 6), level((index - 16) % 6)),
        _ => {
            let grey = 8 + 10 * u32::from(index.saturating_sub(232));
            (grey, grey, grey)
        }
    };
    format!("#{red:02x}{green:02x}{blue:02x}")
}

//! Renders the state of the screen: a title, the names of panes, problems, a pane, and a line of keys.
//!
//! Related files: each pane has a file here; `table.rs`, `lanes.rs` and `paint.rs` are their parts. A terminal that is
//! too small for everything drops columns, rows and charts; the last line says how many, and how large it must be.

mod blocks;
mod counters;
mod heat_map;
mod help;
mod lanes;
mod overview;
mod paint;
mod table;

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use zonal_machine::ids;

use super::app::{App, Drawn, Overlay, Pane, Target};
use super::theme::Colours;
use super::units;
use paint::{Align, line, parts, text, wrap};

/// The smallest terminal that shows a pane.
const SMALLEST: (u16, u16) = (32, 7);
/// Lines of a problem.
const PROBLEM_LINES: usize = 3;

/// Renders the state to an empty buffer, and returns what is where.
pub fn draw(buffer: &mut Buffer, app: &App) -> Drawn {
    let area = buffer.area;
    let mut drawn = Drawn { needs: (80, 7), ..Drawn::default() };
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        too_small(buffer, area);
        return drawn;
    }
    title(buffer, line(area, 0), app);
    tabs(buffer, line(area, 1), app, &mut drawn);
    let top = 2 + banners(buffer, Rect { y: area.y + 2, height: area.height - 3, ..area }, app);
    let body = Rect { y: area.y + top, height: area.height.saturating_sub(top + 1), ..area };
    if !body.is_empty() {
        match (&app.overlay, app.pane) {
            (Overlay::Help(at), _) => help::draw(buffer, body, app, *at, &mut drawn),
            (_, Pane::Overview) => overview::draw(buffer, body, app, &mut drawn),
            (_, Pane::Pagesets) => heat_map::draw(buffer, body, app, &mut drawn),
            (_, Pane::Counters) => counters::draw(buffer, body, app, &mut drawn),
            (_, Pane::Blocks) => blocks::draw(buffer, body, app, &mut drawn),
        }
    }
    drawn.needs.1 += top + 1;
    footer(buffer, line(area, area.height - 1), app, &mut drawn);
    drawn
}

/// Draws one line about how large the terminal must be.
fn too_small(buffer: &mut Buffer, area: Rect) {
    let (width, height) = SMALLEST;
    let shown = format!("{width} x {height} is the least; this is {} x {}", area.width, area.height);
    text(buffer, area, Align::Left, &shown, Colours::strong());
}

fn title(buffer: &mut Buffer, area: Rect, app: &App) {
    let style = app.colours.title();
    buffer.set_style(area, style);
    let sample = &app.shown.sample;
    let seconds = app.interval.as_secs_f64();
    let nodes = match app.nodes.as_slice() {
        [] => String::new(),
        [node] => format!("node {node}  "),
        nodes => format!("nodes {}  ", ids::format(nodes.iter().copied())),
    };
    let right = format!("{nodes}every {seconds} s  {} ", app.clock(sample.unix_ms));
    let right_width = (units::width(&right) as u16).min(area.width);
    let left = Rect { width: area.width.saturating_sub(right_width + 1), ..area };
    let program = match &sample.program {
        Some(program) => format!("{}, {}", units::safe(program), units::safe(&app.shown.title)),
        None => units::safe(&app.shown.title),
    };
    let bold = style.patch(Colours::strong());
    let rest = parts(buffer, left, &[(" zonal top ", bold), (" ", style)]);
    text(buffer, rest, Align::Left, &program, style);
    let place = Rect { x: area.right() - right_width, width: right_width, ..area };
    text(buffer, place, Align::Right, &right, style);
}

fn tabs(buffer: &mut Buffer, area: Rect, app: &App, drawn: &mut Drawn) {
    let mut rest = area;
    let names_fit = area.width >= 56;
    for (at, pane) in Pane::ALL.into_iter().enumerate() {
        let name = match names_fit || pane == app.pane {
            true => format!(" {} {} ", at + 1, pane.name()),
            false => format!(" {} ", at + 1),
        };
        let style = if pane == app.pane { app.colours.tab() } else { Style::new() };
        let left = parts(buffer, rest, &[(&name, style)]);
        drawn.targets.push((Rect { width: rest.width - left.width, ..rest }, Target::Tab(pane)));
        rest = parts(buffer, left, &[(" ", Style::new())]);
    }
    let help = "? help  q quit ";
    if rest.width as usize >= help.len() {
        text(buffer, rest, Align::Right, help, app.colours.dim());
        let width = 6;
        drawn.targets.push((Rect { x: rest.right() - help.len() as u16, width, ..rest }, Target::Help));
    }
}

/// Draws what is not as usual. Returns how many lines that takes.
fn banners(buffer: &mut Buffer, area: Rect, app: &App) -> u16 {
    let since = app.clock(app.shown.sample.unix_ms);
    let overdue = app.overdue().map(|age| age.as_secs());
    let problem = match (&app.shown.problem, overdue) {
        (Some(why), _) => Some(format!("no answer since {since}: {}; retrying", units::safe(why))),
        (None, Some(age)) if !app.is_paused => {
            Some(format!("no answer since {since}, {age} seconds ago; waiting"))
        }
        _ => None,
    };
    let gone = match app.gone_nodes().as_slice() {
        [] => None,
        [node] => Some(format!("node {node} does not exist any more; n chooses others")),
        nodes => Some(format!(
            "nodes {} do not exist any more; n chooses others",
            ids::format(nodes.iter().copied())
        )),
    };
    let notice = app.colours.notice();
    let paused = app.is_paused.then(|| format!("paused at {since}; p continues"));
    let mut used = 0;
    for (shown, style) in [(problem, app.colours.problem()), (gone, notice), (paused, notice)] {
        let Some(shown) = shown else { continue };
        let columns = usize::from(area.width).saturating_sub(2);
        for part in wrap(&shown, columns).into_iter().take(PROBLEM_LINES) {
            if used + 2 > area.height {
                break;
            }
            let place = line(area, used);
            buffer.set_style(place, style);
            text(buffer, place, Align::Left, &format!(" {part}"), style);
            used += 1;
        }
    }
    used
}

fn footer(buffer: &mut Buffer, area: Rect, app: &App, drawn: &mut Drawn) {
    let colours = app.colours;
    if let Overlay::Filter { text: typed, refused } = &app.overlay {
        let prompt =
            [("nodes: ", colours.key()), (typed.as_str(), Colours::strong()), ("_  ", colours.key())];
        let rest = parts(buffer, area, &prompt);
        let (note, style) = match refused {
            Some(why) => (why.as_str(), colours.problem()),
            None => ("such as 0,2-3; empty shows all; Enter applies, Esc cancels", colours.dim()),
        };
        return text(buffer, rest, Align::Left, note, style);
    }
    let hint = what_is_cut(buffer.area, drawn);
    let right = Rect { width: area.width.min(units::width(&hint) as u16), ..area };
    let right = Rect { x: area.right() - right.width, ..right };
    text(buffer, right, Align::Right, &hint, colours.dim());
    let mut rest = Rect { width: area.width.saturating_sub(right.width + 2), ..area };
    for (key, does) in hints(app) {
        let needed = units::width(key) + 1 + units::width(does) + 2;
        if needed > rest.width.into() {
            break;
        }
        rest = parts(buffer, rest, &[(key, colours.key()), (" ", Style::new()), (does, Style::new())]);
        rest = Rect { x: rest.x + 2, width: rest.width - 2, ..rest };
    }
}

/// Returns how many rows and columns are visible if not all are, and the size that shows more, as far as they fit.
fn what_is_cut(screen: Rect, drawn: &Drawn) -> String {
    let part = |between: &str| {
        let part = |(visible, all, name): &(usize, usize, &str)| format!("{visible}{between}{all} {name}");
        drawn.cut.iter().map(part).collect::<Vec<_>>().join(", ")
    };
    let (width, height) = (drawn.needs.0.max(screen.width), drawn.needs.1.max(screen.height));
    let larger = match drawn.cut.is_empty() {
        _ if (width, height) == (screen.width, screen.height) => String::new(),
        true => format!("{width} x {height} shows more"),
        false => format!("; {width} x {height} shows all"),
    };
    let texts = [part(" of ") + &larger, part(" of "), part("/")];
    let fits = |text: &&String| units::width(text) <= screen.width.into();
    texts.iter().find(fits).unwrap_or(&texts[2]).clone()
}

/// Returns the keys that the last line lists, the most useful first.
fn hints(app: &App) -> Vec<(&'static str, &'static str)> {
    if matches!(app.overlay, Overlay::Help(_)) {
        return vec![("Esc", "closes the help"), ("PgDn", "more")];
    }
    let own: &[_] = match app.pane {
        Pane::Overview => &[("s", "sort"), ("Enter", "one node")],
        Pane::Pagesets => &[("m", "frames, refills, drains"), ("a", "group CPUs")],
        Pane::Counters => &[("s", "sort")],
        Pane::Blocks => &[("s", "sort"), ("t", "types")],
    };
    let general = [("n", "nodes"), ("p", "pause"), ("+-", "interval"), ("Tab", "next pane")];
    own.iter().copied().chain(general).collect()
}

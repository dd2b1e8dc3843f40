//! Small parts of the screen: lines of text, bars and charts of the last 60 seconds.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;

use crate::HISTORY_SECONDS;
use crate::top::units;
use crate::watch::Moment;

/// Blocks with 1 to 8 eighths of a cell's height.
const EIGHTHS: [&str; 8] = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];

/// Side of an area at which a text stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Align {
    Left,
    Right,
}

/// Writes a text into the first line of an area, shortened if it is too long.
pub(super) fn text(buffer: &mut Buffer, area: Rect, align: Align, text: &str, style: Style) {
    if area.is_empty() {
        return;
    }
    let shown = units::fit(text, area.width.into());
    let free = area.width.saturating_sub(units::width(&shown) as u16);
    let x = if align == Align::Right { area.x + free } else { area.x };
    buffer.set_stringn(x, area.y, shown, area.width.into(), style);
}

/// Writes parts of a line one after the other, as far as they fit. Returns the columns that are left.
pub(super) fn parts(buffer: &mut Buffer, area: Rect, parts: &[(&str, Style)]) -> Rect {
    let mut rest = area;
    for (part, style) in parts {
        text(buffer, rest, Align::Left, part, *style);
        let used = (units::width(part) as u16).min(rest.width);
        rest = Rect { x: rest.x + used, width: rest.width - used, ..rest };
    }
    rest
}

/// Returns the lines of a table with some rows, without its head. No terminal has more than the largest number.
pub(super) fn lines(rows: usize) -> u16 {
    rows.min(60_000) as u16
}

/// Returns one line of an area.
pub(super) fn line(area: Rect, at: u16) -> Rect {
    Rect { y: area.y + at, height: area.height.saturating_sub(at).min(1), ..area }
}

/// Breaks a text into lines of at most `columns`, between words if possible.
pub(super) fn wrap(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("there is a line from the beginning");
        if last.is_empty() {
            last.push_str(word);
        } else if units::width(last) + 1 + units::width(word) <= columns {
            last.push(' ');
            last.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// How the values of several moments in one column become one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Extreme {
    /// A scarce value must be seen.
    Smallest,
    /// A peak must be seen.
    Largest,
}

/// Returns the values of the last 60 seconds for some columns, oldest first.
///
/// A value holds from the moment before it until its own, because rates are means over that time.
pub(super) fn columns<'m>(
    history: impl DoubleEndedIterator<Item = &'m Moment> + Clone,
    width: u16,
    extreme: Extreme,
    value: impl Fn(&Moment) -> Option<f64>,
) -> Vec<Option<f64>> {
    let Some(last) = history.clone().next_back() else { return vec![None; width.into()] };
    let seconds = HISTORY_SECONDS / f64::from(width.max(1));
    let mut moments = history.peekable();
    let mut before = None;
    while let Some(moment) = moments.next_if(|moment| moment.seconds <= last.seconds - HISTORY_SECONDS) {
        before = Some(moment.seconds);
    }
    let column = |at: u16| {
        let end = last.seconds - f64::from(width - 1 - at) * seconds + seconds * 1e-6;
        let mut found: Option<f64> = None;
        while let Some(moment) = moments.next_if(|moment| moment.seconds <= end) {
            before = Some(moment.seconds);
            found = match (found, value(moment)) {
                (Some(a), Some(b)) if extreme == Extreme::Smallest => Some(a.min(b)),
                (Some(a), Some(b)) => Some(a.max(b)),
                (a, b) => a.or(b),
            };
        }
        let later = || before.and(moments.peek()).and_then(|moment| value(moment));
        found.or_else(later)
    };
    (0..width).map(column).collect()
}

/// Draws values as columns over the whole area, the last one at the right.
pub(super) fn chart(
    buffer: &mut Buffer,
    area: Rect,
    values: &[Option<f64>],
    largest: f64,
    style: impl Fn(f64) -> Style,
) {
    let rows = area.height;
    for (at, value) in values.iter().enumerate().take(area.width.into()) {
        let Some(value) = *value else { continue };
        let all = f64::from(rows) * 8.0;
        let level = if largest > 0.0 { (value / largest * all).round().clamp(0.0, all) } else { 0.0 };
        let level = if value > 0.0 { level.max(1.0) as usize } else { 0 };
        for row in 0..usize::from(rows) {
            let eighths = level.saturating_sub(row * 8).min(8);
            let symbol = match eighths {
                0 if row == 0 => "_",
                0 => continue,
                _ => EIGHTHS[eighths - 1],
            };
            let (x, y) = (area.x + at as u16, area.y + rows - 1 - row as u16);
            let style = if eighths == 0 { style(value).dim() } else { style(value) };
            buffer[(x, y)].set_symbol(symbol).set_style(style);
        }
    }
}

/// Draws a share between 0 and 1 as a bar.
pub(super) fn bar(buffer: &mut Buffer, area: Rect, share: f64, full: Style, empty: Style) {
    let filled = filled(area.width, share);
    for at in 0..area.width {
        // Not the whole height, so that bars of adjacent rows are apart.
        let (symbol, style) = if at < filled { ("▇", full) } else { ("░", empty) };
        buffer[(area.x + at, area.y)].set_symbol(symbol).set_style(style);
    }
}

/// Returns how many of some columns a share fills: none only if it is zero.
pub(super) fn filled(width: u16, share: f64) -> u16 {
    let columns = (f64::from(width) * share.clamp(0.0, 1.0)).round() as u16;
    if share > 0.0 { columns.max(1).min(width) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(seconds: f64, free: u64) -> Moment {
        Moment { seconds, unix_ms: 0, free: vec![free], rates: Vec::new(), locality: None, nodes: Vec::new() }
    }

    fn values(history: &[Moment], width: u16, extreme: Extreme) -> Vec<Option<f64>> {
        columns(history.iter(), width, extreme, |moment| Some(moment.free[0] as f64))
    }

    #[test]
    fn columns_are_in_proportion_to_time() {
        let history = [moment(40.0, 1), moment(80.0, 2), moment(100.0, 3)];
        let shown = |history| values(history, 6, Extreme::Largest);
        assert_eq!(
            shown(&history),
            [2.0, 2.0, 2.0, 2.0, 3.0, 3.0].map(Some),
            "40 to 80 seconds are that of 80"
        );
        assert_eq!(shown(&history[1..]), [None, None, None, Some(2.0), Some(3.0), Some(3.0)]);
        let many: Vec<Moment> = (0..60).map(|at| moment(f64::from(at), 1 + at as u64 % 10)).collect();
        assert_eq!(values(&many, 6, Extreme::Largest)[5], Some(10.0));
        assert_eq!(values(&many, 6, Extreme::Smallest)[5], Some(1.0));
        assert_eq!(values(&[], 2, Extreme::Largest), [None, None]);
    }

    #[test]
    fn charts_show_small_values_and_peaks() {
        let area = Rect::new(0, 0, 4, 2);
        let mut buffer = Buffer::empty(area);
        chart(&mut buffer, area, &[None, Some(0.0), Some(0.001), Some(16.0)], 16.0, |_| Style::new());
        assert_eq!(buffer, {
            let mut expected = Buffer::with_lines(["   █", " _▁█"]);
            expected[(1, 1)].set_style(Style::new().dim());
            expected
        });
    }

    #[test]
    fn lines_break_between_words() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("", 7), [""]);
        assert_eq!([filled(10, 0.0), filled(10, 0.001), filled(10, 2.0), filled(0, 1.0)], [0, 1, 10, 0]);
    }
}

//! Numbers and texts as they are shown: at most three or four digits, and no character that controls a terminal.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};
use zonal_machine::Excerpt;

/// Formats frames as bytes, such as `9.3 GiB`.
#[must_use]
pub fn bytes(frames: u64, page_bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = frames as f64 * page_bytes as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", digits(value), UNITS[unit])
}

/// Formats a count or a rate, such as `12.3 k`.
#[must_use]
pub fn count(value: f64) -> String {
    const UNITS: [&str; 6] = ["", " k", " M", " G", " T", " P"];
    let mut value = value;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{}{}", digits(value), UNITS[unit])
}

/// Formats a count or a rate that may be unknown.
#[must_use]
pub fn known(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), count)
}

/// Formats a share between 0 and 1, such as `52 %`.
#[must_use]
pub fn percent(share: f64) -> String {
    let value = share * 100.0;
    match value {
        value if value > 0.0 && value < 0.95 => format!("{value:.1} %"),
        _ => format!("{value:.0} %"),
    }
}

/// Formats with one decimal below 100, unless that is a zero.
fn digits(value: f64) -> String {
    let is_whole = (value * 10.0).round() % 10.0 == 0.0;
    if value >= 99.95 || is_whole { format!("{value:.0}") } else { format!("{value:.1}") }
}

/// Returns a text in which characters that control a terminal are escaped.
#[must_use]
pub fn safe(text: &str) -> String {
    Excerpt::line(text).to_string()
}

/// Returns the columns that a text takes.
#[must_use]
pub fn width(text: &str) -> usize {
    text.width()
}

/// Shortens a text to a number of columns. An ellipsis replaces what is left out.
#[must_use]
pub fn fit(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let mut fitted = String::new();
    let mut used = 0;
    for letter in text.chars() {
        let wide = letter.width().unwrap_or(0);
        if used + wide + 1 > columns {
            break;
        }
        fitted.push(letter);
        used += wide;
    }
    if columns > 0 {
        fitted.push('…');
    }
    fitted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_counts_have_few_digits() {
        assert_eq!(
            [bytes(0, 4096), bytes(1, 4096), bytes(250, 4096)],
            ["0 B", "4 KiB", "1 MiB"].map(String::from)
        );
        assert_eq!(bytes(2_441_406, 4096), "9.3 GiB");
        assert_eq!(bytes(u64::MAX, 1 << 16), "1048576 EiB");
        let shown = [0.0, 0.04, 0.3, 12.0, 99.96, 999.4, 999.6, 12_345.0, 1e9].map(count);
        assert_eq!(shown, ["0", "0", "0.3", "12", "100", "999", "1 k", "12.3 k", "1 G"]);
        assert_eq!(
            [percent(0.0), percent(0.004), percent(0.52), percent(1.0)],
            ["0 %", "0.4 %", "52 %", "100 %"]
        );
    }

    #[test]
    fn texts_are_fitted_by_columns() {
        assert_eq!(
            [fit("node", 4), fit("nodes", 4), fit("nodes", 1), fit("nodes", 0)],
            ["node", "nod…", "…", ""]
        );
        assert_eq!(
            [fit("漢字漢字", 8), fit("漢字漢字", 7), fit("漢字漢字", 6)],
            ["漢字漢字", "漢字漢…", "漢字…"]
        );
        assert_eq!(safe("a\u{1b}[31mb\n"), "a\\u001b[31mb\\n");
    }
}

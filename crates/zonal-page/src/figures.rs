//! Formats numbers for readers: only significant digits, with SI prefixes and units.
//!
//! [`number`] is for columns whose header has the unit, [`quantity`] for a standalone value, and [`tick`] for an axis.
//! A value that is not finite is printed as [`NO_FIGURE`]. Every table and chart uses these functions.

/// Text printed in place of a missing number.
pub const NO_FIGURE: &str = "–";

/// Significant digits in a column.
const COLUMN_DIGITS: i32 = 4;
/// Significant digits of a standalone value.
const DIGITS: i32 = 3;
/// Maximum number of significant digits in an axis label. Neighbouring labels may differ only in the last digits.
const TICK_DIGITS: i32 = 6;

const SI: [(f64, &str); 8] =
    [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n")];
const BINARY: [(f64, &str); 4] =
    [(1_099_511_627_776.0, "TiB"), (1_073_741_824.0, "GiB"), (1_048_576.0, "MiB"), (1024.0, "KiB")];
/// Units that accept any SI prefix.
const PREFIXED: [&str; 4] = ["B", "B/s", "bit/s", "Hz"];

/// Formats `value` without a unit, with four significant digits, or as a whole number from 1000 on. Very large and
/// small values become powers of ten.
#[must_use]
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return NO_FIGURE.to_owned();
    }
    let rounded = round(value, COLUMN_DIGITS);
    match rounded.abs() {
        0.0 => "0".to_owned(),
        small if small < 1e-3 => format!("{value:.2e}"),
        large if large >= 1e10 => format!("{value:.3e}"),
        large if large >= 1e3 => grouped(value),
        _ => plain(rounded, COLUMN_DIGITS),
    }
}

/// Formats `value` with its unit and a suitable prefix: `552 ms`, `7.14 GB/s`, `13.1 M pages`.
#[must_use]
pub fn quantity(value: f64, unit: &str) -> String {
    if !value.is_finite() {
        return NO_FIGURE.to_owned();
    }
    let like = Like { value, digits: DIGITS };
    match scaled(value, unit, like).or_else(|| binary(value, unit)) {
        Some(text) => text,
        None if unit.is_empty() => short(value, like),
        None => format!("{} {unit}", short(value, like)),
    }
}

/// Formats `value` for an axis, with the prefix that suits `like`. A short unit is included.
#[must_use]
pub fn tick(value: f64, unit: &str, like: f64) -> String {
    if !value.is_finite() {
        return NO_FIGURE.to_owned();
    }
    let like = Like { value: like, digits: TICK_DIGITS };
    match scaled(value, unit, like) {
        Some(text) => text,
        None if unit == "%" => format!("{} %", short(value, like)),
        None => short(value, like),
    }
}

/// Formats a value of a case with full precision, as its file does.
#[must_use]
pub fn exact(value: f64) -> String {
    match value.abs() {
        size if size == 0.0 || (1e-6..1e15).contains(&size) => format!("{value}"),
        size if size.is_finite() => format!("{value:e}"),
        _ => NO_FIGURE.to_owned(),
    }
}

/// Formats a deviation in percent, with its sign: `+3.2`, `−12`.
#[must_use]
pub fn deviation(percent: f64) -> String {
    if !percent.is_finite() {
        return NO_FIGURE.to_owned();
    }
    let size = percent.abs();
    let text = match size {
        _ if size < 9.95 => format!("{size:.1}"),
        _ if size < 1e6 => grouped(size),
        _ => format!("{size:.0e}"),
    };
    match percent {
        _ if text == "0.0" => text,
        _ if percent < 0.0 => format!("−{text}"),
        _ => format!("+{text}"),
    }
}

/// Returns the unit that a parameter name ends with, as in `transfer_ns` or `latency_ns_max`, or an empty string.
#[must_use]
pub fn unit_of_name(name: &str) -> &'static str {
    let last = name.rsplit('.').next().unwrap_or_default();
    let mut words: Vec<&str> = last.split('_').collect();
    while words.last().is_some_and(|word| matches!(*word, "max" | "min" | "mean" | "each")) {
        words.pop();
    }
    if words.len() < 2 {
        return "";
    }
    match words.as_slice() {
        [.., "gb", "s"] => "GB/s",
        [.., "mb", "s"] => "MB/s",
        [.., "per", "s"] => "/s",
        [.., "s" | "seconds"] => "s",
        [.., "ms"] => "ms",
        [.., "us"] => "µs",
        [.., "ns"] => "ns",
        [.., "bytes"] => "B",
        [.., "kib"] => "KiB",
        [.., "mib"] => "MiB",
        [.., "gib"] => "GiB",
        [.., "kb"] => "KB",
        [.., "mb"] => "MB",
        [.., "gb"] => "GB",
        [.., "mhz"] => "MHz",
        [.., "ghz"] => "GHz",
        [.., "pct" | "percent"] => "%",
        [.., "cycles"] => "cycles",
        [.., "frames"] => "frames",
        [.., "pages"] => "pages",
        [.., "lines"] => "lines",
        _ => "",
    }
}

/// The value and unit for which a prefix and a number of digits are chosen.
#[derive(Clone, Copy)]
struct Like {
    value: f64,
    digits: i32,
}

/// Formats `value` in a unit whose SI prefix may change; returns `None` for other units.
fn scaled(value: f64, unit: &str, like: Like) -> Option<String> {
    let unit = unit.replace("us", "µs");
    let (factor, base) = split(&unit);
    let (value, like) = (value * factor, Like { value: like.value * factor, ..like });
    match base {
        // Kiloseconds are hard to read.
        "s" if round(like.value, DIGITS).abs() >= 1e3 => Some(format!("{} s", number(value))),
        _ if base == "s" || PREFIXED.contains(&base) => {
            let (digits, prefix) = with_prefix(value, like);
            Some(format!("{digits} {prefix}{base}"))
        }
        _ => None,
    }
}

/// Formats `value` in bytes with a power-of-1024 prefix; returns `None` for other units.
fn binary(value: f64, unit: &str) -> Option<String> {
    let (bytes, _) = BINARY.iter().find(|(_, name)| *name == unit)?;
    let bytes = round(value * bytes, DIGITS);
    if bytes.abs() >= 1e18 {
        return None;
    }
    let (size, name) = BINARY.iter().find(|(size, _)| bytes.abs() >= *size).unwrap_or(&(1.0, "B"));
    Some(format!("{} {name}", significant(bytes / size, DIGITS)))
}

/// Splits a unit into the factor of its prefix and the base unit: `ms` is 10^-3 of `s`.
fn split(unit: &str) -> (f64, &str) {
    let split = SI.iter().filter(|(_, prefix)| !prefix.is_empty()).find_map(|(factor, prefix)| {
        let base = unit.strip_prefix(prefix)?;
        (base == "s" || PREFIXED.contains(&base)).then_some((*factor, base))
    });
    split.unwrap_or((1.0, unit))
}

/// Formats `value` without a unit: `1,020`, `13.1 M`.
fn short(value: f64, like: Like) -> String {
    let size = like.value.abs();
    if value == 0.0 {
        return "0".to_owned();
    }
    if (1e3..1e4).contains(&size) {
        return grouped(value);
    }
    if size > 0.0 && size < 1.0 {
        return number(round(value, like.digits));
    }
    let (digits, prefix) = with_prefix(value, like);
    format!("{digits} {prefix}").trim_end().to_owned()
}

fn with_prefix(value: f64, like: Like) -> (String, &'static str) {
    let size = round(like.value, like.digits).abs();
    if size == 0.0 {
        return ("0".to_owned(), "");
    }
    if !(1e-12..1e16).contains(&size) {
        return (format!("{value:.2e}"), "");
    }
    let (factor, prefix) =
        SI.iter().find(|(factor, _)| size >= factor * (1.0 - 1e-9)).unwrap_or(&SI[SI.len() - 1]);
    (significant(round(value, like.digits) / factor, like.digits), prefix)
}

fn significant(value: f64, digits: i32) -> String {
    if value.abs() >= 1e3 { grouped(value) } else { plain(value, digits) }
}

/// Rounds to `digits` significant digits.
fn round(value: f64, digits: i32) -> f64 {
    format!("{value:.*e}", (digits - 1).max(0) as usize).parse().unwrap_or(value)
}

/// Formats with as many decimals as `digits` allows, without trailing zeros.
fn plain(value: f64, digits: i32) -> String {
    let before = if value == 0.0 { 1 } else { value.abs().log10().floor() as i32 + 1 };
    let text = format!("{value:.*}", (digits - before).max(0) as usize);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Formats a whole number with thousands separators.
fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_have_four_digits_and_whole_thousands() {
        let shown = [0.0, 0.552, 20.024, 999.96, 1526.836, 114_989_363.0, 1.04e11, 0.000_123_4, -3.5];
        let shown = shown.map(number);
        let expected =
            ["0", "0.552", "20.02", "1,000", "1,527", "114,989,363", "1.040e11", "1.23e-4", "-3.5"];
        assert_eq!(shown, expected);
    }

    #[test]
    fn quantities_have_the_prefix_that_suits_them() {
        let cases = [
            (0.552, "s", "552 ms"),
            (0.9996, "s", "1 s"),
            (17_243.2, "s", "17,243 s"),
            (1500.0, "ns", "1.5 µs"),
            (4.28, "us", "4.28 µs"),
            (7136.0, "MB/s", "7.14 GB/s"),
            (4096.0, "KiB", "4 MiB"),
            (512.0, "GiB", "512 GiB"),
            (0.5, "KiB", "512 B"),
            (13_091_697.0, "pages", "13.1 M pages"),
            (1020.0, "", "1,020"),
            (60.9, "% of cycles", "60.9 % of cycles"),
            (0.0, "s", "0 s"),
            (5.0, "busy", "5 busy"),
            (5e-300, "s", "5.00e-300 s"),
            (2e300, "B", "2.00e300 B"),
            (2e300, "KiB", "2.00e300 KiB"),
        ];
        for (value, unit, expected) in cases {
            assert_eq!(quantity(value, unit), expected);
        }
    }

    #[test]
    fn values_of_an_axis_share_their_prefix() {
        assert_eq!([0.0, 0.5, 1.0].map(|value| tick(value, "s", 1.0)), ["0 s", "0.5 s", "1 s"]);
        assert_eq!([0.0, 2e4].map(|value| tick(value, "processes", 2e4)), ["0", "20 k"]);
        assert_eq!([100.2, 100.4].map(|value| tick(value, "GB", 100.4)), ["100.2 GB", "100.4 GB"]);
        assert_eq!([0.1, 1.0].map(|value| tick(value, "s", value)), ["100 ms", "1 s"]);
        assert_eq!(tick(2e6, "KiB", 2e6), "2 M");
    }

    #[test]
    fn deviations_have_a_sign() {
        assert_eq!([3.24, -12.4, 0.01, 1234.0].map(deviation), ["+3.2", "−12", "0.0", "+1,234"]);
    }

    #[test]
    fn what_is_no_number_is_nothing() {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let texts =
                [number(value), quantity(value, "s"), tick(value, "", 1.0), exact(value), deviation(value)];
            assert_eq!(texts, [NO_FIGURE; 5]);
        }
    }

    #[test]
    fn units_are_the_ends_of_names() {
        let names = ["hardware.transfer_ns", "latency_ns_max", "cpu_gb_s", "hardware.ports", "s", "wall_s"];
        assert_eq!(names.map(unit_of_name), ["ns", "ns", "GB/s", "", "", "s"]);
        assert_eq!(["lock_pct", "busy_percent", "user_cycles"].map(unit_of_name), ["%", "%", "cycles"]);
    }
}

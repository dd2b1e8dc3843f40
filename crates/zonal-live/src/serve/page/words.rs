//! Numbers and names as the page shows them.

use zonal_page::figures::{self, NO_FIGURE};

use crate::sample::{Sample, ZoneSample};

/// Maximum number of rows in a table and bars in a chart.
pub(super) const ROWS_MAX: usize = 64;

/// Formats frames as an amount of memory.
pub(super) fn memory(sample: &Sample, frames: u64) -> String {
    figures::quantity(mib(sample, frames) * 1024.0, "KiB")
}

/// Adds frames, up to the largest number.
pub(super) fn total(frames: impl Iterator<Item = u64>) -> u64 {
    frames.fold(0, u64::saturating_add)
}

/// Converts frames to MiB.
pub(super) fn mib(sample: &Sample, frames: u64) -> f64 {
    frames as f64 * sample.page_bytes as f64 / f64::from(1 << 20)
}

/// Formats a rate without its unit.
pub(super) fn rate(value: Option<f64>) -> String {
    value.map_or_else(|| NO_FIGURE.to_owned(), |value| figures::quantity(value, ""))
}

/// Formats a count.
pub(super) fn count(value: u64) -> String {
    figures::quantity(value as f64, "")
}

/// Formats a share in percent: whole numbers, except close to the ends.
pub(super) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        _ if !percent.is_finite() => NO_FIGURE.to_owned(),
        _ if percent == 0.0 || percent == 100.0 => format!("{percent:.0} %"),
        _ if (1.0..=99.0).contains(&percent) => format!("{percent:.0} %"),
        // Never 100 % unless it is all.
        _ => format!("{:.2} %", percent.clamp(0.01, 99.99)),
    }
}

/// Returns `part` as a share of `whole`, or 0 if that is nothing.
pub(super) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Returns "1 zone" or "2 zones".
pub(super) fn counted(count: usize, name: &str) -> String {
    if count == 1 { format!("1 {name}") } else { format!("{count} {name}s") }
}

/// Returns a text whose first letter is a capital one, unless it begins with a path.
pub(super) fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

/// Returns the indexes of the zones that are shown: all, or those that are closest to their watermarks.
pub(super) fn shown_zones(sample: &Sample) -> Vec<usize> {
    let mut indexes: Vec<usize> = (0..sample.zones.len()).collect();
    if indexes.len() > ROWS_MAX {
        let distance = |zone: &ZoneSample| zone.free as f64 / zone.high.max(1) as f64;
        let by_distance = |&a: &usize, &b: &usize| {
            distance(&sample.zones[a]).total_cmp(&distance(&sample.zones[b])).then(a.cmp(&b))
        };
        indexes.sort_by(by_distance);
        indexes.truncate(ROWS_MAX);
        indexes.sort_unstable();
    }
    indexes
}

/// Returns a remark if not all zones are shown.
pub(super) fn shown_remark(sample: &Sample) -> Option<String> {
    let all = sample.zones.len();
    (all > ROWS_MAX)
        .then(|| format!("{ROWS_MAX} of {all} zones are shown: those that are closest to their watermarks."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_never_rounded_to_all_or_nothing() {
        let texts = [0.0, 0.000_001, 0.004, 0.5, 0.996, 0.999_999_9, 1.0, f64::NAN].map(percent);
        assert_eq!(texts, ["0 %", "0.01 %", "0.40 %", "50 %", "99.60 %", "99.99 %", "100 %", "–"]);
    }

    #[test]
    fn the_zones_closest_to_their_watermarks_are_shown() {
        let zone = |free| ZoneSample { free, high: 10, ..ZoneSample::default() };
        let mut sample = Sample { zones: (0..100).map(|at| zone(1000 - at)).collect(), ..Sample::default() };
        assert_eq!(shown_zones(&sample), (36..100).collect::<Vec<_>>());
        assert!(shown_remark(&sample).unwrap().starts_with("64 of 100 zones"));
        sample.zones.truncate(64);
        assert_eq!(shown_zones(&sample).len(), 64);
        assert_eq!(shown_remark(&sample), None);
    }

    #[test]
    fn titles_begin_with_a_capital_letter() {
        assert_eq!(capitalized("the pool at /tmp/a"), "The pool at /tmp/a");
        assert_eq!((capitalized("/tmp"), capitalized("")), ("/tmp".to_owned(), String::new()));
    }
}

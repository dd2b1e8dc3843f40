//! Lists of ids as Linux prints and reads them: `0-3,8`.

use std::ops::RangeInclusive;

/// Returns the first and the last id in each part of a list, or the part if it is neither an id nor two with a dash
/// between. Spaces around ids are allowed. The first id of a part may be the larger one.
pub fn parts(list: &str) -> impl Iterator<Item = Result<(u64, u64), &str>> {
    list.split(',').map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.trim().parse().ok().zip(last.trim().parse().ok()).ok_or(part)
    })
}

/// Returns the ids of a list in ascending order, or `None` if it is not one, has a descending range, or has an id of at least
/// `end`.
///
/// ```
/// use zonal_model::ids::parse;
///
/// assert_eq!(parse("8,0-3\n", 1024), Some(vec![0, 1, 2, 3, 8]));
/// assert_eq!(["3-1", "0-9999", "x", ""].map(|list| parse(list, 1024)), [const { None }; 4]);
/// ```
#[must_use]
pub fn parse(list: &str, end: u64) -> Option<Vec<u64>> {
    let range = |part: Result<(u64, u64), &str>| -> Option<RangeInclusive<u64>> {
        let (first, last) = part.ok()?;
        (first <= last && last < end).then_some(first..=last)
    };
    let mut ids: Vec<u64> =
        parts(list).map(range).collect::<Option<Vec<_>>>()?.into_iter().flatten().collect();
    ids.sort_unstable();
    ids.dedup();
    Some(ids)
}

/// Formats ids, which must be in ascending order.
///
/// ```
/// assert_eq!(zonal_model::ids::format([0_u16, 1, 2, 8]), "0-2,8");
/// ```
pub fn format(ids: impl IntoIterator<Item = impl Into<u64>>) -> String {
    let ids: Vec<u64> = ids.into_iter().map(Into::into).collect();
    let run = |run: &[u64]| match run {
        [first, .., last] => format!("{first}-{last}"),
        _ => run.iter().map(u64::to_string).collect(),
    };
    ids.chunk_by(|a, b| a + 1 == *b).map(run).collect::<Vec<_>>().join(",")
}

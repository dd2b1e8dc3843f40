//! Pages of the kernel's ring buffers, as `trace_pipe_raw` returns them.
//!
//! A page begins with a moment and a length; records follow, each with the time since the one before. The kernel describes
//! both in `events/header_page` and `events/header_event`; the sizes in the first are read, and the second has been the
//! same since 2.6.30. A page may be hostile in tests only, but nothing outside a page is read.
//!
//! Source of the layout: the kernel's `include/linux/ring_buffer.h` and `Documentation/trace/ring-buffer-design.rst`.
//! Related files: `record/reader.rs` reads the pages.

use tracepoint_decode::PerfEventFormat;
use zonal::units::Moment;

/// Where a page has its length and its records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageLayout {
    commit_at: usize,
    commit_bytes: usize,
    data_at: usize,
    bytes: usize,
}

/// The bits of a length that say that events before the page were overwritten, and that their number follows the records.
const MISSED: u64 = 1 << 31;
const MISSED_STORED: u64 = 1 << 30;

/// Kinds of records, which have at most 28 words of data or one of these numbers.
const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;

/// The bits of a moment that a [`TIME_STAMP`] has.
const STAMP_BITS: u32 = 59;

/// The largest page that `buffer_subbuf_size_kb` allows.
const PAGE_BYTES_MAX: usize = 4 << 20;

impl PageLayout {
    /// The layout of 64-bit kernels with pages of 4 KiB, for tests.
    #[cfg(test)]
    pub(crate) const USUAL: Self = Self { commit_at: 8, commit_bytes: 8, data_at: 16, bytes: 4096 };

    /// Reads the layout from `events/header_page`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        // The file has the fields of a tracepoint's description, without its first lines.
        let described = format!("name: header_page\nID: 1\nformat:\n{text}\n");
        let described = PerfEventFormat::parse(true, "ftrace", &described)?;
        let field = |name: &str| described.fields().iter().find(|field| field.name() == name);
        let (commit, data) = (field("commit")?, field("data")?);
        let layout = Self {
            commit_at: commit.offset().into(),
            commit_bytes: commit.size().into(),
            data_at: data.offset().into(),
            bytes: usize::from(data.offset()) + usize::from(data.size()),
        };
        let is_valid = matches!(layout.commit_bytes, 4 | 8)
            && layout.commit_at >= 8
            && layout.commit_at + layout.commit_bytes <= layout.data_at
            && layout.data_at < layout.bytes
            && layout.bytes <= PAGE_BYTES_MAX;
        is_valid.then_some(layout)
    }

    /// Returns the size of a page.
    pub(crate) const fn bytes(self) -> usize {
        self.bytes
    }
}

/// A page's records, in order.
#[derive(Debug)]
pub(crate) struct Page<'p> {
    records: &'p [u8],
    at: u64,
    missed: Option<Missed>,
    is_malformed: bool,
}

/// Events before a page were overwritten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Missed {
    /// Their number, if the kernel stored it.
    pub(crate) events: Option<u64>,
}

impl<'p> Page<'p> {
    /// Reads the beginning of a page. Returns `None` if its length is not possible.
    pub(crate) fn new(page: &'p [u8], layout: PageLayout) -> Option<Self> {
        let at = u64::from_ne_bytes(*page.first_chunk()?);
        let commit = page.get(layout.commit_at..layout.commit_at + layout.commit_bytes)?;
        let commit = match commit.len() {
            4 => u32::from_ne_bytes(commit.try_into().ok()?).into(),
            _ => u64::from_ne_bytes(commit.try_into().ok()?),
        };
        let data = page.get(layout.data_at..)?;
        let length = usize::try_from(commit & !(MISSED | MISSED_STORED)).ok()?;
        let records = data.get(..length)?;
        let stored = || data.get(length..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
        let events = if commit & MISSED_STORED != 0 { stored() } else { None };
        let missed = (commit & MISSED != 0).then_some(Missed { events });
        Some(Self { records, at, missed, is_malformed: false })
    }

    /// Returns the moment of the page's first record.
    pub(crate) const fn at(&self) -> Moment {
        Moment::from_ns(self.at)
    }

    /// Returns what was overwritten before the page.
    pub(crate) const fn missed(&self) -> Option<Missed> {
        self.missed
    }

    /// Whether a record did not fit into the page, which ended the iteration.
    pub(crate) const fn is_malformed(&self) -> bool {
        self.is_malformed
    }

    fn word(&self, at: usize) -> Option<u32> {
        self.records.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
    }

    /// Takes the next record, and returns its data if it has any.
    fn take(&mut self) -> Option<Option<(Moment, &'p [u8])>> {
        let head = self.word(0)?;
        let (kind, later) = if cfg!(target_endian = "big") {
            (head >> 27, u64::from(head & 0x07ff_ffff))
        } else {
            (head & 0x1f, u64::from(head >> 5))
        };
        let long = u64::from(self.word(4).unwrap_or(0));
        let (from, to) = match kind {
            // The rest of the page is unused.
            PADDING if later == 0 => (0, self.records.len()),
            PADDING => (0, (self.word(4)? as usize).checked_add(4)?),
            TIME_EXTEND | TIME_STAMP => (0, 8),
            0 => (8, (self.word(4)? as usize).checked_add(4)?),
            words => (4, 4 + 4 * words as usize),
        };
        // Records are aligned to words, and so is the length of all records.
        let record = self.records.get(..to.checked_next_multiple_of(4)?)?;
        match kind {
            TIME_EXTEND => self.at = self.at.wrapping_add((long << 27) + later),
            TIME_STAMP => {
                // The kernel leaves the highest bits out.
                let low = ((long << 27) + later) & ((1 << STAMP_BITS) - 1);
                let high = self.at >> STAMP_BITS << STAMP_BITS;
                self.at = if high | low < self.at { (high | low).wrapping_add(1 << STAMP_BITS) } else { high | low };
            }
            _ => self.at = self.at.wrapping_add(later),
        }
        self.records = &self.records[record.len()..];
        let has_data = !matches!(kind, PADDING | TIME_EXTEND | TIME_STAMP);
        Some(if has_data { Some((Moment::from_ns(self.at), record.get(from..to)?)) } else { None })
    }
}

impl<'p> Iterator for Page<'p> {
    type Item = (Moment, &'p [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        while !self.records.is_empty() {
            match self.take() {
                Some(Some(record)) => return Some(record),
                Some(None) => {}
                None => {
                    self.is_malformed = true;
                    self.records = &[];
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER_PAGE: &str = "\
\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;
\tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;
\tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;
\tfield: char data;\toffset:16;\tsize:4080;\tsigned:0;
";

    #[test]
    fn layouts_are_read() {
        assert_eq!(PageLayout::parse(HEADER_PAGE), Some(PageLayout::USUAL));
    }
}

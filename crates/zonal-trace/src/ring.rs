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

/// Kinds of records, which have at most 28 data words, or one of these numbers.
const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;

/// The bits of a moment that a [`TIME_STAMP`] has.
const STAMP_BITS: u32 = 59;

/// The largest page that `buffer_subbuf_size_kb` allows.
const PAGE_BYTES_MAX: usize = 4 << 20;

impl PageLayout {
    /// The layout of 64-bit kernels with 4 KiB pages, for tests.
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
        // The kernel adds the flags as a number with a sign, so the bits above them mean nothing.
        let commit = match commit.len() {
            4 => u32::from_ne_bytes(commit.try_into().ok()?).into(),
            _ => u64::from_ne_bytes(commit.try_into().ok()?) & u64::from(u32::MAX),
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
                self.at = if high | low < self.at {
                    (high | low).wrapping_add(1 << STAMP_BITS)
                } else {
                    high | low
                };
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
        for wrong in ["", "\tfield: char data;\toffset:16;\tsize:4080;\tsigned:0;", "garbage\n\n:::"] {
            assert_eq!(PageLayout::parse(wrong), None, "{wrong}");
        }
        assert_eq!(PageLayout::parse(&HEADER_PAGE.replace("size:8;", "size:3;")), None);
    }

    /// A page that a test fills.
    struct Built {
        at: u64,
        flags: u64,
        records: Vec<u8>,
        /// What follows the records.
        after: Vec<u8>,
    }

    impl Built {
        fn new(at: u64) -> Self {
            Self { at, flags: 0, records: Vec::new(), after: Vec::new() }
        }

        fn words(mut self, words: &[u32]) -> Self {
            words.iter().for_each(|word| self.records.extend(word.to_ne_bytes()));
            self
        }

        /// Adds a record's first word.
        fn head(self, kind: u32, later: u32) -> Self {
            let word = if cfg!(target_endian = "big") { kind << 27 | later } else { later << 5 | kind };
            self.words(&[word])
        }

        fn bytes(self) -> Vec<u8> {
            let commit = self.flags | self.records.len() as u64;
            let mut page = [&self.at.to_ne_bytes()[..], &commit.to_ne_bytes(), &self.records].concat();
            page.extend(self.after);
            page.resize(4096, 0xee);
            page
        }
    }

    /// Returns the moments and data of all records, and whether one was malformed.
    fn read(page: &[u8]) -> (Vec<(u64, Vec<u8>)>, bool) {
        let mut page = Page::new(page, PageLayout::USUAL).unwrap();
        let records = page.by_ref().map(|(at, data)| (at.ns(), data.to_vec())).collect();
        (records, page.is_malformed())
    }

    fn word(word: u32) -> Vec<u8> {
        word.to_ne_bytes().to_vec()
    }

    #[test]
    fn records_of_every_kind_are_read() {
        let page = Built::new(1000)
            .head(1, 0)
            .words(&[11]) // a word of data
            .head(2, 5)
            .words(&[21, 22])
            .head(TIME_EXTEND, 3)
            .words(&[2]) // 2 << 27, and 3
            .head(1, 1)
            .words(&[31])
            .head(PADDING, 7)
            .words(&[8, 0]) // a discarded record of two words
            .head(0, 2)
            .words(&[12, 41, 42]) // a long record: its length has the word itself
            .head(TIME_STAMP, 9)
            .words(&[3])
            .head(1, 1)
            .words(&[51])
            .head(PADDING, 0)
            .words(&[99, 99]); // unused up to the end
        let (records, is_malformed) = read(&page.bytes());
        let extended = 1005 + (2 << 27) + 3 + 1;
        let stamped = (3_u64 << 27) + 9 + 1;
        let expected = vec![
            (1000, word(11)),
            (1005, [word(21), word(22)].concat()),
            (extended, word(31)),
            (extended + 7 + 2, [word(41), word(42)].concat()),
            (stamped, word(51)),
        ];
        // The stamp lies before the record before it, so its highest bits are one more.
        let expected: Vec<_> = expected
            .into_iter()
            .map(
                |(at, data)| {
                    if at == stamped && stamped < extended { (at + (1 << 59), data) } else { (at, data) }
                },
            )
            .collect();
        assert_eq!((records, is_malformed), (expected, false));
    }

    #[test]
    fn missed_events_are_noticed_with_their_number() {
        let missed = |flags: u64| {
            let mut page = Built::new(5).head(1, 0).words(&[1]);
            page.flags = flags;
            page.after = 77_u64.to_ne_bytes().to_vec();
            Page::new(&page.bytes(), PageLayout::USUAL).unwrap().missed()
        };
        assert_eq!(missed(0), None);
        assert_eq!(missed(MISSED), Some(Missed { events: None }));
        assert_eq!(missed(MISSED | MISSED_STORED), Some(Missed { events: Some(77) }));
        let signed = u64::MAX << 32;
        assert_eq!(missed(signed | MISSED | MISSED_STORED), Some(Missed { events: Some(77) }));
        let full = Built { flags: MISSED | MISSED_STORED, ..Built::new(5).words(&[0; 1020]) };
        assert_eq!(
            Page::new(&full.bytes(), PageLayout::USUAL).unwrap().missed(),
            Some(Missed { events: None })
        );
    }

    #[test]
    fn hostile_pages_end_early_and_read_nothing_outside() {
        for (records, length) in [
            (Built::new(1).head(2, 0).words(&[1]), 0), // longer than the page's records
            (Built::new(1).head(0, 0), 0),             // without its length
            (Built::new(1).head(0, 0).words(&[2]), 0), // a length within its own word
            (Built::new(1).head(0, 0).words(&[u32::MAX]), 0),
            (Built::new(1).head(PADDING, 1).words(&[u32::MAX]), 0),
            (Built::new(1).head(1, 0).words(&[1]).head(TIME_EXTEND, 1), 1),
        ] {
            let (found, is_malformed) = read(&records.bytes());
            assert_eq!((found.len(), is_malformed), (length, true));
        }
        let too_long = [&[0; 8][..], &4081_u64.to_ne_bytes(), &[0; 4080]].concat();
        assert!(Page::new(&too_long, PageLayout::USUAL).is_none());
        for length in 0..16 {
            assert!(Page::new(&too_long[..length], PageLayout::USUAL).is_none());
        }
    }

    #[test]
    fn random_pages_are_read_without_failures() {
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 32) as u32
        };
        for _ in 0..2000 {
            let words: Vec<u32> = (0..64).map(|_| random() >> (random() % 32)).collect();
            let page = Built::new(u64::from(random())).words(&words);
            let (records, _) = read(&page.bytes());
            assert!(records.iter().map(|(_, data)| data.len()).sum::<usize>() <= 256);
        }
    }
}

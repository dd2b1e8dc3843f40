//! Splits a log into lines in bounded memory, and removes what other programs wrote before the kernel's text.
//!
//! Logs come from `dmesg`, `journalctl`, syslog daemons, container runtimes and quoted mail. [`Line::of`] removes their
//! prefixes one after the other, so that any combination is understood. Related files: `reader.rs` reads reports from the
//! lines.

use std::io::{self, BufRead, BufReader, ErrorKind, Read};

/// Bytes of a line that are kept. The longest line of a report, a zone's, has about 600 bytes and its prefix 200.
const LINE_BYTES_MAX: usize = 8 << 10;
/// Bytes in which a syslog daemon's prefix is expected, from the line's beginning.
const PREFIX_BYTES_MAX: usize = 200;

/// A log, line by line.
pub(super) struct Lines<R> {
    from: BufReader<R>,
    line: Vec<u8>,
    /// What was read so far.
    pub(super) seen: Seen,
}

/// What a log consisted of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// Bytes read.
    pub bytes: u64,
    /// Lines read.
    pub lines: u64,
    /// Lines of which only the beginning was kept.
    pub long_lines: u64,
    /// Zero bytes, which text does not have.
    pub zero_bytes: u64,
}

impl<R: Read> Lines<R> {
    pub(super) fn new(from: R) -> Self {
        Self { from: BufReader::with_capacity(1 << 16, from), line: Vec::new(), seen: Seen::default() }
    }

    /// Returns the next line without its end, or `None` at the end of the log. Bytes that are not UTF-8 are replaced.
    pub(super) fn next(&mut self) -> io::Result<Option<String>> {
        self.line.clear();
        let mut part = self.from.by_ref().take(LINE_BYTES_MAX as u64);
        retried(|| part.read_until(b'\n', &mut self.line))?;
        if self.line.is_empty() {
            return Ok(None);
        }
        self.seen.lines += 1;
        self.seen.bytes += self.line.len() as u64;
        self.seen.zero_bytes += self.line.iter().filter(|&&byte| byte == 0).count() as u64;
        if self.line.len() == LINE_BYTES_MAX && self.line.last() != Some(&b'\n') {
            let rest = retried(|| self.from.skip_until(b'\n'))?;
            self.seen.bytes += rest as u64;
            self.seen.long_lines += u64::from(rest > 0);
        }
        let line = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        Ok(Some(String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).into_owned()))
    }
}

/// Repeats a read that a signal interrupted.
fn retried(mut read: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match read() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// The kernel's text in a line, without what other programs wrote before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Line<'a> {
    pub(super) text: &'a str,
    /// The kernel's time stamp in microseconds.
    pub(super) at: Option<u64>,
}

impl<'a> Line<'a> {
    /// Removes quote marks, time stamps, levels, host names and names of containers.
    pub(super) fn of(line: &'a str) -> Self {
        let mut found = Self { text: line.trim(), at: None };
        // Every step makes the text shorter, so the loop ends.
        while let Some(shorter) = without_prefix(found.text) {
            found.at = found.at.or_else(|| microseconds(found.text));
            found.text = shorter.trim_start();
        }
        found
    }
}

/// Returns the time in `[   12.345678]`.
fn microseconds(text: &str) -> Option<u64> {
    let (seconds, part) = text.strip_prefix('[')?.split_once(']')?.0.trim().split_once('.')?;
    let part = if is_number(part) { part.get(..6)? } else { return None };
    seconds.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(part.parse().ok()?)
}

fn without_prefix(text: &str) -> Option<&str> {
    match text.as_bytes().first()? {
        b'>' | b'|' => Some(&text[1..]),
        b'<' => level(text),
        b'[' => stamp(text),
        b'{' => json_message(text),
        b'0'..=b'9' => device_record(text).or_else(|| container(text)).or_else(|| syslog(text)),
        _ => syslog(text),
    }
}

/// Removes a level: `<6>`, and `<6>1` as RFC 5424 has it.
fn level(text: &str) -> Option<&str> {
    let (number, rest) = text[1..].split_once('>')?;
    (is_number(number) && number.len() <= 4).then_some(rest)
}

/// Removes a time stamp or a caller: `[   12.345678]`, `[T123]`, `[C0]` and `[Mon Apr 20 15:08:07 2020]`, but not the `[  123]` of a task table.
fn stamp(text: &str) -> Option<&str> {
    let (inside, rest) = text[1..].split_once(']')?;
    let inside = inside.trim();
    let is_time = inside.len() <= 40
        && inside.contains(['.', ':'])
        && inside.bytes().any(|byte| byte.is_ascii_digit())
        && !inside.contains('=');
    let is_caller = inside.strip_prefix(['T', 'C']).is_some_and(is_number);
    (is_time || is_caller).then_some(rest)
}

/// Removes `6,1234,5678,-;`, as `/dev/kmsg` prints records.
fn device_record(text: &str) -> Option<&str> {
    let (head, rest) = text.split_once(';')?;
    let mut fields = head.split(',');
    let are_numbers = fields.by_ref().take(3).filter(|field| is_number(field)).count() == 3;
    (are_numbers && head.len() < 64).then_some(rest)
}

/// Removes `2026-01-02T03:04:05.678Z stderr F `, as container runtimes write lines.
fn container(text: &str) -> Option<&str> {
    let mut words = text.splitn(4, ' ');
    let (time, stream, kind) = (words.next()?, words.next()?, words.next()?);
    let is_stream = matches!(stream, "stdout" | "stderr") && matches!(kind, "F" | "P");
    (time.contains('T') && is_stream).then(|| words.next()).flatten()
}

/// Returns the text in `{"log":"...\n",...}`, as container runtimes write lines into JSON files.
fn json_message(text: &str) -> Option<&str> {
    let rest = text.strip_prefix("{\"log\":\"")?;
    Some(rest.split("\\n\"").next().unwrap_or(rest))
}

/// Removes `Jul 16 11:53:24 host kernel: `, also with a process id or a facility.
fn syslog(text: &str) -> Option<&str> {
    let mut end = text.len().min(PREFIX_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let (at, word) = ["kernel: ", "kernel[0]: ", "kernel - - - ", "kernel:[", "Guest: "]
        .iter()
        .filter_map(|word| text[..end].find(word).map(|at| (at, word)))
        .min()?;
    let before = &text[..at];
    // The word must end a prefix, not stand in the middle of a sentence.
    let is_prefix = before.is_empty() || before.ends_with([' ', '\t', ':', '/']);
    let kept = if word.ends_with('[') { word.len() - 1 } else { word.len() };
    is_prefix.then(|| &text[at + kept..])
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_of_other_programs_are_removed() {
        let text = "Node 0 DMA32 free:12kB";
        for prefix in [
            "",
            "> > ",
            "[ 1471.436027] ",
            "[1310061.327439][ T9694] ",
            "[    T1] ",
            "<4>[   12.5] ",
            "[Mon Apr 20 15:08:07 2020] ",
            "Jul 16 11:53:24 host kernel: [1310061.327439] ",
            "jun 20 03:23:46 host kernel: ",
            "2024-04-17T10:00:00.123456+02:00 host kernel: [   12.5] ",
            "<6>1 2024-04-17T10:00:00Z host kernel - - - ",
            "2024-04-17T10:00:00.1Z stderr F [   12.5] ",
            "6,1234,5678,-;",
            "[21161.092614] kernel: ",
            "2023-12-04T10:49:30.127Z In(05) vcpu-5 - Guest: <6>[   12.5] ",
            "kernel: ",
        ] {
            assert_eq!(Line::of(&format!("{prefix}{text}")).text, text, "{prefix}");
        }
        assert_eq!(Line::of("{\"log\":\"[ 1.5] Mem-Info:\\n\",\"stream\":\"x\"}").text, "Mem-Info:");
    }

    #[test]
    fn time_stamps_are_read_in_microseconds() {
        assert_eq!(Line::of("<4>[   12.345678] x").at, Some(12_345_678));
        assert_eq!(Line::of("[1310061.327439][ T9694] x").at, Some(1_310_061_327_439));
        for line in ["[Mon Apr 20 15:08:07 2020] x", "x", "[   12.5] x", "[99999999999999999999.000000] x"] {
            assert_eq!(Line::of(line).at, None, "{line}");
        }
    }

    #[test]
    fn rows_of_task_tables_keep_their_first_column() {
        for row in ["[    127]     0   127", "[  pid  ]   uid  tgid"] {
            assert_eq!(Line::of(&format!("[    4.5] {row}")).text, row);
        }
        assert_eq!(Line::of("a sentence about the kernel: it").text, "it");
        assert_eq!(Line::of("subkernel: x").text, "subkernel: x");
    }

    #[test]
    fn long_lines_are_cut_and_read_past() {
        let text = [vec![b'x'; 3 * LINE_BYTES_MAX], b"\nnext\r\nlast".to_vec()].concat();
        let mut lines = Lines::new(&text[..]);
        assert_eq!(lines.next().unwrap().unwrap().len(), LINE_BYTES_MAX);
        assert_eq!(lines.next().unwrap().unwrap(), "next");
        assert_eq!(lines.next().unwrap().unwrap(), "last");
        assert_eq!(lines.next().unwrap(), None);
        let bytes = text.len() as u64;
        assert_eq!(lines.seen, Seen { bytes, lines: 3, long_lines: 1, zero_bytes: 0 });
    }
}

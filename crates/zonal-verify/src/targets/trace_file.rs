//! Fuzz target: bytes are a trace, which is read to its end, counted and written again.
//!
//! The input must fail with an error of one line, or be a whole trace. A whole trace must read back as an equal one after
//! it was written again. Checksums would refuse nearly all changed inputs, so each input is read twice: as it is, and with
//! its checksums corrected.

use zonal_trace::{Event, FIRST_LINE, TraceError, TraceReader, TraceWriter, info};

use super::errors::check_error;

/// The name of the file in errors.
const ORIGIN: &str = "fuzzed.trace";
/// Bytes of a record before its contents, and after them.
const FRAME: usize = 5;
const CHECK: usize = 4;

/// Reads `data` as a trace.
pub fn target(data: &[u8]) {
    check(data);
    check(&with_checksums(data));
}

fn check(data: &[u8]) {
    let mut reader = match TraceReader::new(data, ORIGIN.to_owned()) {
        Ok(reader) => reader,
        Err(error) => return check_error(&error, ORIGIN),
    };
    let mut events: Vec<Event> = Vec::new();
    let mut error = None;
    for next in reader.by_ref() {
        match next {
            Ok(event) => events.push(event),
            Err(found) => error = Some(found),
        }
    }
    let counted = count(data);
    if let Some(error) = error {
        check_error(&error, ORIGIN);
        assert!(reader.trailer().is_none());
        let is_cut = matches!(error, TraceError::Cut { .. });
        assert!(counted.is_none_or(|counted| is_cut && counted == (events.len() as u64, false)));
        return;
    }
    let trailer = reader.trailer().expect("a trace without an error is whole").clone();
    assert_eq!(trailer.events(), events.len() as u64);
    assert!(counted.is_none_or(|counted| counted == (trailer.events(), true)));
    let written = TraceWriter::new(Vec::new(), reader.header()).and_then(|mut writer| {
        events.iter().try_for_each(|event| writer.push(event))?;
        writer.finish(trailer)
    });
    let (bytes, _) = written.expect("writing to memory does not fail");
    let again = TraceReader::new(&bytes[..], "again".to_owned()).expect("what is written can be read");
    let mut again: Vec<Event> = again.collect::<Result<_, _>>().expect("what is written can be read");
    // Late events may come at another place.
    let key = |event: &Event| (event.at, event.cpu);
    again.sort_by_key(key);
    events.sort_by_key(key);
    assert_eq!(again.len(), events.len());
    assert!(again.iter().map(key).eq(events.iter().map(key)));
}

/// Returns the number of events in a summary, and whether it is of a whole trace.
fn count(data: &[u8]) -> Option<(u64, bool)> {
    let mut reader = TraceReader::new(data, ORIGIN.to_owned()).ok()?;
    match info(&mut reader, ORIGIN, |_| true) {
        Ok(info) => Some((info.events, info.is_complete)),
        Err(error) => {
            assert!(!error.to_string().contains('\n'), "{error}");
            None
        }
    }
}

/// Returns the input with the first line of a trace and right checksums, as far as its records have a length.
fn with_checksums(data: &[u8]) -> Vec<u8> {
    let mut records = data.get(FIRST_LINE.len()..).unwrap_or_default();
    let mut fixed = FIRST_LINE.as_bytes().to_vec();
    let mut check = crc32fast::hash(FIRST_LINE.as_bytes());
    while let Some(frame) = records.get(..FRAME) {
        let length = u32::from_le_bytes([frame[1], frame[2], frame[3], frame[4]]) as usize;
        let Some(record) = records.get(..FRAME + length) else { break };
        check = crc32fast::hash(&[&check.to_le_bytes(), record].concat());
        fixed.extend_from_slice(record);
        fixed.extend_from_slice(&check.to_le_bytes());
        records = records.get(FRAME + length + CHECK..).unwrap_or_default();
    }
    fixed.extend_from_slice(records);
    fixed
}

//! Writes traces in other formats.
//!
//! Both formats refuse a trace that is cut off: their readers could not tell.
//!
//! Related files: `export/csv.rs` writes tables, and `export/perfetto.rs` traces for Perfetto.

mod csv;
mod perfetto;
mod protobuf;

use std::io::{self, Write};
use std::path::Path;

use zonal_machine::output::{Kind, Pending, Replace, WriteError};

use crate::error::TraceError;
use crate::event::Event;
use crate::file::TraceReader;
use crate::header::Header;

/// A format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// A table with a row for each event.
    Csv,
    /// A trace for Perfetto.
    Perfetto,
}

/// Something that writes the events of a trace.
trait Exporter {
    /// Writes an event.
    fn event(&mut self, event: &Event) -> io::Result<()>;
    /// Writes what the end of the trace adds.
    fn finish(&mut self) -> io::Result<()>;
}

/// Writes a trace to a file in another format. `progress` is called with the bytes read of `from`, and stops the export by
/// returning `false`; there is no file then. Returns the number of events, or `None` if it was stopped.
///
/// # Errors
/// The errors of reading, also [`TraceError::Cut`], and those of writing. After an error there is no file.
pub fn export(
    from: &Path,
    to: &Path,
    format: Format,
    replace: Replace,
    mut progress: impl FnMut(u64) -> bool,
) -> Result<Option<u64>, TraceError> {
    let mut reader = TraceReader::open(from)?;
    let kind = match format {
        Format::Csv => Kind::EventTable,
        Format::Perfetto => Kind::Perfetto,
    };
    let file = Pending::begin(to, kind, replace)?;
    let mut file = io::BufWriter::with_capacity(1 << 18, file);
    let header = reader.header().clone();
    let mut progress = |bytes| progress(bytes);
    if !write(&mut reader, &header, &from.display().to_string(), format, &mut file, to, &mut progress)? {
        return Ok(None);
    }
    let file = file.into_inner().map_err(|error| failed(to, error.into_error()))?;
    file.place()?;
    Ok(Some(reader.events()))
}

fn failed(path: &Path, source: io::Error) -> TraceError {
    TraceError::Write(WriteError { path: path.to_owned(), source })
}

/// Writes all events. Returns whether it was not stopped.
fn write<R: io::Read>(
    reader: &mut TraceReader<R>,
    header: &Header,
    origin: &str,
    format: Format,
    file: &mut impl Write,
    to: &Path,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<bool, TraceError> {
    let machine = header.machine(origin)?;
    let created: io::Result<Box<dyn Exporter + '_>> = match format {
        Format::Csv => csv::Table::new(file, header).map(|table| Box::new(table) as Box<dyn Exporter>),
        Format::Perfetto => perfetto::Tracks::new(file, header, machine.as_ref())
            .map(|tracks| Box::new(tracks) as Box<dyn Exporter>),
    };
    let mut exporter = created.map_err(|source| failed(to, source))?;
    let mut since_progress = 0;
    while let Some(event) = reader.next() {
        exporter.event(&event?).map_err(|source| failed(to, source))?;
        since_progress += 1;
        if since_progress == 1 << 14 {
            since_progress = 0;
            if !progress(reader.bytes()) {
                return Ok(false);
            }
        }
    }
    exporter.finish().map_err(|source| failed(to, source))?;
    Ok(true)
}

//! A table with a row for each event, as RFC 4180 has it.
//!
//! Every column has one type. A field is empty where an event has no such value.
//!
//! Related files: `export/mod.rs` reads the events.

use std::io::{self, Write};
use std::sync::Arc;

use csv::{Terminator, WriterBuilder};
use zonal::units::PageCount;

use super::Exporter;
use crate::event::{Action, Event};
use crate::header::Header;
use crate::threads::Threads;

/// The columns. The first ones are the mark of such files, [`zonal_machine::output::EVENT_TABLE_MARK`].
const COLUMNS: [&str; 23] = [
    "at_ns",
    "cpu",
    "thread",
    "name",
    "event",
    "pfn",
    "order",
    "gfp",
    "migratetype",
    "is_refill",
    "from_order",
    "from_migratetype",
    "changes_owner",
    "node",
    "zone",
    "upper_zone",
    "min",
    "low",
    "high",
    "promo",
    "reserve",
    "named_thread",
    "lost",
];

/// Writes a table.
pub(super) struct Table<W: Write> {
    to: csv::Writer<W>,
    threads: Threads,
}

/// The fields of an event after its name.
#[derive(Default)]
struct Fields {
    page: Option<u64>,
    order: Option<u8>,
    gfp: Option<u64>,
    migratetype: Option<i32>,
    is_refill: Option<bool>,
    from_order: Option<u8>,
    from_migratetype: Option<i32>,
    changes_owner: Option<bool>,
    node: Option<u16>,
    zone: Option<Arc<str>>,
    upper_zone: Option<Arc<str>>,
    marks: [Option<u64>; 4],
    reserve: Option<u64>,
    named_thread: Option<i32>,
    lost: Option<u64>,
}

impl<W: Write> Table<W> {
    pub(super) fn new(to: W, header: &Header) -> io::Result<Self> {
        let mut to = WriterBuilder::new().terminator(Terminator::CRLF).from_writer(to);
        to.write_record(COLUMNS)?;
        Ok(Self { to, threads: Threads::new(header) })
    }
}

impl<W: Write> Exporter for Table<W> {
    fn event(&mut self, event: &Event) -> io::Result<()> {
        self.threads.take(event);
        let fields = fields(&event.action);
        let to = &mut self.to;
        to.write_field(event.at.ns().to_string())?;
        to.write_field(event.cpu.get().to_string())?;
        to.write_field(event.thread.0.to_string())?;
        // The name of a thread that gets one is that name.
        let name = match &event.action {
            Action::Named { name, .. } => name,
            _ => self.threads.name(event.thread),
        };
        to.write_field(name.as_bytes())?;
        to.write_field(event.action.kind().name())?;
        let flag = |flag: Option<bool>| flag.map(u8::from);
        put(to, fields.page)?;
        put(to, fields.order)?;
        put(to, fields.gfp)?;
        put(to, fields.migratetype)?;
        put(to, flag(fields.is_refill))?;
        put(to, fields.from_order)?;
        put(to, fields.from_migratetype)?;
        put(to, flag(fields.changes_owner))?;
        put(to, fields.node)?;
        put(to, fields.zone)?;
        put(to, fields.upper_zone)?;
        fields.marks.into_iter().try_for_each(|mark| put(to, mark))?;
        put(to, fields.reserve)?;
        put(to, fields.named_thread)?;
        put(to, fields.lost)?;
        to.write_record(None::<&[u8]>)?;
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

fn put<W: Write>(to: &mut csv::Writer<W>, value: Option<impl ToString>) -> io::Result<()> {
    to.write_field(value.map(|value| value.to_string()).unwrap_or_default())?;
    Ok(())
}

fn fields(action: &Action) -> Fields {
    let mut fields = Fields {
        page: action.page().map(zonal::units::Pfn::get),
        order: action.order().map(zonal::units::Order::get),
        ..Fields::default()
    };
    match action {
        Action::Alloc { gfp, migratetype, .. } => {
            fields.gfp = Some(gfp.0);
            fields.migratetype = Some(migratetype.0);
        }
        Action::Drain { migratetype, .. } => fields.migratetype = Some(migratetype.0),
        Action::ZoneLocked { migratetype, is_refill, .. } => {
            fields.migratetype = Some(migratetype.0);
            fields.is_refill = Some(*is_refill);
        }
        Action::Fallback { from_order, migratetype, from_migratetype, changes_owner, .. } => {
            fields.migratetype = Some(migratetype.0);
            fields.from_order = Some(from_order.get());
            fields.from_migratetype = Some(from_migratetype.0);
            fields.changes_owner = Some(*changes_owner);
        }
        Action::Watermarks { node, zone, marks, promo } => {
            let [min, low, high] = marks.map(|mark| Some(mark.get()));
            fields.node = Some(node.get());
            fields.zone = Some(Arc::clone(zone));
            fields.marks = [min, low, high, promo.map(PageCount::get)];
        }
        Action::LowmemReserve { node, zone, upper, pages } => {
            fields.node = Some(node.get());
            fields.zone = Some(Arc::clone(zone));
            fields.upper_zone = Some(Arc::clone(upper));
            fields.reserve = Some(pages.get());
        }
        Action::Named { thread, .. } => fields.named_thread = Some(thread.0),
        Action::Lost { events } => fields.lost = *events,
        Action::Free { .. } | Action::FreeBatched { .. } => {}
    }
    fields
}

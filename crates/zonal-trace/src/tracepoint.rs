//! The tracepoints of a trace, and how a kernel lays out their records.
//!
//! Nothing about a layout is assumed: names, places and sizes of fields come from the kernel's description. Related
//! files: `flags.rs` reads the names of request flags from such a description, `record/` and `import.rs` find the records.

use std::sync::Arc;

use tracepoint_decode::{PerfEventFormat, PerfFieldArray, PerfFieldFormat};
use zonal::units::{NodeId, Order, PageCount, Pfn};

use crate::event::{Action, Gfp, Kind, Migratetype, Tid};
use crate::header::FormatText;

/// A tracepoint by its group and name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tracepoint {
    pub(crate) group: &'static str,
    pub(crate) name: &'static str,
    kind: Kind,
    fields: &'static [Wanted],
}

/// A field by its name, and what its absence means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wanted {
    Required(&'static str),
    /// Some kernels do not have the field.
    Optional(&'static str),
}

use Wanted::{Optional, Required};

const fn kmem(kind: Kind, fields: &'static [Wanted]) -> Tracepoint {
    Tracepoint { group: "kmem", name: kind.name(), kind, fields }
}

/// All tracepoints of a trace. The order of fields is that in which [`Layout::action`] uses them.
pub(crate) const TRACEPOINTS: [Tracepoint; 10] = [
    kmem(Kind::Alloc, &[Required("pfn"), Required("order"), Required("gfp_flags"), Required("migratetype")]),
    kmem(Kind::Free, &[Required("pfn"), Required("order")]),
    kmem(Kind::FreeBatched, &[Required("pfn")]),
    kmem(Kind::Drain, &[Required("pfn"), Required("order"), Required("migratetype")]),
    kmem(
        Kind::ZoneLocked,
        &[Required("pfn"), Required("order"), Required("migratetype"), Optional("percpu_refill")],
    ),
    kmem(
        Kind::Fallback,
        &[
            Required("pfn"),
            Required("alloc_order"),
            Required("fallback_order"),
            Required("alloc_migratetype"),
            Required("fallback_migratetype"),
            Optional("change_ownership"),
        ],
    ),
    kmem(
        Kind::Watermarks,
        &[
            Required("node_id"),
            Required("name"),
            Required("watermark_min"),
            Required("watermark_low"),
            Required("watermark_high"),
            Optional("watermark_promo"),
        ],
    ),
    kmem(
        Kind::LowmemReserve,
        &[Required("node_id"), Required("name"), Required("upper_name"), Required("lowmem_reserve")],
    ),
    Tracepoint {
        group: "task",
        name: "task_newtask",
        kind: Kind::Named,
        fields: &[Required("comm"), Required("pid")],
    },
    // A rename is always that of the running thread; kernels from 6.19 call the new name `comm`.
    Tracepoint {
        group: "task",
        name: "task_rename",
        kind: Kind::Named,
        fields: &[Optional("newcomm"), Optional("pid"), Optional("comm")],
    },
];

impl Tracepoint {
    /// Returns the tracepoint with this group and name.
    pub(crate) fn find(group: &str, name: &str) -> Option<&'static Self> {
        TRACEPOINTS.iter().find(|one| one.group == group && one.name == name)
    }

    /// Whether a trace without this tracepoint is of no use.
    pub(crate) fn is_required(&self) -> bool {
        matches!(self.kind, Kind::Alloc | Kind::Free)
    }
}

/// The order of bytes in records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Endian {
    Little,
    Big,
}

impl Endian {
    /// The order of this processor.
    pub(crate) const NATIVE: Self = if cfg!(target_endian = "big") { Self::Big } else { Self::Little };
}

/// A field in the records of a tracepoint.
#[derive(Clone, Copy, Debug)]
struct Field {
    offset: usize,
    size: usize,
    is_signed: bool,
    array: PerfFieldArray,
}

impl Field {
    /// Returns the field of a description. Fields that are numbers have 1, 2, 4 or 8 bytes.
    fn new(described: &PerfFieldFormat) -> Self {
        Self {
            offset: described.offset().into(),
            size: described.size().into(),
            is_signed: described.signed().unwrap_or(false),
            array: described.array(),
        }
    }

    fn bytes<'r>(&self, record: &'r [u8]) -> Option<&'r [u8]> {
        record.get(self.offset..self.offset.checked_add(self.size)?)
    }

    /// Returns the field's number, extended by its sign.
    fn number(&self, record: &[u8], endian: Endian) -> Option<u64> {
        let bytes = self.bytes(record).filter(|bytes| matches!(bytes.len(), 1 | 2 | 4 | 8))?;
        let add = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
        let number = match endian {
            Endian::Little => bytes.iter().rev().fold(0, add),
            Endian::Big => bytes.iter().fold(0, add),
        };
        let unused = 64 - 8 * bytes.len() as u32;
        Some(if self.is_signed { ((number << unused) as i64 >> unused) as u64 } else { number })
    }

    /// Returns the field's text up to its first zero byte. Bytes that are not UTF-8 are replaced.
    fn text(&self, record: &[u8], endian: Endian) -> Option<Arc<str>> {
        let bytes = match self.array {
            PerfFieldArray::Fixed => self.bytes(record)?,
            PerfFieldArray::DataLoc4 | PerfFieldArray::RelLoc4 => {
                let place = self.number(record, endian)? as u32;
                let (offset, length) = ((place & 0xffff) as usize, (place >> 16) as usize);
                let is_relative = matches!(self.array, PerfFieldArray::RelLoc4);
                let base = if is_relative { self.offset + self.size } else { 0 };
                record.get(base + offset..base + offset + length)?
            }
            _ => return None,
        };
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        Some(String::from_utf8_lossy(&bytes[..end]).into())
    }
}

/// How a kernel lays out the records of a tracepoint.
#[derive(Debug)]
pub(crate) struct Layout {
    tracepoint: &'static Tracepoint,
    endian: Endian,
    thread: Field,
    fields: Vec<Option<Field>>,
}

impl Layout {
    /// Finds the fields in a kernel's description.
    ///
    /// # Errors
    /// Names a required field that the kernel does not have.
    pub(crate) fn new(
        tracepoint: &'static Tracepoint,
        described: &PerfEventFormat,
        endian: Endian,
    ) -> Result<Self, String> {
        let find = |name: &str| described.fields().iter().find(|field| field.name() == name).map(Field::new);
        let missing = |name: &str| format!("the tracepoint has no field `{name}`, which is needed");
        let field = |wanted: &Wanted| match *wanted {
            Required(name) => find(name).map(Some).ok_or_else(|| missing(name)),
            Optional(name) => Ok(find(name)),
        };
        let fields = tracepoint.fields.iter().map(field).collect::<Result<_, _>>()?;
        let thread = find("common_pid").ok_or_else(|| missing("common_pid"))?;
        Ok(Self { tracepoint, endian, thread, fields })
    }

    /// Returns the thread and the action of a record. Returns `None` for a record that is too short or has a value that
    /// cannot be.
    pub(crate) fn read(&self, record: &[u8]) -> Option<(Tid, Action)> {
        let thread = Tid(self.thread.number(record, self.endian)? as i32);
        Some((thread, self.action(record, thread)?))
    }

    fn action(&self, record: &[u8], thread: Tid) -> Option<Action> {
        let number = |at: usize| self.fields[at]?.number(record, self.endian);
        let text = |at: usize| self.fields[at]?.text(record, self.endian);
        let order = |at: usize| Order::new(u8::try_from(number(at)?).ok()?);
        let migratetype = |at: usize| number(at).map(|number| Migratetype(number as i32));
        let node = || NodeId::new(number(0)?.try_into().ok()?);
        let pages = |at: usize| number(at).map(PageCount::new);
        // A request that failed has a frame of which all bits are set.
        let page = || {
            let bits = 8 * self.fields[0]?.size as u32;
            let page = number(0)?;
            Some((page != u64::MAX >> (64 - bits.clamp(1, 64))).then(|| Pfn::new(page)))
        };
        Some(match self.tracepoint.kind {
            Kind::Alloc => Action::Alloc {
                page: page()?,
                order: order(1)?,
                gfp: Gfp(number(2)?),
                migratetype: migratetype(3)?,
            },
            Kind::Free => Action::Free { page: page()??, order: order(1)? },
            Kind::FreeBatched => Action::FreeBatched { page: page()?? },
            Kind::Drain => Action::Drain { page: page()??, order: order(1)?, migratetype: migratetype(2)? },
            Kind::ZoneLocked => Action::ZoneLocked {
                page: page()?,
                order: order(1)?,
                migratetype: migratetype(2)?,
                // Kernels before the field had only single frames in pagesets.
                is_refill: number(3).map_or(order(1)? == Order::PAGE, |refill| refill != 0),
            },
            Kind::Fallback => Action::Fallback {
                page: page()??,
                order: order(1)?,
                from_order: order(2)?,
                migratetype: migratetype(3)?,
                from_migratetype: migratetype(4)?,
                changes_owner: number(5).is_some_and(|changes| changes != 0),
            },
            Kind::Watermarks => Action::Watermarks {
                node: node()?,
                zone: text(1)?,
                marks: [pages(2)?, pages(3)?, pages(4)?],
                promo: pages(5),
            },
            Kind::LowmemReserve => {
                Action::LowmemReserve { node: node()?, zone: text(1)?, upper: text(2)?, pages: pages(3)? }
            }
            Kind::Named => Action::Named {
                thread: number(1).map_or(thread, |id| Tid(id as i32)),
                name: text(0).or_else(|| text(2))?,
            },
            Kind::Lost => return None,
        })
    }

    /// Returns the description as the header has it.
    pub(crate) fn described(&self, described: &PerfEventFormat, text: &str) -> FormatText {
        let is_used = |name: &str| {
            self.tracepoint.fields.iter().any(|wanted| match wanted {
                Required(used) | Optional(used) => *used == name,
            })
        };
        let own = described.fields().iter().skip(described.common_field_count());
        let left_out = own.map(PerfFieldFormat::name).filter(|name| !is_used(name)).map(str::to_owned);
        FormatText {
            name: self.tracepoint.name.to_owned(),
            text: text.to_owned(),
            left_out: left_out.collect(),
        }
    }
}

/// The layouts of all recorded tracepoints, by the number that records begin with.
#[derive(Default, Debug)]
pub(crate) struct Layouts(Vec<Option<Layout>>);

/// The largest number of a tracepoint. Records have 16 bits for it.
const ID_MAX: u32 = u16::MAX as u32;

impl Layouts {
    /// Adds a layout under a tracepoint's number.
    ///
    /// # Errors
    /// Names a number that records cannot have.
    pub(crate) fn add(&mut self, id: u32, layout: Layout) -> Result<(), String> {
        if id > ID_MAX {
            return Err(format!("the tracepoint has the number {id}; records have at most {ID_MAX}"));
        }
        let id = id as usize;
        if self.0.len() <= id {
            self.0.resize_with(id + 1, || None);
        }
        self.0[id] = Some(layout);
        Ok(())
    }

    /// Returns a record's thread and action. The record is in this machine's byte order.
    pub(crate) fn read(&self, record: &[u8]) -> Option<(Tid, Action)> {
        let id = u16::from_ne_bytes(*record.first_chunk()?);
        self.0.get(usize::from(id))?.as_ref()?.read(record)
    }
}

//! Follows the values in the registers through a sequence, and compares its memory accesses with the tables of the
//! core.

use std::collections::{BTreeMap, BTreeSet};

use zonal::platform::cpu_local::{Access, Accesses, Field, LOCK, POP, PUSH};

use crate::decode::{Action, Instruction, Memory, Register, Way};
use crate::found::Found;

/// Operation of a sequence.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Kind {
    Pop,
    /// Pop from a given pageset slot.
    PopFrom,
    Push,
    Lock,
}

/// Origin of a value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Source {
    /// The CPU in the thread's area.
    Cpu,
    /// The address of the CPU's pageset slot.
    PagesetSlot,
    /// The addresses of that pageset slot's head and slots.
    Head,
    Slots,
    LockWord,
    Word,
    Limit,
}

type Sources = BTreeSet<Source>;

/// One step of a sequence. Loads of the slots' address are omitted, because they may occur at any time.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Event {
    /// A load of the CPU from the thread's area.
    Cpu,
    /// A load of an address.
    Address(Source),
    /// An access listed in the table, with the sources of the stored value or, for a slot, of the slot's index.
    Accesses(Access, Sources),
    /// A conditional branch to the abort, with the sources of its condition.
    GivesUp(Sources),
}

/// Offset of the CPU number in the area. Source: Linux `rseq(2)`.
const CPU_AT: i64 = 4;

/// Checks a sequence against the table of its kind, and returns the kind.
///
/// # Errors
/// A description of the first fault in the sequence.
pub(crate) fn check(found: &Found) -> Result<Kind, String> {
    let instructions = found.processor.decode(found.start, &found.code);
    let mut trace = Trace { abort: found.abort, ..Trace::default() };
    for instruction in &instructions {
        trace.follow(instruction).map_err(|fault| format!("{fault}: {}", instruction.text))?;
    }
    let kind = trace.kind();
    let wanted = wanted(kind);
    let fits = trace.events.len() == wanted.len()
        && trace.events.iter().zip(&wanted).all(|(event, wanted)| event.is_as_good_as(wanted));
    if !fits {
        return Err(format!("a {kind:?} that does {:?}, not {wanted:?}", trace.events));
    }
    match instructions.last().map(|last| last.action) {
        Some(Action::Accesses(Memory { way: Way::Store, .. })) => {}
        _ => return Err("its last instruction stores nothing".into()),
    }
    if u32::from_le_bytes(found.signature) != found.processor.signature() {
        return Err(format!("the abort is not signed, but after {:x?}", found.signature));
    }
    Ok(kind)
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::Pop, Self::PopFrom, Self::Push, Self::Lock];

    const fn table(self) -> Accesses {
        match self {
            Self::Pop | Self::PopFrom => POP,
            Self::Push => PUSH,
            Self::Lock => LOCK,
        }
    }
}

/// Returns the steps that a sequence of a kind must have.
fn wanted(kind: Kind) -> Vec<Event> {
    let mut events = vec![Event::Cpu, Event::GivesUp([Source::Cpu].into())];
    if kind == Kind::Pop {
        events.extend([Source::PagesetSlot, Source::Head].map(Event::Address));
    }
    let mut loaded = Sources::new();
    for &access in kind.table() {
        let decides = matches!(access, Access::Store(_) | Access::Load(Field::Slot));
        if decides && !loaded.is_empty() {
            events.push(Event::GivesUp(std::mem::take(&mut loaded)));
        }
        let sources = match access {
            Access::Store(Field::Word | Field::Slot) | Access::Load(Field::Slot) => [Source::Word].into(),
            _ => Sources::new(),
        };
        if let Access::Load(field) | Access::LoadAcquire(field) = access {
            loaded.extend(source_of(field));
        }
        events.push(Event::Accesses(access, sources));
    }
    events
}

const fn source_of(field: Field) -> Option<Source> {
    match field {
        Field::LockWord => Some(Source::LockWord),
        Field::Word => Some(Source::Word),
        Field::PopLimit | Field::PushLimit => Some(Source::Limit),
        Field::Slot => None,
    }
}

impl Event {
    /// Whether this step satisfies `wanted`. An acquire load satisfies a plain load.
    fn is_as_good_as(&self, wanted: &Self) -> bool {
        match (self, wanted) {
            (Self::Accesses(Access::LoadAcquire(field), sources), Self::Accesses(Access::Load(load), of)) => {
                field == load && sources == of
            }
            _ => self == wanted,
        }
    }
}

/// State while a sequence is followed.
#[derive(Default)]
struct Trace {
    abort: u64,
    events: Vec<Event>,
    /// Sources of the values in registers, and of the values that the flags compare.
    registers: BTreeMap<Register, Sources>,
    flags: Sources,
    /// The access that loaded the CPU, and the register that contains the head's address where that is an input.
    own: Option<Memory>,
    head: Option<Register>,
    written: BTreeSet<Register>,
}

impl Trace {
    fn kind(&self) -> Kind {
        let does = |wanted: fn(&Event) -> bool| self.events.iter().any(wanted);
        let loads_a_slot = |event: &Event| {
            use Access::{Load, LoadAcquire};
            matches!(event, Event::Accesses(Load(Field::Slot) | LoadAcquire(Field::Slot), _))
        };
        if does(|event| matches!(event, Event::Address(Source::PagesetSlot))) {
            Kind::Pop
        } else if does(loads_a_slot) {
            Kind::PopFrom
        } else if does(|event| matches!(event, Event::Accesses(Access::Store(Field::Slot), _))) {
            Kind::Push
        } else {
            Kind::Lock
        }
    }

    fn sources(&self, register: Register) -> Sources {
        self.registers.get(&register).cloned().unwrap_or_default()
    }

    fn follow(&mut self, instruction: &Instruction) -> Result<(), String> {
        let mut value: Sources = instruction.reads.iter().flat_map(|&from| self.sources(from)).collect();
        match instruction.action {
            Action::Nothing => {}
            Action::Branches(to) if to == self.abort => self.events.push(Event::GivesUp(self.flags.clone())),
            Action::Branches(to) => return Err(format!("a branch to {to:#x}, which is not the abort")),
            Action::Accesses(memory) => value.extend(self.access(memory, &value)?),
        }
        if instruction.sets_flags {
            self.flags = value.clone();
        }
        for &register in &instruction.writes {
            self.registers.insert(register, value.clone());
            self.written.insert(register);
        }
        Ok(())
    }

    /// Records an access, and returns the source of a loaded value. `value` has the sources of a stored value.
    fn access(&mut self, memory: Memory, value: &Sources) -> Result<Option<Source>, String> {
        let Some(own) = self.own else {
            let is_load = matches!(memory.way, Way::Load | Way::LoadAcquire);
            if !is_load || (memory.bytes, memory.index, memory.offset) != (4, None, CPU_AT) {
                return Err("the first access does not look at the CPU".into());
            }
            self.own = Some(memory);
            self.events.push(Event::Cpu);
            return Ok(Some(Source::Cpu));
        };
        if memory.in_thread || (memory.base, memory.in_thread) == (own.base, own.in_thread) {
            return Err("another access to the thread's area".into());
        }
        let base = self.sources(memory.base);
        let source = match (memory.index, memory.bytes, memory.offset) {
            (Some((_, 8)), 8, 0) => Source::PagesetSlot,
            (Some((index, 4)), 4, 0) => {
                let by = self.sources(index);
                if !(base.is_empty() || base == [Source::Slots].into()) {
                    return Err(format!("slots at {base:?}"));
                }
                self.note(memory.way, Field::Slot, by);
                return Ok(None);
            }
            (None, 8, 0) if base == [Source::PagesetSlot].into() => Source::Head,
            (None, 8, 8) if base == [Source::PagesetSlot].into() => Source::Slots,
            (None, 8, offset) => return self.access_head(memory, &base, offset, value),
            _ => return Err("an access to an unknown address".into()),
        };
        if !matches!(memory.way, Way::Load | Way::LoadAcquire) {
            return Err("a store where an address is loaded".into());
        }
        if source != Source::Slots {
            self.events.push(Event::Address(source));
        }
        Ok(Some(source))
    }

    fn access_head(
        &mut self,
        memory: Memory,
        base: &Sources,
        offset: i64,
        value: &Sources,
    ) -> Result<Option<Source>, String> {
        let is_given = base.is_empty() && !self.written.contains(&memory.base);
        if !(*base == [Source::Head].into()
            || is_given && *self.head.get_or_insert(memory.base) == memory.base)
        {
            return Err(format!("an access to an address that is not a head: {base:?}"));
        }
        let field = match offset {
            0 => Field::LockWord,
            8 => Field::Word,
            16 => Field::PopLimit,
            24 => Field::PushLimit,
            _ => return Err("an access beyond the head".into()),
        };
        let is_load = matches!(memory.way, Way::Load | Way::LoadAcquire);
        self.note(memory.way, field, if is_load { Sources::new() } else { value.clone() });
        Ok(source_of(field).filter(|_| is_load))
    }

    fn note(&mut self, way: Way, field: Field, sources: Sources) {
        let access = match way {
            Way::Load => Access::Load(field),
            Way::LoadAcquire => Access::LoadAcquire(field),
            Way::Store => Access::Store(field),
        };
        self.events.push(Event::Accesses(access, sources));
    }
}

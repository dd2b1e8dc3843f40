//! Compares what a sequence does with the contract of each kind.
//!
//! The steps must be those of the contract, in its order, and no others. A sequence may choose its registers: a base
//! address or a step may be the initial value of any register, but everything else must be the value that the contract
//! defines.
//!
//! Related files: `contract.rs` has the contract, `results.rs` compares the registers after the commit, and
//! `sequence.rs` executes the instructions.

use zonal::platform::cpu_local::{Access, Field, LockWord};

use super::area::area_of;
use super::contract::{
    AREA_CPU, CPU_BYTES, FREE_SLOTS, HEAD, Kind, SLOT_BYTES, SLOTS, WORD_BYTES, in_words, is_after_test,
    offset_in_head,
};
use super::expression::{Atom, Expression};
use super::machine::{Action, Condition, Event, Relation};
use super::results::{Wrong, compare_results};
use super::sequence::Lifted;
use super::step::Fault;

impl Lifted {
    /// Returns the kind whose contract the sequence satisfies.
    ///
    /// # Errors
    /// The first difference from the kinds that the sequence satisfies longest.
    pub fn kind(&self) -> Result<Kind, Fault> {
        let area = area_of(self)?;
        let mut differences = Vec::new();
        for kind in Kind::ALL {
            match Matcher::new(self, kind, &area).run() {
                Ok(()) => return Ok(kind),
                Err(difference) => differences.push(difference),
            }
        }
        let longest = differences.iter().map(|difference| difference.after).max();
        differences.retain(|difference| Some(difference.after) == longest);
        let Difference { at, text, found, .. } = differences.last().expect("every kind differs");
        let of_this = differences.iter().filter(|difference| difference.at == *at);
        let expected: Vec<&str> = of_this.map(|difference| difference.expected.as_str()).collect();
        Err(Fault::new(*at, text, format!("differs: {}; found {found}", expected.join(", or "))))
    }
}

/// A step that differs from the contract.
struct Difference {
    /// Number of requirements that were satisfied before it.
    after: usize,
    /// Address of the instruction.
    at: u64,
    text: String,
    expected: String,
    found: String,
}

/// The comparison of a sequence with one kind's contract.
struct Matcher<'a> {
    lifted: &'a Lifted,
    kind: Kind,
    area: &'a Expression,
    /// Number of events that were compared.
    compared: usize,
    cpu: Expression,
    /// Address of the CPU's pageset slot, and the register that contained the address of the first slot.
    pageset_slot: Option<(Expression, &'static str)>,
    head: Option<Expression>,
    slots: Option<Expression>,
    lock_word: Expression,
    word: Expression,
    /// Whether the last store stores the word plus or minus a step, as the kind requires.
    has_step: bool,
    /// The sum or difference of the new word and the limit.
    limited: Option<Expression>,
    frame: Expression,
}

impl<'a> Matcher<'a> {
    fn new(lifted: &'a Lifted, kind: Kind, area: &'a Expression) -> Self {
        Self {
            lifted,
            kind,
            area,
            compared: 0,
            cpu: Expression::default(),
            pageset_slot: None,
            head: None,
            slots: None,
            lock_word: Expression::default(),
            word: Expression::default(),
            has_step: false,
            limited: None,
            frame: Expression::default(),
        }
    }

    fn run(mut self) -> Result<(), Difference> {
        self.compare_cpu()?;
        if self.kind == Kind::Pop {
            self.compare_lookup()?;
        }
        let mut is_tested = false;
        for &access in self.kind.accesses() {
            if is_after_test(access) && !is_tested {
                self.compare_test()?;
                is_tested = true;
            }
            self.compare_access(access)?;
        }
        self.compare_end()?;
        let (at, text) = &self.lifted.abort;
        let pageset_slot = self.pageset_slot.as_ref().map(|(slot, register)| (slot, *register));
        let value = if self.kind == Kind::Lock { &self.lock_word } else { &self.frame };
        let results = compare_results(self.lifted, self.kind, value, pageset_slot);
        results.map_err(|Wrong { expected, found }| self.difference(*at, text, &expected, found))
    }

    /// Compares how the CPU is loaded from the area and tested: it must be the expected CPU or, where it is an index,
    /// below the number of CPUs.
    fn compare_cpu(&mut self) -> Result<(), Difference> {
        self.cpu = self.load("load the CPU", CPU_BYTES, &self.area.offset(AREA_CPU), false)?;
        let (relation, what) = match self.kind {
            Kind::Pop => (Relation::AtLeast, "the number of CPUs in a register"),
            _ => (Relation::NotEqual, "the CPU in a register"),
        };
        let expected = format!("abort if {} {relation} {what}", self.cpu);
        let event = self.event(&expected)?;
        let Action::AbortIf(condition) = &event.action else { return Err(self.differs(&expected)) };
        let is_given = |side: &Expression| side.as_register().or_else(|| low_register(side)).is_some();
        let is_expected = |Condition { left, relation: found, right }: &Condition| {
            let sides = [(left, right), (right, left)];
            let sides = if relation == Relation::AtLeast { &sides[..1] } else { &sides[..] };
            *found == relation && sides.iter().any(|(cpu, given)| **cpu == self.cpu && is_given(given))
        };
        if is_expected(condition) { self.next() } else { Err(self.differs(&expected)) }
    }

    /// Compares the lookup: the pageset slot is the first slot plus the CPU's offset, and contains the head's address.
    fn compare_lookup(&mut self) -> Result<(), Difference> {
        let index = self.cpu.times(u64::from(WORD_BYTES));
        let expected =
            format!("load {WORD_BYTES} bytes at register + {index}, the CPU's offset in the slots");
        let offset = self.load_at(&expected, |address| address.minus(&index).as_register().is_some())?;
        let offset_of_head = offset.offset(HEAD);
        let expected =
            format!("load {WORD_BYTES} bytes at register + {offset_of_head}, the address of the head");
        let slot = |address: &Expression| address.offset(HEAD.wrapping_neg());
        let base = |address: &Expression| slot(address).minus(&offset).as_register();
        let address = match &self.event(&expected)?.action {
            Action::Load { address, .. } => address.clone(),
            _ => return Err(self.differs(&expected)),
        };
        self.head = Some(self.load_at(&expected, |address| base(address).is_some())?);
        self.pageset_slot = base(&address).map(|register| (slot(&address), register));
        Ok(())
    }

    /// Takes a load of the stack's address from the pageset slot, which may occur any time after the lookup.
    fn take_slots_address(&mut self) {
        let (Some((slot, _)), None) = (&self.pageset_slot, &self.slots) else { return };
        let Some(event) = self.lifted.events.get(self.compared) else { return };
        if let Action::Load { bytes: WORD_BYTES, address, value, .. } = &event.action
            && *address == slot.offset(SLOTS)
        {
            self.slots = Some(value.clone());
            self.compared += 1;
        }
    }

    /// Compares the test that makes the sequence fail if a limit or the lock word forbids it.
    fn compare_test(&mut self) -> Result<(), Difference> {
        let wanted = match &self.limited {
            Some(limited) => {
                let refused = limited.and(&self.lock_word);
                Condition::new(refused, Relation::NotEqual, Expression::constant(0))
            }
            None => Condition::new(
                self.lock_word.clone(),
                Relation::AtLeast,
                Expression::constant(LockWord::LOCKED_REMOTELY.bits()),
            ),
        };
        let expected = Action::AbortIf(wanted);
        self.take_slots_address();
        if self.event(&expected.to_string())?.action != expected {
            return Err(self.differs(&expected.to_string()));
        }
        self.next()
    }

    fn compare_access(&mut self, access: Access) -> Result<(), Difference> {
        self.take_slots_address();
        let (Access::LoadAcquire(field) | Access::Load(field) | Access::Store(field)) = access;
        let expected = in_words(access);
        let (bytes, address) = match offset_in_head(field) {
            Some(offset) => (WORD_BYTES, self.head(&expected, offset)?.offset(offset)),
            None => (SLOT_BYTES, self.slot(&expected)?),
        };
        if let Access::Store(_) = access {
            return self.compare_store(field, &expected, bytes, &address);
        }
        let is_acquire = matches!(access, Access::LoadAcquire(_));
        let value = self.load(&expected, bytes, &address, is_acquire)?;
        match field {
            Field::LockWord => self.lock_word = value,
            Field::Word => {
                self.word = value;
                self.new_word()?;
                self.has_step = true;
            }
            Field::PopLimit => self.limited = Some(self.new_word()?.plus(&value)),
            Field::PushLimit => self.limited = Some(value.minus(&self.new_word()?)),
            Field::Slot => self.frame = value,
        }
        Ok(())
    }

    /// Compares a store: of the new word, of the value that locks, or of the frame in a register.
    fn compare_store(
        &mut self,
        field: Field,
        expected: &str,
        bytes: u32,
        address: &Expression,
    ) -> Result<(), Difference> {
        let wanted = match field {
            Field::Word => Some(self.new_word()?),
            Field::LockWord => Some(Expression::constant(LockWord::LOCKED.bits())),
            Field::PopLimit | Field::PushLimit | Field::Slot => None,
        };
        let value_in_words = wanted.as_ref().map_or("a register".to_owned(), ToString::to_string);
        let expected = format!("{expected}, {value_in_words} to {bytes} bytes at {address}");
        let is_wanted = |stored: &Expression| match &wanted {
            Some(wanted) => stored == wanted,
            None => low_register(stored).is_some(),
        };
        match &self.event(&expected)?.action {
            Action::Store { bytes: found, address: at, value }
                if (found, at) == (&bytes, address) && is_wanted(value) =>
            {
                self.next()
            }
            _ => Err(self.differs(&expected)),
        }
    }

    /// Returns the new word, which the last store of the sequence stores: the word plus or minus a register.
    fn new_word(&self) -> Result<Expression, Difference> {
        let is_push = self.kind == Kind::Push;
        let expected =
            format!("end with a store of {} {} register", self.word, if is_push { "-" } else { "+" });
        let last = self.lifted.events.last();
        match last.map(|last| &last.action) {
            Some(Action::Store { value, .. }) => {
                let step = if is_push { self.word.minus(value) } else { value.minus(&self.word) };
                if step.as_register().is_some() {
                    Ok(value.clone())
                } else {
                    Err(self.differs_at(last, &expected))
                }
            }
            _ => Err(self.differs_at(last, &expected)),
        }
    }

    /// Returns the address of the head. Where the caller has looked it up, it is in the register of the first access.
    fn head(&mut self, expected: &str, offset: u64) -> Result<Expression, Difference> {
        if let Some(head) = &self.head {
            return Ok(head.clone());
        }
        let plus = if offset == 0 { String::new() } else { format!(" + {offset}") };
        let expected = format!("{expected}, {WORD_BYTES} bytes at register{plus}");
        let head = match &self.event(&expected)?.action {
            Action::Load { address, .. } | Action::Store { address, .. } => {
                address.offset(offset.wrapping_neg())
            }
            Action::AbortIf(_) => return Err(self.differs(&expected)),
        };
        if head.as_register().is_none() {
            return Err(self.differs(&expected));
        }
        self.head = Some(head.clone());
        Ok(head)
    }

    /// Returns the address of the slot: that of the old word for a pop, and that of the new word for a push.
    fn slot(&self, expected: &str) -> Result<Expression, Difference> {
        let word = if self.kind == Kind::Push { self.new_word()? } else { self.word.clone() };
        let offset = word.and(&Expression::constant(FREE_SLOTS)).times(u64::from(SLOT_BYTES));
        let slots = if self.kind == Kind::Pop { "the address in the pageset slot" } else { "register" };
        let expected = format!("{expected}, {SLOT_BYTES} bytes at {slots} + {offset}");
        if let Some(slots) = &self.slots {
            return Ok(slots.plus(&offset));
        }
        match &self.event(&expected)?.action {
            Action::Load { address, .. } | Action::Store { address, .. }
                if self.kind != Kind::Pop && address.minus(&offset).as_register().is_some() =>
            {
                Ok(address.clone())
            }
            _ => Err(self.differs(&expected)),
        }
    }

    fn load(
        &mut self,
        expected: &str,
        bytes: u32,
        address: &Expression,
        is_acquire: bool,
    ) -> Result<Expression, Difference> {
        let expected = format!("{expected}, {bytes} bytes at {address}");
        match &self.event(&expected)?.action {
            Action::Load { is_acquire: acquires, bytes: found, address: at, value }
                if (found, at) == (&bytes, address) && (*acquires || !is_acquire) =>
            {
                let value = value.clone();
                self.next()?;
                Ok(value)
            }
            _ => Err(self.differs(&expected)),
        }
    }

    /// Takes a load of an address whose own address satisfies a condition.
    fn load_at(
        &mut self,
        expected: &str,
        is_expected: impl Fn(&Expression) -> bool,
    ) -> Result<Expression, Difference> {
        match &self.event(expected)?.action {
            Action::Load { bytes: WORD_BYTES, address, value, .. } if is_expected(address) => {
                let value = value.clone();
                self.next()?;
                Ok(value)
            }
            _ => Err(self.differs(expected)),
        }
    }

    /// Requires that the commit is the last instruction.
    fn compare_end(&self) -> Result<(), Difference> {
        if let Some(event) = self.lifted.events.get(self.compared) {
            return Err(self.differs_at(Some(event), "do nothing after the commit"));
        }
        let (at, text) = &self.lifted.last;
        let is_commit = self.lifted.events.last().is_some_and(|last| last.at == *at);
        if is_commit {
            return Ok(());
        }
        Err(self.difference(*at, text, "end with the commit", "another instruction".to_owned()))
    }

    fn event(&self, expected: &str) -> Result<&'a Event, Difference> {
        self.lifted.events.get(self.compared).ok_or_else(|| self.differs_at(None, expected))
    }

    fn next(&mut self) -> Result<(), Difference> {
        self.compared += 1;
        Ok(())
    }

    /// Returns how the next event differs from what is expected.
    fn differs(&self, expected: &str) -> Difference {
        self.differs_at(self.lifted.events.get(self.compared), expected)
    }

    fn differs_at(&self, event: Option<&Event>, expected: &str) -> Difference {
        match event {
            Some(Event { at, text, action }) => self.difference(*at, text, expected, action.to_string()),
            None => {
                let (at, text) = &self.lifted.last;
                self.difference(*at, text, expected, "the end".to_owned())
            }
        }
    }

    fn difference(&self, at: u64, text: &str, expected: &str, found: String) -> Difference {
        let expected = format!("a {} must {expected}", self.kind);
        Difference {
            after: self.compared + usize::from(self.has_step),
            at,
            text: text.to_owned(),
            expected,
            found,
        }
    }
}

/// Returns the name of the register whose initial lower half the expression is.
fn low_register(expression: &Expression) -> Option<&'static str> {
    match expression.as_atom() {
        Some(Atom::And { operands, mask }) if *mask == u64::from(u32::MAX) && operands.len() == 1 => {
            operands.first().and_then(Expression::as_register)
        }
        _ => None,
    }
}

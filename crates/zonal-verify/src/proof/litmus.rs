//! The orderings that the rows of the table need, as litmus tests for a solver.
//!
//! The table is proved as if memory were sequentially consistent. Each shape here is a way in which one row must see another, with
//! the orderings that the code has, on x86-64 (total store order) and aarch64 (other multi-copy atomic). A solver shows that the
//! bad outcome is impossible, and that on aarch64 it is possible once an ordering is left out. `cargo xtask test` runs the same
//! code under loom.
//!
//! The models are the axiomatic ones: an outcome is possible if reads can be matched with writes, and writes to each place
//! ordered, so that each place is coherent and no event comes before itself. Sources: Sewell and others 2010, x86-TSO; Pulte and
//! others 2018, Armv8.

use std::fmt::Write as _;

/// A processor's model of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Model {
    /// Total store order, of x86-64.
    X86,
    /// The model of Armv8.
    Arm,
}

/// An access of a litmus test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A load of a place, which finds a value; acquire or not.
    Load(char, i8, bool),
    /// A store of a value to a place; release or not.
    Store(char, i8, bool),
    /// An exchange of a value that it finds for another; acquire and release.
    Exchange(char, i8, i8),
    /// An exchange that is only an acquire, as those that take a lock.
    Take(char, i8, i8),
    /// An exchange that is only a release.
    Give(char, i8, i8),
    /// A barrier that orders all accesses.
    Barrier,
}

use Event::{Barrier, Exchange, Give, Load, Store, Take};

/// A shape: threads with an outcome that must be impossible.
#[derive(Clone, Debug)]
pub struct Shape {
    /// What must hold, or is left out.
    pub name: &'static str,
    /// The rows between which it stands.
    pub rows: &'static str,
    /// The accesses of each thread.
    pub threads: Vec<Vec<Event>>,
    /// Whether the bad outcome is impossible on x86-64 and on aarch64; `false` for shapes with an ordering left out.
    pub impossible: [bool; 2],
}

const MODELS: [Model; 2] = [Model::X86, Model::Arm];

/// Returns all shapes. Places start at 0; each thread's loads state the bad outcome.
pub fn shapes() -> Vec<Shape> {
    let mut shapes = of_heads();
    shapes.extend(of_frames_and_locks());
    shapes.extend(of_areas_and_fences());
    shapes.extend(of_slots_and_sections());
    shapes
}

fn shape(name: &'static str, rows: &'static str, threads: &[&[Event]], impossible: [bool; 2]) -> Shape {
    Shape { name, rows, threads: threads.iter().map(|events| events.to_vec()).collect(), impossible }
}

/// Returns the shapes between sequences and holders of a head's lock.
fn of_heads() -> Vec<Shape> {
    vec![
        shape(
            "a sequence that finds an open head finds what its last holder stored",
            "held.*, held.open -> pop.lock_word, pop.word",
            &[&[Store('w', 1, false), Store('l', 1, true)], &[Load('l', 1, true), Load('w', 0, false)]],
            [true, true],
        ),
        shape(
            "the same, if the lock word is loaded without acquire",
            "held.*, held.open -> pop.lock_word, pop.word",
            &[&[Store('w', 1, false), Store('l', 1, true)], &[Load('l', 1, false), Load('w', 0, false)]],
            [true, false],
        ),
        shape(
            "the same, if the lock word is loaded last",
            "held.*, held.open -> pop.lock_word, pop.word",
            &[&[Store('w', 1, false), Store('l', 1, true)], &[Load('w', 0, false), Load('l', 1, true)]],
            [false, false],
        ),
        shape(
            "the same, if the head is opened without release",
            "held.*, held.open -> pop.lock_word, pop.word",
            &[&[Store('w', 1, false), Store('l', 1, false)], &[Load('l', 1, true), Load('w', 0, false)]],
            [true, false],
        ),
        // The barrier of `membarrier(2)` is also one in the interrupted thread. Its place in a sequence that commits is
        // before the lock word is loaded, or after the store that commits.
        shape(
            "a remote lock that waited finds what a sequence committed before",
            "pop.commit -> remote.quiesce, held.*",
            &[
                &[Store('l', 2, false), Load('b', 1, false), Barrier, Load('w', 0, false)],
                &[Load('l', 0, true), Store('w', 1, false), Barrier, Store('b', 1, false)],
            ],
            [true, true],
        ),
        shape(
            "the same without the sequence's side of the barrier",
            "pop.commit -> remote.quiesce, held.*",
            &[
                &[Store('l', 2, false), Load('b', 1, false), Barrier, Load('w', 0, false)],
                &[Load('l', 0, true), Store('w', 1, false), Store('b', 1, false)],
            ],
            [true, false],
        ),
        shape(
            "a sequence that begins after the barrier finds the remote lock",
            "remote.shut, remote.quiesce -> pop.lock_word",
            &[
                &[Store('l', 2, false), Barrier, Store('b', 1, false)],
                &[Load('b', 1, false), Barrier, Load('l', 0, true)],
            ],
            [true, true],
        ),
        shape(
            "the same without the barrier",
            "remote.shut, remote.quiesce -> pop.lock_word",
            &[&[Store('l', 2, false), Store('b', 1, false)], &[Load('b', 1, false), Load('l', 0, true)]],
            [true, false],
        ),
    ]
}

/// Returns the shapes of hand-overs and exchanges.
fn of_frames_and_locks() -> Vec<Shape> {
    vec![
        shape(
            "the next owner of a frame finds what the last owner wrote",
            "free.claim -> free.claim, refill.mark, drain.mark",
            &[&[Store('d', 1, false), Exchange('s', 0, 1)], &[Load('s', 1, true), Load('d', 0, false)]],
            [true, true],
        ),
        shape(
            "the same, if the free stores without release",
            "free.claim -> free.claim, refill.mark, drain.mark",
            &[&[Store('d', 1, false), Store('s', 1, false)], &[Load('s', 1, true), Load('d', 0, false)]],
            [true, false],
        ),
        shape(
            "of two frees at once one is refused",
            "free.claim, free.claim",
            &[&[Exchange('s', 0, 1)], &[Exchange('s', 0, 1)]],
            [true, true],
        ),
        shape(
            "of two remote locks at once one finds the flag",
            "remote.flag, remote.flag",
            &[&[Take('f', 0, 1)], &[Take('f', 0, 1)]],
            [true, true],
        ),
        shape(
            "who takes the deferred frees finds each that was added before the flag",
            "free.defer -> free.finish",
            &[&[Give('c', 0, 1), Give('f', 0, 1)], &[Take('f', 1, 0), Load('c', 0, false)]],
            [true, true],
        ),
        shape(
            "the same, if the taker does not acquire the flag",
            "free.defer -> free.finish",
            &[&[Give('c', 0, 1), Give('f', 0, 1)], &[Load('f', 1, false), Load('c', 0, false)]],
            [true, false],
        ),
        shape(
            "the next holder of a try lock finds what the last one stored",
            "held.*, held.open -> locks.swap",
            &[&[Store('w', 1, false), Store('l', 1, true)], &[Take('l', 1, 2), Load('w', 0, false)]],
            [true, true],
        ),
    ]
}

/// Returns the shapes between steps under areas' locks, and between such a step and a new fence.
///
/// A lock is 0 or 2 while it is free. A free keeps its frame from use if it finds a fence; otherwise the fence must find the frame.
fn of_areas_and_fences() -> Vec<Shape> {
    vec![
        shape(
            "the next holder of an area's lock finds the free blocks",
            "area.put, area.unlock -> area.lock, area.take",
            &[&[Store('b', 1, false), Store('a', 2, true)], &[Take('a', 2, 3), Load('b', 0, false)]],
            [true, true],
        ),
        shape(
            "the same, if the lock is released without release",
            "area.put, area.unlock -> area.lock, area.take",
            &[&[Store('b', 1, false), Store('a', 2, false)], &[Take('a', 2, 3), Load('b', 0, false)]],
            [true, false],
        ),
        shape(
            "a free that locks its area after a new fence has passed that lock finds the fence",
            "fence.keep -> free, area.put",
            &[
                &[Store('f', 1, false), Take('a', 0, 1), Store('a', 2, true)],
                &[Take('a', 2, 3), Load('f', 0, false)],
            ],
            [true, true],
        ),
        shape(
            "a fence that passes the lock of an area after a free finds the frame",
            "free, area.put -> fence.keep",
            &[
                &[Take('a', 0, 1), Load('f', 0, false), Store('b', 1, false), Store('a', 2, true)],
                &[Store('f', 1, true), Take('a', 2, 3), Load('b', 0, false)],
            ],
            [true, true],
        ),
        shape(
            "a free and a fence, if the fence does not pass the lock",
            "fence.keep, area.put",
            &[
                &[Take('a', 0, 1), Load('f', 0, false), Store('b', 1, false), Store('a', 2, true)],
                &[Store('f', 1, true), Load('b', 0, false)],
            ],
            [false, false],
        ),
        shape(
            "who finds the range of a fence finds that its count was reset",
            "Zone::remove_fence, Zone::add_fence -> Zone::fence",
            &[&[Store('h', 1, false), Store('f', 1, true)], &[Load('f', 1, true), Load('h', 0, false)]],
            [true, true],
        ),
        shape(
            "the same, if the range is loaded without acquire",
            "Zone::remove_fence, Zone::add_fence -> Zone::fence",
            &[&[Store('h', 1, false), Store('f', 1, true)], &[Load('f', 1, false), Load('h', 0, false)]],
            [true, false],
        ),
    ]
}

/// Returns the shapes for the slot that a CPU uses, for holders of runs, and for the bits that mark sections as present.
fn of_slots_and_sections() -> Vec<Shape> {
    vec![
        shape(
            "a CPU that finds its slot changed finds what led to the change",
            "PagesetSlots::set -> PagesetSlots::of",
            &[&[Store('w', 1, false), Store('s', 1, true)], &[Load('s', 1, true), Load('w', 0, false)]],
            [true, true],
        ),
        shape(
            "the same, if the slot is stored without release",
            "PagesetSlots::set -> PagesetSlots::of",
            &[&[Store('w', 1, false), Store('s', 1, false)], &[Load('s', 1, true), Load('w', 0, false)]],
            [true, false],
        ),
        shape(
            "who finds a run whole after a handover finds its holder",
            "handover.move, handover.end_run -> run.check, run.is_here",
            &[&[Store('h', 1, false), Store('s', 1, true)], &[Load('s', 1, true), Load('h', 0, false)]],
            [true, true],
        ),
        shape(
            "the same, if the holder is loaded first",
            "handover.move, handover.end_run -> run.check, run.is_here",
            &[&[Store('h', 1, false), Store('s', 1, true)], &[Load('h', 0, false), Load('s', 1, true)]],
            [false, false],
        ),
        shape(
            "who finds a section present finds the bytes of its frames",
            "FrameTable::add_managed -> FrameTable::state",
            &[&[Store('y', 1, false), Give('p', 0, 1)], &[Load('p', 1, true), Load('y', 0, false)]],
            [true, true],
        ),
        shape(
            "the same, if the bit is loaded without acquire",
            "FrameTable::add_managed -> FrameTable::state",
            &[&[Store('y', 1, false), Give('p', 0, 1)], &[Load('p', 1, false), Load('y', 0, false)]],
            [true, false],
        ),
        shape(
            "the same, if the byte is loaded first",
            "FrameTable::add_managed -> FrameTable::state",
            &[&[Store('y', 1, false), Give('p', 0, 1)], &[Load('y', 0, false), Load('p', 1, true)]],
            [false, false],
        ),
    ]
}

/// Returns a script for each shape and model: unsatisfiable means that the bad outcome is impossible.
pub fn scripts() -> Vec<(String, String, bool)> {
    let each = |shape: &Shape| {
        MODELS.map(|model| {
            let impossible = shape.impossible[usize::from(model == Model::Arm)];
            (format!("{} ({model:?})", shape.name), script(shape, model), impossible)
        })
    };
    shapes().iter().flat_map(each).collect()
}

/// An event with its place in the test.
struct Placed {
    thread: usize,
    at: usize,
    event: Event,
}

impl Placed {
    fn place(&self) -> Option<char> {
        match self.event {
            Load(place, ..) | Store(place, ..) | Exchange(place, ..) | Take(place, ..) | Give(place, ..) => {
                Some(place)
            }
            Barrier => None,
        }
    }

    fn reads(&self) -> Option<i8> {
        match self.event {
            Load(_, value, _) | Exchange(_, value, _) | Take(_, value, _) | Give(_, value, _) => Some(value),
            Store(..) | Barrier => None,
        }
    }

    fn writes(&self) -> Option<i8> {
        match self.event {
            Store(_, value, _) | Exchange(_, _, value) | Take(_, _, value) | Give(_, _, value) => Some(value),
            Load(..) | Barrier => None,
        }
    }

    fn acquires(&self) -> bool {
        matches!(self.event, Load(_, _, true) | Exchange(..) | Take(..))
    }

    fn releases(&self) -> bool {
        matches!(self.event, Store(_, _, true) | Exchange(..) | Give(..))
    }
}

/// Writes the question whether a shape's outcome is possible in a model.
///
/// `c` orders the writes to each place, with 0 for the initial value. `f` is the write that a read takes its value from, by its
/// number, or -1 for the initial value. `t` orders all events.
fn script(shape: &Shape, model: Model) -> String {
    let events: Vec<Placed> = shape
        .threads
        .iter()
        .enumerate()
        .flat_map(|(thread, events)| {
            events.iter().enumerate().map(move |(at, &event)| Placed { thread, at, event })
        })
        .collect();
    let mut text = "(set-logic ALL)\n".to_owned();
    let mut line = |part: String| writeln!(text, "{part}").expect("writing to a string works");
    for at in 0..events.len() {
        line(format!("(declare-const t{at} Int)(declare-const c{at} Int)(declare-const f{at} Int)"));
    }
    for (a, one) in events.iter().enumerate() {
        if one.writes().is_some() {
            line(format!("(assert (> c{a} 0))"));
        }
        for (b, other) in events.iter().enumerate().filter(|(b, _)| *b != a) {
            let same_place = one.place().is_some() && one.place() == other.place();
            let before = one.thread == other.thread && one.at < other.at;
            if same_place && one.writes().is_some() && other.writes().is_some() {
                line(format!("(assert (not (= c{a} c{b})))"));
                // Writes by different threads are ordered as events, too.
                let ordered = if one.thread == other.thread {
                    format!("(= c{a} c{a})")
                } else {
                    format!("(< t{a} t{b})")
                };
                line(format!("(assert (=> (< c{a} c{b}) {ordered}))"));
                if before {
                    line(format!("(assert (< c{a} c{b}))"));
                }
            }
            if before && is_ordered(model, one, other, &events) {
                line(format!("(assert (< t{a} t{b}))"));
            }
        }
        match_read(&events, a, &mut line);
    }
    line("(check-sat)".to_owned());
    text
}

/// Writes from which write the event with number `a` takes its value, if it reads.
fn match_read(events: &[Placed], a: usize, line: &mut impl FnMut(String)) {
    let one = &events[a];
    let Some(value) = one.reads() else { return };
    let writers: Vec<(usize, &Placed)> = events
        .iter()
        .enumerate()
        .filter(|(b, other)| *b != a && other.place() == one.place() && other.writes().is_some())
        .collect();
    let mut choices: Vec<String> = writers
        .iter()
        .filter(|(_, other)| other.writes() == Some(value))
        .map(|(b, _)| format!("(= f{a} {b})"))
        .collect();
    if value == 0 {
        choices.push(format!("(= f{a} (- 1))"));
    }
    choices.push("false".to_owned());
    line(format!("(assert (or {}))", choices.join(" ")));
    for (b, writer) in &writers {
        // A read comes after the write that it sees, and before the writes that follow that one.
        if writer.thread != one.thread {
            line(format!("(assert (=> (= f{a} {b}) (< t{b} t{a})))"));
        } else if writer.at > one.at {
            line(format!("(assert (not (= f{a} {b})))"));
        }
        let seen = std::iter::once((format!("(= f{a} (- 1))"), "0".to_owned()))
            .chain(writers.iter().map(|(from, _)| (format!("(= f{a} {from})"), format!("c{from}"))));
        for (is, order) in seen {
            let later = format!("(and {is} (> c{b} {order}))");
            if writer.thread != one.thread {
                line(format!("(assert (=> {later} (< t{a} t{b})))"));
            } else if writer.at < one.at {
                line(format!("(assert (not {later}))"));
            }
            // No other write comes between the two halves of an exchange.
            if one.writes().is_some() {
                line(format!("(assert (not (and {later} (< c{b} c{a}))))"));
            }
        }
    }
    if one.writes().is_some() {
        for (is, order) in std::iter::once((format!("(= f{a} (- 1))"), "0".to_owned()))
            .chain(writers.iter().map(|(from, _)| (format!("(= f{a} {from})"), format!("c{from}"))))
        {
            line(format!("(assert (=> {is} (< {order} c{a})))"));
        }
    }
}

/// Whether the model orders an event before a later one of its thread.
fn is_ordered(model: Model, one: &Placed, other: &Placed, events: &[Placed]) -> bool {
    let barrier_between = events.iter().any(|event| {
        event.thread == one.thread && event.event == Barrier && one.at < event.at && event.at < other.at
    });
    if barrier_between || one.event == Barrier || other.event == Barrier {
        return true;
    }
    match model {
        // Only a load may overtake an earlier store, and no exchange takes part in that.
        Model::X86 => !(matches!(one.event, Store(..)) && matches!(other.event, Load(..))),
        Model::Arm => one.acquires() || other.releases(),
    }
}

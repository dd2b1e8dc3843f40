//! Objects that programs name by numbers, and that are destroyed when their last use ends.
//!
//! An entry of the table is never freed, so a number that names nothing is found out without touching other memory. A number
//! has the index of its entry and the entry's generation, which changes whenever an object is destroyed. There is no lock,
//! which a thread could hold when another forks.

use std::cell::UnsafeCell;
use std::mem;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};
use std::thread;
use std::time::Duration;

/// Number of entries in a chunk, and of chunks: 65536 objects at a time. An entry can be used 2^28 times.
const ENTRIES: usize = 64;
const CHUNKS: usize = 1024;

/// Bits of an entry's word: the generation in the upper half, whether the object can be used, whether one thread has the
/// entry, and the number of uses in progress.
const GENERATION: u64 = 1 << 32;
const LIVE: u64 = 1 << 31;
const OWNED: u64 = 1 << 30;
const USES: u64 = LAST - 1;
/// Set with `OWNED` in an entry that cannot be used again.
const LAST: u64 = 1 << 29;
/// Bits of the generation that count. The others are the kind of the table, so that a number from one table is not one
/// from another.
const COUNTER: u64 = 0x0FFF_FFFF * GENERATION;

/// Time between two looks at an object that another thread uses.
const PAUSE: Duration = Duration::from_micros(50);

/// An entry. Invariant: `value` is `Some` while the word has `LIVE` or uses.
struct Entry<T> {
    word: AtomicU64,
    /// Slot of the pool to which the object belongs.
    slot: AtomicU32,
    value: UnsafeCell<Option<T>>,
}

/// Returns the index of the entry that a number names, if it names one. Indices are less than 2^16.
pub(crate) fn index_of_entry(number: u64) -> u32 {
    (number % GENERATION).wrapping_sub(1) as u32 % (ENTRIES * CHUNKS) as u32
}

/// A table of objects, for the life of the process.
pub(crate) struct Table<T: 'static> {
    chunks: [AtomicPtr<[Entry<T>; ENTRIES]>; CHUNKS],
    /// Number of entries that are or were in use.
    used: AtomicUsize,
    /// The kind of the objects: 1 to 15.
    kind: u8,
}

// SAFETY: a value is written and dropped only by the thread that has made its word `OWNED`, when no use is in progress, and
// otherwise only shared.
unsafe impl<T: Send + Sync> Sync for Table<T> {}

/// A use of an object, which is not destroyed before this value is dropped.
pub(crate) struct Use<T: 'static> {
    entry: &'static Entry<T>,
}

impl<T> Deref for Use<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the use is counted, so no thread changes the value.
        let value = unsafe { &*self.entry.value.get() };
        value.as_ref().expect("an entry in use has a value")
    }
}

impl<T> Drop for Use<T> {
    fn drop(&mut self) {
        // The last use of an object that was destroyed meanwhile takes the entry in the same step, so that no thread sees an
        // entry with a value but without uses.
        let end = |word: u64| Some(if word & (LIVE | USES) == 1 { word & !USES | OWNED } else { word - 1 });
        // AcqRel: takes and publishes what was done with the object; pairs with `Use::drop`, `Table::destroy`.
        let word = self.entry.word.fetch_update(AcqRel, Acquire, end).unwrap_or_default();
        if word & (LIVE | USES) == 1 {
            self.entry.drop_value();
        }
    }
}

/// Returns the word of an entry without uses whose object is gone.
fn next_word(word: u64) -> u64 {
    if word & COUNTER == COUNTER {
        word | OWNED | LAST // the numbers are used up
    } else {
        (word & !OWNED) + GENERATION
    }
}

impl<T> Entry<T> {
    /// Drops the value, and lets the entry be used again under a new generation. The calling thread must have the entry.
    fn drop_value(&self) {
        let word = self.word.load(Relaxed); // relaxed: only this thread changes it
        assert!(word & (LIVE | OWNED | USES | LAST) == OWNED, "an entry is dropped in use: {word:#x}");
        // SAFETY: this thread has the entry, and no use is in progress.
        let value = unsafe { (*self.value.get()).take() };
        // The panic has been reported. It must not leave the entry in a state for which other threads wait.
        catch_unwind(AssertUnwindSafe(|| drop(value))).ok();
        // Release: publishes what the destructor did; pairs with `claim`, `destroy_and_wait`, `destroy_all_of`.
        self.word.store(next_word(word), Release);
    }

    /// Makes the calling thread have an entry without object.
    fn claim(&self) -> bool {
        let word = self.word.load(Relaxed); // relaxed: the exchange decides
        // Acquire: takes the empty value; pairs with `Entry::drop_value`.
        word & (LIVE | OWNED | USES) == 0
            && self.word.compare_exchange(word, word | OWNED, Acquire, Relaxed).is_ok()
    }
}

impl<T: Send + Sync> Table<T> {
    pub(crate) const fn new(kind: u8) -> Self {
        let chunks = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS];
        Self { chunks, used: AtomicUsize::new(0), kind }
    }

    fn entry(&'static self, index: usize) -> Option<&'static Entry<T>> {
        // Acquire: takes the entries; pairs with `Table::entry_or_new`.
        let chunk = self.chunks.get(index / ENTRIES)?.load(Acquire);
        // SAFETY: chunks are never freed.
        unsafe { chunk.as_ref() }.map(|chunk| &chunk[index % ENTRIES])
    }

    /// Returns the entry with this index, which is created if necessary. Returns `None` beyond the end of the table, or
    /// if the heap has no memory.
    fn entry_or_new(&'static self, index: usize) -> Option<&'static Entry<T>> {
        let chunk = self.chunks.get(index / ENTRIES)?;
        // Acquire: takes the entries; pairs with `Table::entry_or_new`.
        if chunk.load(Acquire).is_null() {
            let word = (u64::from(self.kind) << 28 | 1) * GENERATION;
            let empty = || Entry {
                word: AtomicU64::new(word),
                slot: AtomicU32::new(0),
                value: UnsafeCell::new(None),
            };
            let mut entries = Vec::new();
            entries.try_reserve_exact(ENTRIES).ok()?; // a box would end the process if the heap is exhausted
            entries.extend((0..ENTRIES).map(|_| empty()));
            let entries: Box<[Entry<T>; ENTRIES]> = entries.try_into().ok()?;
            let entries = Box::into_raw(entries);
            // AcqRel: takes or publishes the entries; pairs with `Table::entry`, `Table::entry_or_new`.
            if chunk.compare_exchange(ptr::null_mut(), entries, AcqRel, Acquire).is_err() {
                // SAFETY: another thread was faster, so no thread has seen these entries.
                drop(unsafe { Box::from_raw(entries) });
            }
        }
        self.entry(index)
    }

    /// Adds an object of the pool in `slot` and returns its number, or returns the object if the table is full or cannot grow.
    pub(crate) fn add(&'static self, slot: u32, value: T) -> Result<u64, T> {
        let used = self.used.load(Relaxed); // relaxed: only a hint where to begin
        let old = (0..used).filter_map(|index| Some((index, self.entry(index)?)));
        let claimed = old.into_iter().find(|(_, entry)| entry.claim());
        let claimed = claimed.or_else(|| {
            let mut new = used..;
            new.find_map(|index| match self.entry_or_new(index) {
                None => Some(None),
                Some(entry) => entry.claim().then_some(Some((index, entry))),
            })?
        });
        let Some((index, entry)) = claimed else { return Err(value) };
        self.used.fetch_max(index + 1, Relaxed);
        entry.slot.store(slot, Relaxed); // published by the release below
        // SAFETY: this thread has the entry, which has no object.
        unsafe { *entry.value.get() = Some(value) };
        let generation = entry.word.load(Relaxed) & !(LIVE | OWNED | USES); // relaxed: only this thread changes it
        // Release: publishes the value and the slot; pairs with `Table::get`, `destroy`, `destroy_all_of`.
        entry.word.store(generation | LIVE, Release);
        Ok(generation | (index as u64 + 1))
    }

    /// Returns the entry that a number names, with the generation of the number.
    fn named(&'static self, number: u64) -> Option<(&'static Entry<T>, u64)> {
        let index = (number % GENERATION).checked_sub(1)?;
        Some((self.entry(index as usize)?, number / GENERATION * GENERATION))
    }

    /// Returns the object with this number, if it has not been destroyed.
    pub(crate) fn get(&'static self, number: u64) -> Option<Use<T>> {
        let (entry, generation) = self.named(number)?;
        let begin = |word: u64| {
            let is_live = word & !(OWNED | USES | LAST) == generation | LIVE && word & USES < USES;
            is_live.then_some(word + 1)
        };
        // Acquire: takes the value; pairs with `Table::add`.
        entry.word.fetch_update(Acquire, Acquire, begin).ok().map(|_| Use { entry })
    }

    /// Destroys the object with this number, now or when its last use ends. Returns `false` if there is no such object.
    pub(crate) fn destroy(&'static self, number: u64) -> bool {
        let Some((entry, generation)) = self.named(number) else { return false };
        let end = |word: u64| {
            let is_live = word & !(OWNED | USES | LAST) == generation | LIVE;
            is_live.then_some(if word & USES == 0 { generation | OWNED } else { word & !LIVE })
        };
        // AcqRel: takes the value and its uses, publishes this thread's; pairs with `Table::add`, `Use::drop`.
        let Ok(word) = entry.word.fetch_update(AcqRel, Acquire, end) else { return false };
        if word & USES == 0 {
            entry.drop_value();
        }
        true
    }

    /// Destroys the object with this number like [`destroy`](Self::destroy), and waits until it has been dropped. The calling
    /// thread must have no use of it.
    pub(crate) fn destroy_and_wait(&'static self, number: u64) -> bool {
        let is_destroyed = self.destroy(number);
        if let Some((entry, generation)) = self.named(number).filter(|_| is_destroyed) {
            let is_there = |word: u64| word & !(LIVE | OWNED | USES | LAST) == generation && word & LAST == 0;
            // Acquire: takes what the destructor did; pairs with `Entry::drop_value`.
            while is_there(entry.word.load(Acquire)) {
                thread::sleep(PAUSE);
            }
        }
        is_destroyed
    }

    /// Destroys all objects of the pool in `slot`, to which none is added any more, and waits until they have been dropped.
    pub(crate) fn destroy_all_of(&'static self, slot: u32) {
        // Acquire: orders the number before the entries; unpaired: `add` changes it relaxed, and is over.
        for index in 0..self.used.load(Acquire) {
            let Some(entry) = self.entry(index) else { continue };
            loop {
                // Acquire: takes the slot, or what the destructor did; pairs with `Table::add`, `Entry::drop_value`.
                let word = entry.word.load(Acquire);
                let is_free = word & (LIVE | OWNED | USES) == 0 || word & LAST != 0;
                if is_free || entry.slot.load(Relaxed) != slot {
                    break;
                }
                if !self.destroy((word / GENERATION * GENERATION) | (index as u64 + 1)) {
                    thread::sleep(PAUSE); // another thread destroys it, or adds an object of another pool
                }
            }
        }
    }
}

impl<T: Send + Sync> Table<T> {
    /// Forgets what the threads of the parent were doing, in a child made by `fork`. `own_uses` returns how many uses of the
    /// object with an index the calling thread has, which is the only one.
    ///
    /// Objects that such threads were adding, destroying or alone using are leaked: they may be incomplete, and the heap may
    /// be out of order.
    pub(crate) fn after_fork_in_child(&'static self, own_uses: impl Fn(u32) -> usize) {
        for (index, entry) in (0..).map_while(|index| Some((index, self.entry(index)?))) {
            let word = entry.word.load(Relaxed); // relaxed, here and below: the child has one thread
            let uses = own_uses(index as u32) as u64;
            let is_needed = word & OWNED == 0 && (word & LIVE != 0 || uses > 0);
            let next = if is_needed || word & LAST != 0 {
                word & !USES | uses
            } else if word & (OWNED | USES) == 0 {
                continue; // a free entry
            } else {
                // SAFETY: the child has one thread, which has no use of the object.
                mem::forget(unsafe { (*entry.value.get()).take() });
                next_word(word & !USES)
            };
            entry.word.store(next, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    /// Says when it is dropped, and that it is dropped once.
    struct Object(u64, Arc<AtomicUsize>);

    impl Drop for Object {
        fn drop(&mut self) {
            self.1.fetch_add(1, AcqRel);
        }
    }

    #[test]
    fn numbers_name_objects_until_they_are_destroyed() {
        static TABLE: Table<Object> = Table::new(7);
        let drops = Arc::new(AtomicUsize::new(0));
        let first = TABLE.add(5, Object(1, Arc::clone(&drops))).ok().unwrap();
        let second = TABLE.add(5, Object(2, Arc::clone(&drops))).ok().unwrap();
        assert_eq!((TABLE.get(first).unwrap().0, TABLE.get(second).unwrap().0), (1, 2));
        let used = TABLE.get(first).unwrap();
        assert!(TABLE.destroy(first) && !TABLE.destroy(first) && TABLE.get(first).is_none());
        assert_eq!((used.0, drops.load(Acquire)), (1, 0), "an object in use is not dropped");
        drop(used);
        assert_eq!(drops.load(Acquire), 1);
        let third = TABLE.add(5, Object(3, Arc::clone(&drops))).ok().unwrap();
        assert!(third != first && TABLE.get(first).is_none() && !TABLE.destroy(first));
        for wrong in [0, 1, 2, u64::MAX, first, first + 1, second + GENERATION, third + GENERATION, 7 << 60] {
            assert!(TABLE.get(wrong).is_none() || wrong == second, "{wrong:#x}");
        }
        let other = TABLE.add(6, Object(4, Arc::clone(&drops))).ok().unwrap();
        TABLE.destroy_all_of(5);
        assert_eq!(drops.load(Acquire), 3, "the objects of one pool are dropped");
        assert!(TABLE.get(second).is_none() && TABLE.get(third).is_none() && TABLE.get(other).is_some());
    }

    #[test]
    fn an_entry_whose_numbers_are_used_up_is_not_used_again() {
        static TABLE: Table<Object> = Table::new(2);
        let drops = Arc::new(AtomicUsize::new(0));
        let first = TABLE.add(5, Object(1, Arc::clone(&drops))).ok().unwrap();
        assert!(TABLE.destroy_and_wait(first));
        TABLE.entry(0).unwrap().word.store(2 << 60 | COUNTER, Release);
        let last = TABLE.add(5, Object(2, Arc::clone(&drops))).ok().unwrap();
        assert_eq!((last, TABLE.get(last).unwrap().0), (2 << 60 | COUNTER | 1, 2));
        assert!(TABLE.destroy_and_wait(last) && !TABLE.destroy(last) && TABLE.get(last).is_none());
        let next = TABLE.add(5, Object(3, Arc::clone(&drops))).ok().unwrap();
        assert_eq!(next % GENERATION, 2, "the second entry");
        TABLE.destroy_all_of(5);
        assert_eq!(drops.load(Acquire), 3);
    }

    #[test]
    fn waiting_for_the_end_of_an_object_ends_with_its_last_use() {
        static TABLE: Table<Object> = Table::new(3);
        let drops = Arc::new(AtomicUsize::new(0));
        let number = TABLE.add(5, Object(1, Arc::clone(&drops))).ok().unwrap();
        let used = TABLE.get(number).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                assert!(TABLE.destroy_and_wait(number));
                assert_eq!(drops.load(Acquire), 1, "the object was still in use");
            });
            thread::sleep(Duration::from_millis(10));
            drop(used);
        });
    }

    #[test]
    fn threads_use_and_destroy_each_object_once() {
        static TABLE: Table<Object> = Table::new(1);
        const OBJECTS: u64 = 2000;
        let drops = Arc::new(AtomicUsize::new(0));
        let newest = AtomicU64::new(0);
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_done.load(Acquire) {
                        if let Some(object) = TABLE.get(newest.load(Acquire)) {
                            assert!(object.0 < OBJECTS);
                        }
                    }
                });
                scope.spawn(|| {
                    while !is_done.load(Acquire) {
                        TABLE.destroy(newest.load(Acquire));
                    }
                });
            }
            for number in 0..OBJECTS {
                newest.store(TABLE.add(5, Object(number, Arc::clone(&drops))).ok().unwrap(), Release);
                thread::yield_now();
            }
            is_done.store(true, Release);
        });
        TABLE.destroy_all_of(5);
        assert_eq!(drops.load(Acquire) as u64, OBJECTS);
    }
}

//! Counters by key, with a bound on the number of keys.
//!
//! Names, flags and migratetypes come from the trace, so their number may be anything. Keys above the bound are counted
//! together.
//!
//! Related files: `info/mod.rs` uses them.

use std::collections::HashMap;
use std::hash::Hash;

/// The largest number of keys.
const KEYS_MAX: usize = 4096;

/// Values by key, in the order in which the keys came.
#[derive(Debug)]
pub(super) struct Counters<K, V> {
    places: HashMap<K, usize>,
    values: Vec<(K, V)>,
    others: K,
}

impl<K: Clone + Eq + Hash, V: Default> Counters<K, V> {
    /// Creates counters. `others` is the key of what exceeds the bound.
    pub(super) fn new(others: K) -> Self {
        Self { places: HashMap::new(), values: Vec::new(), others }
    }

    /// Returns the place of a key.
    pub(super) fn place(&mut self, key: &K) -> usize {
        if let Some(place) = self.places.get(key) {
            return *place;
        }
        let is_full = self.values.len() >= KEYS_MAX && *key != self.others;
        let key = if is_full { self.others.clone() } else { key.clone() };
        if let Some(place) = self.places.get(&key) {
            return *place;
        }
        self.values.push((key.clone(), V::default()));
        self.places.insert(key, self.values.len() - 1);
        self.values.len() - 1
    }

    pub(super) fn get(&mut self, key: &K) -> &mut V {
        let place = self.place(key);
        &mut self.values[place].1
    }

    pub(super) fn at(&mut self, place: usize) -> &mut V {
        &mut self.values[place].1
    }

    /// Returns keys and values, those with the largest sizes first.
    pub(super) fn sorted(self, size: impl Fn(&V) -> u64) -> Vec<(K, V)> {
        let mut values = self.values;
        values.sort_by_key(|(_, value)| std::cmp::Reverse(size(value)));
        values
    }

    /// Returns the keys, by place.
    pub(super) fn keys(&self) -> impl Iterator<Item = &K> {
        self.values.iter().map(|(key, _)| key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_above_the_bound_are_counted_together() {
        let mut counters: Counters<u64, u64> = Counters::new(u64::MAX);
        for key in 0..10_000 {
            *counters.get(&key) += 1;
            *counters.get(&0) += 1;
        }
        let sorted = counters.sorted(|count| *count);
        assert_eq!(sorted.len(), KEYS_MAX + 1);
        assert_eq!(sorted[..2], [(0, 10_001), (u64::MAX, 10_000 - KEYS_MAX as u64)]);
    }
}

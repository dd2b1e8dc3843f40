//! Tables of a pool's state. Related file: `observe.rs` makes them.

use crate::table::{Column, Table};

/// Returns a table with a row for each item. `texts` and `numbers` return the columns of a row.
pub(super) fn of<T, const A: usize, const B: usize>(
    items: &[T],
    texts: impl Fn(&T) -> [(&'static str, String); A],
    numbers: impl Fn(&T) -> [(&'static str, u64); B],
) -> Table {
    let of_texts: Vec<_> = items.iter().map(texts).collect();
    let of_numbers: Vec<_> = items.iter().map(numbers).collect();
    let mut columns = Vec::new();
    for at in 0..A {
        let name = of_texts.first().map_or("", |row| row[at].0);
        columns.push(Column::new(name, of_texts.iter().map(|row| row[at].1.clone())));
    }
    for at in 0..B {
        let name = of_numbers.first().map_or("", |row| row[at].0);
        columns.push(Column::new(name, of_numbers.iter().map(|row| row[at].1)));
    }
    if items.is_empty() { Table::new(Vec::new()) } else { Table::new(columns) }
}

//! Prints the figures as tables, or as one JSON document for scripts.

use comfy_table::{CellAlignment, Table, presets};

use crate::measure::{HotLine, Outcome, Rates};
use crate::world::Shape;

/// Rates below this value get no row.
const SMALL: f64 = 0.05;

/// Prints the counts of one machine.
pub(crate) fn print(shape: Shape, outcomes: &[Outcome]) {
    println!("\n{shape}: {} nodes, {} CPUs each; all figures for 1000 pairs\n", shape.nodes, shape.cpus);
    print_table(
        &["workload", "accesses", "transfers", "of them far", "invalidations", "shared RMW"],
        1,
        outcomes.iter().map(|outcome| row(vec![name(outcome)], &outcome.rates)).collect(),
    );
    let locks = outcomes.iter().flat_map(|outcome| {
        outcome.locks.iter().map(move |lock| {
            let mut cells = vec![name(outcome), lock.structure.clone()];
            cells.extend([lock.acquisitions, lock.accesses_per_hold, lock.transfers_per_hold].map(figure));
            cells.push(lock.longest_hold.to_string());
            cells
        })
    });
    println!("\nlocks: how often taken, accesses and transfers in a hold, accesses in the longest hold\n");
    print_table(&["workload", "lock", "taken", "accesses", "transfers", "longest"], 2, locks.collect());
    let structures = outcomes.iter().flat_map(|outcome| {
        let shared = |rates: &Rates| rates.transfers + rates.invalidations >= SMALL;
        let shared = outcome.structures.iter().filter(move |part| shared(&part.rates));
        shared.map(move |part| row(vec![name(outcome), part.structure.clone()], &part.rates))
    });
    let rows: Vec<_> = structures.collect();
    if rows.is_empty() {
        println!("\nno structure is shared");
        return;
    }
    println!("\nby structure, those that are shared\n");
    print_table(
        &["workload", "structure", "accesses", "transfers", "of them far", "invalidations", "shared RMW"],
        2,
        rows,
    );
    println!("\nthe lines shared most, where they lie, and where they are written or only read\n");
    let lines = outcomes
        .iter()
        .flat_map(|outcome| outcome.hot_lines.iter().map(move |line| hot_line(name(outcome), line)));
    print_table(
        &[
            "workload",
            "line",
            "structure",
            "transfers",
            "invalid.",
            "users",
            "writers",
            "written at",
            "read at",
        ],
        3,
        lines.collect(),
    );
}

fn hot_line(workload: String, line: &HotLine) -> Vec<String> {
    vec![
        workload,
        line.place.clone(),
        line.structure.clone(),
        figure(line.transfers),
        figure(line.invalidations),
        line.users.to_string(),
        line.writers.to_string(),
        line.written_at.join(" "),
        line.read_at.join(" "),
    ]
}

fn name(outcome: &Outcome) -> String {
    format!("{:?}", outcome.workload).to_lowercase()
}

fn row(mut cells: Vec<String>, rates: &Rates) -> Vec<String> {
    let Rates { accesses, transfers, far_transfers, invalidations, shared_updates } = *rates;
    cells.extend([accesses, transfers, far_transfers, invalidations, shared_updates].map(figure));
    cells
}

fn figure(rate: f64) -> String {
    if rate < 100.0 { format!("{rate:.1}") } else { format!("{rate:.0}") }
}

/// Prints a table. Its first `texts` columns, and the columns of places in the code, contain text.
fn print_table(header: &[&str], texts: usize, rows: Vec<Vec<String>>) {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header).add_rows(rows);
    let is_figure = |at: usize| at >= texts && !header[at].ends_with(" at");
    let figures = table.column_iter_mut().enumerate().filter(|(at, _)| is_figure(*at));
    figures.for_each(|(_, column)| column.set_cell_alignment(CellAlignment::Right));
    println!("{}", table.trim_fmt());
}

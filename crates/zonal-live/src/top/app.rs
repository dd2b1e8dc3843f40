//! The state of the screen: what is shown, selected, sorted and filtered.
//!
//! `keys.rs` changes it by keys and mouse, and `draw` renders it. Nothing here reads a source or a clock.

use std::time::Duration;

use jiff::tz::TimeZone;
use ratatui_core::layout::Rect;
use zonal_machine::ids;

use super::heat::Heat;
use super::reading::Reading;
use super::rows::{Sort, Types};
use super::theme::Colours;
use super::units;

/// A view of the reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pane {
    /// Nodes and zones against their watermarks, and charts.
    Overview,
    /// Pagesets as a heat map.
    Pagesets,
    /// Counters with their rates.
    Counters,
    /// Free blocks by order.
    Blocks,
}

impl Pane {
    pub(super) const ALL: [Self; 4] = [Self::Overview, Self::Pagesets, Self::Counters, Self::Blocks];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Pagesets => "Pagesets",
            Self::Counters => "Counters",
            Self::Blocks => "Blocks",
        }
    }

    /// Returns the pane that is `steps` after this one.
    pub(super) fn after(self, steps: usize) -> Self {
        Self::ALL[(self as usize + steps) % Self::ALL.len()]
    }
}

/// Intervals that keys can choose, in milliseconds.
const INTERVALS: [u64; 10] = [100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000, 3_600_000];

/// The selected row of a table, and its order.
#[derive(Clone, Copy, Debug)]
pub(super) struct TableState {
    pub(super) selected: usize,
    /// The first visible row.
    pub(super) offset: usize,
    pub(super) sort: Sort,
}

impl TableState {
    const NEW: Self = Self { selected: 0, offset: 0, sort: Sort::BY_NAME };
}

/// What lies over the panes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Overlay {
    None,
    /// The help, scrolled by some lines.
    Help(usize),
    /// The input of a node list, and why it was refused.
    Filter {
        text: String,
        refused: Option<String>,
    },
}

/// What a click does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Target {
    Tab(Pane),
    Help,
    /// The head of a column.
    Head(usize),
    /// A row of the table.
    Row(usize),
    /// The first visible cell in a heat map row; each cell has `width` columns.
    Cells {
        row: usize,
        first: usize,
        width: u16,
    },
}

/// What the last drawing placed where.
#[derive(Clone, Default, Debug)]
pub struct Drawn {
    pub(super) targets: Vec<(Rect, Target)>,
    /// Rows of the table or heat map, and how many of them are visible.
    pub(super) rows: usize,
    pub(super) page: usize,
    /// The first visible row and column.
    pub(super) offset: usize,
    pub(super) first_column: usize,
    /// Columns that can be chosen or scrolled.
    pub(super) columns: usize,
    /// Columns by which the table can be sorted, in the order of keys.
    pub(super) sortable: Vec<usize>,
    /// Size at which all rows and columns are visible, and the most important charts.
    pub(super) needs: (u16, u16),
    /// Parts of which some are not visible: how many are visible, how many there are, and what they are.
    pub(super) cut: Vec<(usize, usize, &'static str)>,
    /// The largest scroll position of the help.
    pub(super) help_end: usize,
}

impl Drawn {
    /// Takes how many of some parts are visible.
    pub(super) fn shows(&mut self, visible: usize, all: usize, name: &'static str) {
        if visible < all {
            self.cut.push((visible, all, name));
        }
    }
}

/// The state of the screen.
#[derive(Debug)]
pub struct App {
    pub(super) colours: Colours,
    pub(super) time_zone: TimeZone,
    pub(super) interval: Duration,
    pub(super) pane: Pane,
    /// The reading that is shown, of all nodes.
    base: Reading,
    /// The part of it that the filter selects.
    pub(super) shown: Reading,
    /// The newest reading while the screen is paused.
    waiting: Option<Reading>,
    pub(super) is_paused: bool,
    /// The nodes of the filter; empty for all.
    pub(super) nodes: Vec<u64>,
    pub(super) overlay: Overlay,
    pub(super) overview: TableState,
    pub(super) counters: TableState,
    pub(super) blocks: TableState,
    /// First visible order in the table of blocks.
    pub(super) first_order: usize,
    pub(super) types: Types,
    pub(super) heat: Heat,
    /// Time on the clock of the loop, now and when the newest reading came.
    now: Duration,
    received: Duration,
    pub(super) drawn: Drawn,
}

impl App {
    /// Creates the state with a first reading, for a filter of nodes that exist.
    #[must_use]
    pub fn new(
        first: Reading,
        nodes: Vec<u64>,
        interval: Duration,
        colours: Colours,
        time_zone: TimeZone,
    ) -> Self {
        Self {
            colours,
            time_zone,
            interval,
            pane: Pane::Overview,
            shown: first.only(&nodes),
            base: first,
            waiting: None,
            is_paused: false,
            nodes,
            overlay: Overlay::None,
            overview: TableState::NEW,
            counters: TableState::NEW,
            blocks: TableState::NEW,
            first_order: 0,
            types: Types::Shown,
            heat: Heat::default(),
            now: Duration::ZERO,
            received: Duration::ZERO,
            drawn: Drawn::default(),
        }
    }

    /// Shows a new reading, or keeps it until the pause ends.
    pub fn take(&mut self, reading: Reading) {
        if reading.problem.is_none() {
            self.received = self.now;
        }
        if self.is_paused {
            self.waiting = Some(reading);
            return;
        }
        self.base = reading;
        self.filter();
    }

    /// Sets the time since the start.
    pub const fn is_at(&mut self, now: Duration) {
        self.now = now;
    }

    /// Takes what a drawing placed where.
    pub fn drew(&mut self, drawn: Drawn) {
        match self.pane {
            Pane::Pagesets => self.heat.drew(&drawn),
            _ => {
                let state = self.table_mut();
                state.offset = drawn.offset;
                state.selected = state.selected.min(drawn.rows.saturating_sub(1));
            }
        }
        self.first_order = match self.pane {
            Pane::Blocks => drawn.first_column,
            _ => self.first_order,
        };
        self.drawn = drawn;
    }

    /// Opens a pane.
    pub const fn open(&mut self, pane: Pane) {
        self.pane = pane;
    }

    /// Returns the time since the newest reading, if that is longer than usual.
    pub(super) fn overdue(&self) -> Option<Duration> {
        let age = self.now.saturating_sub(self.received);
        (age > self.interval + Duration::from_millis(1500)).then_some(age)
    }

    pub(super) fn is_overdue(&self) -> bool {
        self.overdue().is_some()
    }

    /// Returns the state of the table in the open pane.
    pub(super) const fn table(&self) -> &TableState {
        match self.pane {
            Pane::Counters => &self.counters,
            Pane::Blocks => &self.blocks,
            Pane::Overview | Pane::Pagesets => &self.overview,
        }
    }

    pub(super) const fn table_mut(&mut self) -> &mut TableState {
        match self.pane {
            Pane::Counters => &mut self.counters,
            Pane::Blocks => &mut self.blocks,
            Pane::Overview | Pane::Pagesets => &mut self.overview,
        }
    }

    /// Shows only some nodes, or all if there are none in `nodes`.
    pub(super) fn show_nodes(&mut self, nodes: Vec<u64>) {
        self.nodes = nodes;
        self.filter();
    }

    fn filter(&mut self) {
        self.shown = self.base.only(&self.nodes);
    }

    /// Returns the ids of all nodes.
    pub(super) fn all_nodes(&self) -> Vec<u64> {
        self.base.nodes()
    }

    /// Returns the nodes of the filter that the source no longer has.
    pub(super) fn gone_nodes(&self) -> Vec<u64> {
        let existing = self.all_nodes();
        self.nodes.iter().copied().filter(|node| !existing.contains(node)).collect()
    }

    /// Pauses the screen, or shows the newest reading again.
    pub(super) fn toggle_pause(&mut self) {
        self.is_paused = !self.is_paused;
        if let Some(reading) = self.waiting.take() {
            self.base = reading;
            self.filter();
        }
    }

    /// Chooses the next shorter or longer interval.
    pub(super) fn change_interval(&mut self, change: Change) -> Duration {
        let now = self.interval;
        let mut steps = INTERVALS.map(Duration::from_millis).into_iter();
        let next = match change {
            Change::Longer => steps.find(|&step| step > now),
            Change::Shorter => steps.rfind(|&step| step < now),
        };
        self.interval = next.unwrap_or(now);
        self.interval
    }

    /// Formats a time of the sample as hours, minutes and seconds.
    pub(super) fn clock(&self, unix_ms: u64) -> String {
        let time = i64::try_from(unix_ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
        time.map_or_else(
            || "--:--:--".to_owned(),
            |time| time.to_zoned(self.time_zone.clone()).strftime("%H:%M:%S").to_string(),
        )
    }
}

/// A change of the interval.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    Longer,
    Shorter,
}

/// Parses a list of nodes such as `0,2-3`, all of which must exist. An empty text is an empty list.
///
/// # Errors
/// What is wrong, and which nodes exist.
pub fn parse_nodes(text: &str, existing: &[u64]) -> Result<Vec<u64>, String> {
    let mut nodes = Vec::new();
    for part in ids::parts(text).filter(|part| !part.is_err_and(|part| part.trim().is_empty())) {
        let wrong = |part: &str| format!("`{}` is not a list such as 0,2-3", units::safe(part));
        let (first, last) = part.map_err(|part| wrong(part.trim()))?;
        if first > last {
            return Err(wrong(&format!("{first}-{last}")));
        }
        for end in [first, last] {
            check_node(end, existing)?;
        }
        nodes.extend(existing.iter().copied().filter(|node| (first..=last).contains(node)));
    }
    nodes.sort_unstable();
    nodes.dedup();
    Ok(nodes)
}

/// Checks that a node exists.
///
/// # Errors
/// Which nodes exist.
pub fn check_node(node: u64, existing: &[u64]) -> Result<(), String> {
    match existing.contains(&node) {
        true => Ok(()),
        false => Err(format!(
            "node {node} does not exist; the nodes are {}",
            ids::format(existing.iter().copied())
        )),
    }
}

//! What keys and the mouse do.

use std::time::Duration;

use crossterm::event::{
    KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};
use ratatui_core::layout::Position;
use zonal_machine::ids;

use super::app::{App, Change, Overlay, Pane, Target, parse_nodes};
use super::rows::{Sort, Types, memory_rows};

/// What the loop must do after an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Nothing has changed.
    Nothing,
    /// Draw what has changed.
    Draw,
    /// Draw everything again.
    Redraw,
    /// End with success.
    Quit,
    /// End as Ctrl-C does.
    Interrupt,
    /// Leave the terminal and stop, as Ctrl-Z does.
    Suspend,
    /// Read the source at this interval.
    Interval(Duration),
}

/// Rows or columns by which the cursor moves.
const WHEEL: isize = 3;

impl App {
    /// Handles a key.
    pub fn key(&mut self, key: KeyEvent) -> Action {
        if key.kind == KeyEventKind::Release {
            return Action::Nothing;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Action::Interrupt,
                KeyCode::Char('z') => Action::Suspend,
                KeyCode::Char('l') => Action::Redraw,
                _ => Action::Nothing,
            };
        }
        match &self.overlay {
            Overlay::None => self.pane_key(key.code),
            Overlay::Help(at) => self.help_key(key.code, *at),
            Overlay::Filter { .. } => self.filter_key(key.code),
        }
    }

    fn pane_key(&mut self, code: KeyCode) -> Action {
        let page = self.drawn.page.max(1) as isize;
        match code {
            KeyCode::Char('q') | KeyCode::Esc => return Action::Quit,
            KeyCode::Char('?') | KeyCode::F(1) => self.overlay = Overlay::Help(0),
            KeyCode::Char('h') if !self.moves_sideways() => self.overlay = Overlay::Help(0),
            KeyCode::Tab => self.open(self.pane.after(1)),
            KeyCode::BackTab => self.open(self.pane.after(Pane::ALL.len() - 1)),
            KeyCode::Char(digit @ '1'..='4') => self.open(Pane::ALL[digit as usize - '1' as usize]),
            KeyCode::Up | KeyCode::Char('k') => self.move_by(-1),
            KeyCode::Down | KeyCode::Char('j') => self.move_by(1),
            KeyCode::PageUp => self.move_by(-page),
            KeyCode::PageDown => self.move_by(page),
            KeyCode::Home | KeyCode::Char('g') => self.move_by(isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.move_by(isize::MAX),
            KeyCode::Left | KeyCode::Char('h') => self.move_sideways(-1),
            KeyCode::Right | KeyCode::Char('l') => self.move_sideways(1),
            KeyCode::Char('s') => self.sort_by_next(),
            KeyCode::Char('S' | 'r') => {
                let sort = &mut self.table_mut().sort;
                sort.direction = sort.direction.reversed();
            }
            KeyCode::Char('n' | '/') => {
                let text = ids::format(self.nodes.iter().copied());
                self.overlay = Overlay::Filter { text, refused: None };
            }
            KeyCode::Enter => return self.only_selected_node(),
            KeyCode::Char('p' | ' ') => self.toggle_pause(),
            KeyCode::Char('+' | '=') => return Action::Interval(self.change_interval(Change::Longer)),
            KeyCode::Char('-' | '_') => return Action::Interval(self.change_interval(Change::Shorter)),
            KeyCode::Char('m') => self.heat.metric = self.heat.metric.next(),
            KeyCode::Char('a') => self.heat.is_grouped = !self.heat.is_grouped,
            KeyCode::Char('t') => {
                self.types = match self.types {
                    Types::Shown => Types::Hidden,
                    Types::Hidden => Types::Shown,
                };
            }
            _ => return Action::Nothing,
        }
        Action::Draw
    }

    fn help_key(&mut self, code: KeyCode, at: usize) -> Action {
        let page = self.drawn.page.max(1) as isize;
        let steps = match code {
            KeyCode::Up | KeyCode::Char('k') => -1,
            KeyCode::Down | KeyCode::Char('j') => 1,
            KeyCode::PageUp => -page,
            KeyCode::PageDown | KeyCode::Char(' ') => page,
            KeyCode::Home => isize::MIN,
            KeyCode::End => isize::MAX,
            KeyCode::Char('q' | '?' | 'h') | KeyCode::Esc | KeyCode::Enter | KeyCode::F(1) => {
                self.overlay = Overlay::None;
                return Action::Draw;
            }
            _ => return Action::Nothing,
        };
        self.overlay = Overlay::Help(at.saturating_add_signed(steps).min(self.drawn.help_end));
        Action::Draw
    }

    fn filter_key(&mut self, code: KeyCode) -> Action {
        let existing = self.all_nodes();
        let Overlay::Filter { text, refused } = &mut self.overlay else { return Action::Nothing };
        match code {
            KeyCode::Esc => self.overlay = Overlay::None,
            KeyCode::Enter => match parse_nodes(text, &existing) {
                Ok(nodes) => {
                    self.overlay = Overlay::None;
                    self.show_nodes(nodes);
                }
                Err(why) => *refused = Some(why),
            },
            KeyCode::Backspace => {
                text.pop();
                *refused = None;
            }
            KeyCode::Char(letter) if letter.is_ascii_graphic() && text.len() < 200 => {
                text.push(letter);
                *refused = None;
            }
            _ => return Action::Nothing,
        }
        Action::Draw
    }

    /// Shows only the node of the selected row, or all nodes again.
    fn only_selected_node(&mut self) -> Action {
        if self.pane != Pane::Overview {
            return Action::Nothing;
        }
        let selected = self.overview.selected;
        let rows = memory_rows(&self.shown, self.overview.sort);
        let nodes = match rows.get(selected) {
            Some(row) if self.nodes.is_empty() => vec![row.of_node],
            _ => Vec::new(),
        };
        self.show_nodes(nodes);
        Action::Draw
    }

    /// Whether the open pane has columns to move over.
    pub(super) fn moves_sideways(&self) -> bool {
        matches!(self.pane, Pane::Pagesets | Pane::Blocks)
    }

    fn move_by(&mut self, steps: isize) {
        let end = self.drawn.rows.saturating_sub(1);
        let row = match self.pane {
            Pane::Pagesets => &mut self.heat.row,
            _ => &mut self.table_mut().selected,
        };
        *row = row.saturating_add_signed(steps).min(end);
    }

    fn move_sideways(&mut self, steps: isize) {
        let end = self.drawn.columns.saturating_sub(1);
        match self.pane {
            Pane::Pagesets => self.heat.column = self.heat.column.saturating_add_signed(steps).min(end),
            Pane::Blocks => self.first_order = self.first_order.saturating_add_signed(steps).min(end),
            Pane::Overview | Pane::Counters => {}
        }
    }

    fn sort_by_next(&mut self) {
        if self.pane == Pane::Pagesets {
            return;
        }
        let columns = &self.drawn.sortable;
        let Some(&first) = columns.first() else { return };
        let now = self.table().sort.column;
        let at = columns.iter().position(|&column| column == now);
        let next = at.and_then(|at| columns.get(at + 1)).copied().unwrap_or(first);
        self.table_mut().sort = Sort::by(next);
    }

    /// Handles an event of the mouse.
    pub fn mouse(&mut self, event: MouseEvent) -> Action {
        let steps = match event.kind {
            MouseEventKind::ScrollUp => Some(-WHEEL),
            MouseEventKind::ScrollDown => Some(WHEEL),
            _ => None,
        };
        match (event.kind, &self.overlay) {
            (_, Overlay::Help(at)) => {
                let Some(steps) = steps else { return Action::Nothing };
                self.overlay = Overlay::Help(at.saturating_add_signed(steps).min(self.drawn.help_end));
            }
            (_, Overlay::Filter { .. }) => return Action::Nothing,
            (MouseEventKind::ScrollLeft, _) => self.move_sideways(-WHEEL),
            (MouseEventKind::ScrollRight, _) => self.move_sideways(WHEEL),
            (MouseEventKind::Down(MouseButton::Left), _) => return self.click(event),
            (MouseEventKind::Moved | MouseEventKind::Drag(_), _) => return self.point(event),
            _ => match steps {
                Some(steps) => self.move_by(steps),
                None => return Action::Nothing,
            },
        }
        Action::Draw
    }

    fn target(&self, event: MouseEvent) -> Option<(u16, Target)> {
        let at = Position::new(event.column, event.row);
        let (area, target) = self.drawn.targets.iter().find(|(area, _)| area.contains(at))?;
        Some((event.column - area.x, *target))
    }

    fn click(&mut self, event: MouseEvent) -> Action {
        match self.target(event) {
            None => return Action::Nothing,
            Some((_, Target::Tab(pane))) => self.open(pane),
            Some((_, Target::Help)) => self.overlay = Overlay::Help(0),
            Some((_, Target::Row(row))) => self.table_mut().selected = row,
            Some((_, Target::Cells { .. })) => return self.point(event),
            Some((_, Target::Head(column))) => {
                let sort = &mut self.table_mut().sort;
                match sort.column == column {
                    true => sort.direction = sort.direction.reversed(),
                    false => *sort = Sort::by(column),
                }
            }
        }
        Action::Draw
    }

    /// Moves the cursor of the heat map to the cell under the mouse.
    fn point(&mut self, event: MouseEvent) -> Action {
        let Some((x, Target::Cells { row, first, width })) = self.target(event) else {
            return Action::Nothing;
        };
        let column = (first + usize::from(x / width.max(1))).min(self.drawn.columns.saturating_sub(1));
        if (self.heat.row, self.heat.column) == (row, column) {
            return Action::Nothing;
        }
        (self.heat.row, self.heat.column) = (row, column);
        Action::Draw
    }
}

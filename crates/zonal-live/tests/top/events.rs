//! Checks what keys, the mouse, readings and time change.

use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEventKind};
use zonal_live::top::{Action, Colours};
use zonal_live::{Sample, SimulatedSource, Source, SourceError};

use super::machine::Machine;
use super::screen::Screen;

const CLICK: MouseEventKind = MouseEventKind::Down(MouseButton::Left);

fn screen() -> Screen {
    Screen::new(Machine::new(), 40, (120, 40), Colours::On)
}

/// Returns the first word of each table row.
fn rows(screen: &Screen) -> Vec<String> {
    let text = screen.text();
    let rows = text.lines().skip_while(|line| !line.starts_with("NODE ZONE")).skip(1);
    let rows = rows.take_while(|line| !line.starts_with('─'));
    let name = |line: &str| line.chars().take(12).collect::<String>().trim().to_owned();
    rows.map(name).filter(|name| !name.is_empty()).collect()
}

#[test]
fn keys_that_end_or_stop() {
    let mut screen = screen();
    assert_eq!(screen.key(KeyCode::Char('q')), Action::Quit);
    assert_eq!(screen.key(KeyCode::Esc), Action::Quit);
    for (letter, action) in [('c', Action::Interrupt), ('z', Action::Suspend), ('l', Action::Redraw)] {
        let key = KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL);
        assert_eq!(screen.app.key(key), action);
    }
    assert_eq!(screen.key(KeyCode::Char('y')), Action::Nothing);
    // Over the panes, the same keys close what is open.
    screen.keys("?");
    assert_eq!(screen.key(KeyCode::Char('q')), Action::Draw);
    screen.keys("n");
    assert_eq!(screen.key(KeyCode::Esc), Action::Draw);
    assert_eq!(screen.key(KeyCode::Esc), Action::Quit);
}

#[test]
fn keys_sort_nodes_with_their_zones() {
    let mut screen = screen();
    let by_node = ["0 (all)", "DMA", "DMA32", "Normal", "1 Normal", "2 (none)"];
    assert_eq!(rows(&screen), by_node);
    screen.keys("S");
    assert_eq!(rows(&screen), ["2 (none)", "1 Normal", "0 (all)", "Normal", "DMA32", "DMA"]);
    // CPUs, memory, free, and the state: scarce memory first.
    screen.keys("ssssS");
    assert!(screen.text().contains("high▲") || screen.text().contains("h▲"), "{}", screen.text());
    screen.keys("S");
    assert_eq!(rows(&screen)[0], "1 Normal");
}

#[test]
fn a_click_on_a_head_sorts_and_another_reverses() {
    let mut screen = screen();
    let (x, y) = screen.find("MEMORY");
    screen.mouse(CLICK, x, y);
    assert!(screen.text().contains("MEMORY▼"));
    assert_eq!(rows(&screen)[..3], ["1 Normal", "0 (all)", "Normal"].map(String::from)[..3]);
    screen.mouse(CLICK, x, y);
    assert!(screen.text().contains("MEMORY▲"));
    let (x, y) = screen.find("Blocks");
    screen.mouse(CLICK, x, y);
    assert!(screen.text().contains(">= 2M"));
    let (x, y) = screen.find("? help");
    screen.mouse(CLICK, x, y);
    assert!(screen.text().contains("this help"));
}

#[test]
fn the_filter_accepts_nodes_that_exist() {
    let mut screen = screen();
    screen.keys("/1-3");
    screen.key(KeyCode::Enter);
    assert!(screen.text().contains("node 3 does not exist; the nodes are 0-2"));
    (0..3).for_each(|_| {
        screen.key(KeyCode::Backspace);
    });
    screen.keys("x");
    screen.key(KeyCode::Enter);
    assert!(screen.text().contains("`x` is not a list such as 0,2-3"));
    screen.key(KeyCode::Backspace);
    screen.keys("1");
    screen.key(KeyCode::Enter);
    assert_eq!(rows(&screen), ["1 Normal"]);
    assert!(screen.text().contains("node 1  every 1 s"));
    // Enter shows all nodes again, and then only that of the selected row.
    screen.key(KeyCode::Enter);
    assert_eq!(rows(&screen).len(), 6);
    screen.key(KeyCode::Down);
    screen.key(KeyCode::Enter);
    assert_eq!(rows(&screen), ["0 (all)", "DMA", "DMA32", "Normal"]);
}

#[test]
fn a_pause_keeps_the_screen_and_then_shows_the_newest_reading() {
    let mut screen = screen();
    assert!(screen.text().contains("every 1 s  22:14:00"));
    screen.keys("p");
    let paused = screen.text();
    assert!(paused.contains("paused at 22:14:00; p continues"));
    (0..5).for_each(|_| screen.tick());
    screen.draw();
    assert_eq!(screen.text(), paused);
    screen.keys("p");
    assert!(screen.text().contains("every 1 s  22:14:05"));
}

#[test]
fn keys_change_the_interval_within_limits() {
    let mut screen = screen();
    let ms = |action| match action {
        Action::Interval(interval) => interval.as_millis(),
        other => panic!("{other:?}"),
    };
    assert_eq!(ms(screen.key(KeyCode::Char('+'))), 2000);
    let shorter = [1000, 500, 200, 100, 100];
    assert_eq!(shorter.map(|_| ms(screen.key(KeyCode::Char('-')))), shorter);
    assert!(screen.text().contains("every 0.1 s"));
}

#[test]
fn a_silent_source_is_visible_and_recovers() {
    let mut screen = screen();
    screen.wait(2);
    assert!(!screen.text().contains("no answer"));
    screen.wait(3);
    assert!(screen.text().contains("no answer since 22:14:00, 5 seconds ago; waiting"), "{}", screen.text());
    screen.tick();
    screen.draw();
    assert!(!screen.text().contains("no answer"));
    let source = Machine { failures: 5..8, ..Machine::new() };
    let mut screen = Screen::new(source, 6, (120, 40), Colours::On);
    let problem =
        "no answer since 22:13:24: no pool is published at /run/cache.zonal: the program that created it";
    assert!(screen.text().contains(problem), "{}", screen.text());
    assert_eq!(rows(&screen).len(), 6, "the last sample stays");
    (0..2).for_each(|_| screen.tick());
    screen.draw();
    assert!(!screen.text().contains("no answer") && screen.text().contains("22:13:28"));
}

#[test]
fn the_cursor_of_the_heat_map_follows_keys_and_the_mouse() {
    let mut screen = Screen::new(SimulatedSource::new(64, 4), 3, (120, 40), Colours::On);
    screen.keys("2");
    assert!(screen.text().contains("node 0 Normal, CPUs 0-2: "), "{}", screen.text());
    screen.keys("jjl");
    assert!(screen.text().contains("node 2 Normal, CPUs 3-5: "));
    let (_, y) = screen.find("   9 Normal");
    assert_eq!(screen.mouse(MouseEventKind::Moved, 21, y), Action::Draw);
    assert!(screen.text().contains("node 9 Normal, CPUs 21-23: "));
    assert_eq!(screen.mouse(MouseEventKind::Moved, 21, y), Action::Nothing, "the same cell");
    screen.key(KeyCode::End);
    assert!(screen.text().contains("  63 Normal"));
    screen.keys("a");
    (0..300).for_each(|_| screen.keys("l"));
    assert!(screen.text().contains("node 63 Normal, CPU 255: "));
    screen.keys("m");
    assert!(screen.text().contains("refills/s") && screen.text().contains("9: 8/s"));
    screen.mouse(MouseEventKind::ScrollUp, 20, y);
    assert!(screen.text().contains("node 60 Normal"));
}

#[test]
fn rows_scroll_by_lines_pages_and_to_the_ends() {
    let mut screen = Screen::new(SimulatedSource::new(64, 1), 3, (80, 12), Colours::On);
    let shows = |screen: &Screen, node: u64| rows(screen).contains(&format!("{node} Normal"));
    assert!(shows(&screen, 0) && !shows(&screen, 20));
    screen.key(KeyCode::PageDown);
    screen.key(KeyCode::PageDown);
    assert!(!shows(&screen, 0));
    screen.key(KeyCode::End);
    assert!(shows(&screen, 63));
    screen.key(KeyCode::Up);
    assert!(shows(&screen, 63), "the page moves only when the selected row leaves it");
    screen.key(KeyCode::Home);
    assert!(shows(&screen, 0));
    screen.mouse(MouseEventKind::ScrollDown, 1, 5);
    screen.key(KeyCode::Enter);
    assert!(shows(&screen, 3) && rows(&screen).len() == 1);
}

#[test]
fn titles_cannot_control_the_terminal() {
    struct Named;
    impl Source for Named {
        fn title(&self) -> String {
            "the pool at /run/\u{1b}]0;x\u{7}漢字\n".to_owned()
        }
        fn read(&mut self) -> Result<Sample, SourceError> {
            let mut sample = SimulatedSource::new(1, 1).read()?;
            sample.program = Some("a\u{1b}[2Jb\u{202e}".repeat(3));
            sample.zones[0].kind = "No\u{1b}[31mr漢".to_owned();
            Ok(sample)
        }
    }
    for width in [33, 40, 61, 120] {
        let mut screen = Screen::new(Named, 1, (width, 20), Colours::On);
        for pane in ["1", "2", "3", "4"] {
            screen.keys(pane);
            let is_safe =
                |symbol: &str| !symbol.chars().any(char::is_control) && !symbol.contains('\u{202e}');
            assert!(screen.buffer().content.iter().all(|cell| is_safe(cell.symbol())));
        }
    }
    let screen = Screen::new(Named, 1, (160, 20), Colours::On);
    assert!(
        screen.text().contains("a\\u001b[2Jb\\u202e") && screen.text().contains("every 1 s"),
        "{}",
        screen.text()
    );
}

#[test]
fn intervals_of_ten_seconds_are_not_overdue() {
    let mut screen = screen();
    (0..3).for_each(|_| {
        screen.key(KeyCode::Char('+'));
    });
    assert!(screen.text().contains("every 10 s"));
    screen.wait(11);
    assert!(!screen.text().contains("no answer"));
    screen.app.is_at(Duration::from_secs(1000));
    screen.draw();
    assert!(screen.text().contains("no answer"));
}

/// A machine whose last node has gone after the first reading.
struct Shrinking(Machine);

impl Source for Shrinking {
    fn title(&self) -> String {
        self.0.title()
    }

    fn read(&mut self) -> Result<Sample, SourceError> {
        let mut sample = self.0.read()?;
        if self.0.tick > 1 {
            sample.nodes.truncate(1);
            sample.pagesets.retain(|pageset| pageset.zone < 3);
            sample.zones.truncate(3);
        }
        Ok(sample)
    }
}

#[test]
fn nodes_of_the_filter_that_have_gone_are_named() {
    let mut screen = Screen::new(Shrinking(Machine::new()), 1, (80, 24), Colours::On);
    screen.keys("n1");
    screen.key(KeyCode::Enter);
    assert!(!screen.text().contains("does not exist"));
    screen.tick();
    for pane in ["1", "2", "3", "4"] {
        screen.keys(pane);
        let text = screen.text();
        assert!(text.contains("node 1 does not exist any more; n chooses others"), "{text}");
        assert!(!text.contains("This source"), "{text}");
    }
    screen.keys("n");
    screen.key(KeyCode::Backspace);
    screen.key(KeyCode::Enter);
    assert!(!screen.text().contains("does not exist"));
}

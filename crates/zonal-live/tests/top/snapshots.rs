//! Compares text and styles of screens with files in `snapshots`, at three sizes.

use crossterm::event::KeyCode;
use zonal_live::top::Colours;
use zonal_live::{SimulatedSource, Source};

use super::machine::Machine;
use super::screen::Screen;

const SIZES: [(u16, u16); 3] = [(120, 40), (80, 24), (40, 10)];
const PANES: [(char, &str); 4] = [('1', "overview"), ('2', "pagesets"), ('3', "counters"), ('4', "blocks")];

fn check(name: &str, screen: &Screen) {
    insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::assert_snapshot!(name, screen.with_styles());
    });
}

fn check_panes(name: &str, colours: Colours, source: fn() -> Box<dyn Source>, sizes: &[(u16, u16)]) {
    for &(width, height) in sizes {
        let mut screen = Screen::new(Boxed(source()), 40, (width, height), colours);
        for (key, pane) in PANES {
            screen.keys(&key.to_string());
            check(&format!("{name}-{pane}-{width}x{height}"), &screen);
        }
    }
}

struct Boxed(Box<dyn Source>);

impl Source for Boxed {
    fn title(&self) -> String {
        self.0.title()
    }

    fn read(&mut self) -> Result<zonal_live::Sample, zonal_live::SourceError> {
        self.0.read()
    }
}

#[test]
fn all_panes_at_all_sizes() {
    check_panes("machine", Colours::On, || Box::new(Machine::new()), &SIZES);
}

#[test]
fn all_panes_without_colours() {
    check_panes("plain", Colours::Off, || Box::new(Machine::new()), &SIZES[1..2]);
}

#[test]
fn many_zones_and_cpus() {
    check_panes("large", Colours::On, || Box::new(SimulatedSource::new(64, 2)), &SIZES[1..2]);
}

#[test]
fn a_problem_at_all_sizes() {
    for (width, height) in SIZES {
        let source = Machine { failures: 38..60, ..Machine::new() };
        let mut screen = Screen::new(source, 45, (width, height), Colours::On);
        screen.keys("p");
        check(&format!("problem-{width}x{height}"), &screen);
    }
}

#[test]
fn overlays_and_small_terminals() {
    let mut screen = Screen::new(Machine::new(), 40, (80, 24), Colours::On);
    screen.keys("?");
    check("help-80x24", &screen);
    screen.key(KeyCode::Esc);
    screen.keys("n0,7");
    screen.key(KeyCode::Enter);
    check("filter-refused-80x24", &screen);
    screen.key(KeyCode::Backspace);
    screen.key(KeyCode::Backspace);
    screen.key(KeyCode::Enter);
    check("filter-80x24", &screen);
    screen.resize(31, 6);
    check("too-small-31x6", &screen);
}

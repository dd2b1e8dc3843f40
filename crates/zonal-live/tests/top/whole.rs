//! Checks that each pane shows everything, or says how much of it.

use zonal_live::top::Colours;
use zonal_live::{Sample, SimulatedSource, Source, SourceError};
use zonal_machine::state::Owner;

use super::screen::Screen;

const NODES: usize = 128;
const CPUS: usize = 256;
const PROCESSES: usize = 40;
const SIZES: [(u16, u16); 7] = [(40, 10), (60, 12), (80, 24), (100, 60), (120, 40), (200, 100), (400, 250)];
const COUNTERS: [&str; 12] = [
    "hit",
    "miss",
    "foreign",
    "interleave_hit",
    "local",
    "other",
    "refills",
    "drains",
    "remote_drains",
    "background_reclaimed",
    "direct_stalls",
    "failures",
];

/// A large machine whose pool many processes share.
struct Large(SimulatedSource);

impl Source for Large {
    fn title(&self) -> String {
        "a pool".to_owned()
    }

    fn read(&mut self) -> Result<Sample, SourceError> {
        let mut sample = self.0.read()?;
        let owner =
            |process| Owner { process, pid: 7, name: Some("server".to_owned()), is_alive: true, held: 5 };
        sample.owners = (1..=PROCESSES as u64).map(owner).collect();
        Ok(sample)
    }
}

/// Parts of one kind: how many are visible, how many there are, and their name.
type Part = (usize, usize, &'static str);

fn rows(screen: &Screen) -> Part {
    let text = screen.text();
    let is_shown = |node: &usize| text.contains(&format!("\n{node:>4} Normal"));
    ((0..NODES).filter(is_shown).count(), NODES, "rows")
}

/// Returns the columns of a table, whose head contains these titles if they are visible.
fn columns(screen: &Screen, titles: &[&str]) -> Part {
    let text = screen.text();
    let head = text.lines().nth(2).unwrap().replace(">= 2M", "LARGE");
    (titles.iter().filter(|title| head.contains(**title)).count(), titles.len(), "columns")
}

fn overview(screen: &Screen) -> Vec<Part> {
    let processes = screen.text().matches(" process ").count();
    let titles =
        ["NODE", "CPUS", "MEM", " FREE ", " l", "STATE", "PAGES", "HITS", "MISSES", "FOREIGN", "60 s"];
    vec![rows(screen), (processes, PROCESSES, "processes"), columns(screen, &titles)]
}

fn pagesets(screen: &Screen) -> Vec<Part> {
    vec![rows(screen)]
}

/// Cells have one column, or more if all of them fit.
fn separate_pagesets(screen: &Screen) -> Vec<Part> {
    let width = usize::from(screen.buffer().area.width);
    let cells = width - 14 - if width < 70 { 0 } else { 10 };
    vec![rows(screen), (cells.min(CPUS), CPUS, "CPUs")]
}

fn counters(screen: &Screen) -> Vec<Part> {
    let text = screen.text();
    let is_shown = |name: &&&str| text.contains(&format!("\n{name:23}"));
    let rows = (COUNTERS.iter().filter(is_shown).count(), COUNTERS.len(), "rows");
    let titles = ["COUNTER", "/s", "TOTAL", "UNIT", "LAST 60 s", "MEANING"];
    let titles = if text.contains("PER SECOND ") {
        ["COUNTER", "PER", "TOTAL", "UNIT", "LAST 60 s", "MEANING"]
    } else {
        titles
    };
    vec![rows, columns(screen, &titles)]
}

fn blocks(screen: &Screen) -> Vec<Part> {
    let orders = [" 4K", " 8K", " 16K", " 32K", " 64K", " 128K", " 256K", " 512K", " 1M", " 2M ", " 4M"];
    let titles: Vec<&str> = ["NODE", "LARGE", " FREE"].into_iter().chain(orders).collect();
    vec![rows(screen), columns(screen, &titles)]
}

#[test]
fn what_is_not_visible_is_counted() {
    type Parts = fn(&Screen) -> Vec<Part>;
    let panes: [(&str, Parts); 5] =
        [("1", overview), ("2", pagesets), ("a", separate_pagesets), ("3", counters), ("4", blocks)];
    let source = Large(SimulatedSource::new(NODES as u64, (CPUS / NODES) as u64));
    let mut screen = Screen::new(source, 3, SIZES[0], Colours::Off);
    for (pane, parts) in panes {
        screen.keys(pane);
        for (width, height) in SIZES {
            screen.resize(width, height);
            let text = screen.text();
            let footer = text.lines().last().unwrap();
            for (visible, all, name) in parts(&screen) {
                let remarks = [format!("{visible} of {all} {name}"), format!("{visible}/{all} {name}")];
                let has_remark = remarks.iter().any(|remark| footer.contains(remark));
                assert_eq!(has_remark, visible < all, "{remarks:?} in pane {pane}:\n{text}");
            }
            let Some((before, _)) = footer.split_once(" shows all") else { continue };
            let mut sizes = before.rsplit(' ').filter_map(|word| word.parse::<u16>().ok());
            let (height, width) = (sizes.next().unwrap(), sizes.next().unwrap());
            screen.resize(width, height);
            let text = screen.text();
            let is_whole = parts(&screen).iter().all(|(visible, all, _)| visible == all);
            assert!(is_whole && !text.contains(" shows "), "{width} x {height} in pane {pane}:\n{text}");
        }
    }
}

#[test]
fn charts_that_are_not_visible_are_counted() {
    for (size, shown) in [((80, 24), "; 4 of 8 charts "), ((40, 20), "Last 60 s; 3 of 8 charts ")] {
        let screen = Screen::new(SimulatedSource::new(2, 2), 40, size, Colours::Off);
        assert!(screen.text().contains(shown), "{}", screen.text());
    }
    let screen = Screen::new(SimulatedSource::new(2, 2), 40, (120, 60), Colours::Off);
    assert!(!screen.text().contains(" charts "), "{}", screen.text());
}

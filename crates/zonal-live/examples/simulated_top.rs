//! Shows the live view of a simulated machine with 64 zones and 128 CPUs, and reports what it costs.
//!
//! In a terminal it shows the view itself, until a key ends it. Elsewhere, or with `--short`, it reads and draws 1000
//! times (with `--short` 10 times) without a terminal and prints the time of each.

use std::error::Error;
use std::io::{IsTerminal, stdout};
use std::time::{Duration, Instant};

use jiff::tz::TimeZone;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use zonal_live::top::{self, App, Colours, Options, Pane, Reading, draw};
use zonal_live::{SimulatedSource, Watch};

const INTERVAL: Duration = Duration::from_secs(1);

fn main() -> Result<(), Box<dyn Error>> {
    let is_short = std::env::args().any(|argument| argument == "--short");
    let mut watch = Watch::start(Box::new(SimulatedSource::new(64, 2)))?;
    if stdout().is_terminal() && !is_short {
        top::run(watch, Options { interval: INTERVAL, nodes: Vec::new(), colours: Colours::On })?;
        return Ok(());
    }
    let rounds: u32 = if is_short { 10 } else { 1000 };
    let mut buffer = Buffer::empty(Rect::new(0, 0, 160, 50));
    let mut app = App::new(Reading::of(&watch), Vec::new(), INTERVAL, Colours::On, TimeZone::UTC);
    for pane in [Pane::Overview, Pane::Pagesets, Pane::Counters, Pane::Blocks] {
        app.open(pane);
        let (mut reading, mut drawing) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..rounds {
            let start = Instant::now();
            watch.tick();
            app.take(Reading::of(&watch));
            let read = Instant::now();
            buffer.reset();
            let drawn = draw(&mut buffer, &app);
            app.drew(drawn);
            reading += read - start;
            drawing += read.elapsed();
        }
        println!("{pane:?}: {:?} to read, {:?} to draw", reading / rounds, drawing / rounds);
    }
    Ok(())
}

//! Names from a socket that try to become markup, updates or series.

use zonal_live::{Sample, SimulatedSource, Source, SourceError};

use crate::client::{Running, Step, options};
use crate::open_metrics;

const NAME: &str = "</script><img src=x onerror=alert(1)>\n\nevent: evil\ndata: \"}\\ \u{202e}";

struct Hostile(SimulatedSource);

impl Source for Hostile {
    fn title(&self) -> String {
        NAME.to_owned()
    }

    fn read(&mut self) -> Result<Sample, SourceError> {
        let mut sample = self.0.read()?;
        sample.program = Some(NAME.to_owned());
        sample.missing = vec![NAME.to_owned(); 1000];
        sample.nodes[0].cpus = Some(NAME.to_owned());
        sample.zones[0].kind = NAME.to_owned();
        sample.zones[0].free_blocks = vec![u64::MAX; 500];
        sample.zones[1].managed = u64::MAX;
        sample.zones[1].free = u64::MAX;
        sample.zones[1].min = u64::MAX - 1;
        sample.pagesets[0].high = 0;
        sample.pagesets[0].count = u64::MAX;
        sample.pagesets[1].zone = usize::MAX;
        sample.page_bytes = u64::MAX;
        Ok(sample)
    }
}

#[test]
fn names_are_shown_as_text() {
    let server = Running::of(Box::new(Hostile(SimulatedSource::new(2, 2))), options());
    server.step(Step::Succeed);
    let page = server.get("/").body;
    assert!(page.contains("&lt;/script&gt;&lt;img src=x") && page.contains("\\u202e"));
    assert!(!page.contains("<img") && !page.contains('\u{202e}'));
    assert_eq!(page.matches("</script>").count(), 1);
    assert!(page.len() < 300 << 10, "{}", page.len());
    assert_eq!(server.get("/snapshot.json").json()["title"], NAME);
    let series = open_metrics::parse(&server.get("/metrics").body).unwrap();
    let shown = zonal_machine::Excerpt::name(NAME).to_string();
    assert!(series.iter().any(|(name, labels)| {
        name == "zonal_free_bytes" && labels.iter().any(|(key, value)| key == "zone" && *value == shown)
    }));
    let events = server.updates();
    assert_eq!(events.status, 200);
    // The connection carries updates only: each line is a field of an event that the server wrote.
    let events = events.lines(200);
    assert!(events.iter().all(|line| line != "event: evil"), "{events:?}");
}

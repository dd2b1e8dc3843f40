//! The HTML page. Related files: `table.rs` and `chart.rs` have its larger parts, and `page.css` has its styles.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::chart::Chart;
use crate::color;
use crate::heat::HeatMap;
use crate::table::{Table, Tone};
use crate::text::printable;

/// Styles of the page.
const STYLE: &str = include_str!("page.css");
/// Content security policy that prevents the page from loading anything.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";
/// Attributes of charts that [`Section::fragment`] leaves out.
const DEFAULT_ATTRIBUTES: [&str; 3] =
    [" opacity=\"1\"", " font-family=\"sans-serif\"", " text-anchor=\"start\""];
/// Maximum length of a name made by [`slug`].
const NAME_MAX: usize = 80;

/// A page.
#[derive(Clone, Debug)]
pub struct Page<'a> {
    /// Title.
    pub title: String,
    /// Blocks after the title.
    pub header: Vec<Block<'a>>,
    /// Sections. Their titles must differ.
    pub sections: Vec<Section<'a>>,
}

/// A section of a page.
#[derive(Clone, Debug)]
pub struct Section<'a> {
    /// Title.
    pub title: String,
    /// Contents.
    pub blocks: Vec<Block<'a>>,
}

/// A part of a section.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Block<'a> {
    /// The main result, in sentences.
    Lead(String),
    /// A paragraph.
    Text(String),
    /// A paragraph that describes the subject.
    About(String),
    /// A paragraph that a reader must not miss.
    Warning(String),
    /// A note in small type that explains a table, in pieces with the colours of cells.
    Note(Vec<(Tone, String)>),
    /// A list of findings, each with a label.
    Findings(Vec<Finding>),
    /// A list of items.
    List(Vec<String>),
    /// A table.
    Table(Table),
    /// Charts.
    Charts(&'a [Chart]),
    /// Blocks side by side, if there is space.
    Beside(Vec<Block<'a>>),
    /// Heat maps.
    Heat(Vec<HeatMap>),
    /// Blocks below a summary that shows and hides them.
    Folded {
        /// Text that is always visible.
        summary: String,
        /// Whether the blocks are visible at first.
        is_open: bool,
        /// The blocks.
        blocks: Vec<Block<'a>>,
    },
}

/// A finding: a sentence with a label that says how serious it is, and a colour.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Colour of the label.
    pub tone: Tone,
    /// Label, such as `warning`.
    pub label: String,
    /// Sentence.
    pub text: String,
}

impl Page<'_> {
    /// Returns the page.
    #[must_use]
    pub fn html(&self) -> String {
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="generator" content="zonal";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    meta http-equiv="Content-Security-Policy" content=(POLICY);
                    title { (printable(&self.title)) }
                    style { (PreEscaped(style())) }
                }
                body {
                    header {
                        h1 { (printable(&self.title)) }
                        (blocks(&self.header))
                    }
                    main { @for section in &self.sections { (section.html()) } }
                }
            }
        };
        page.into_string() + "\n"
    }
}

/// Returns the style sheet of all pages, for a page that includes [`Section::fragment`]s.
#[must_use]
pub fn style() -> String {
    STYLE.to_owned() + &color::css()
}

impl Section<'_> {
    /// Returns the section as a part of an HTML document that is sent often: attributes that do not change its
    /// appearance are left out. It has no inline styles, so that a strict content security policy allows it.
    #[must_use]
    pub fn fragment(&self) -> String {
        // Quotation marks of texts are escaped, so only attributes match. Texts have the font of the page.
        let html = self.html().into_string();
        DEFAULT_ATTRIBUTES.iter().fold(html, |html, attribute| html.replace(attribute, ""))
    }

    fn html(&self) -> Markup {
        let id = slug(&self.title);
        html! {
            section aria-labelledby=(id) {
                h2 id=(id) { (printable(&self.title)) }
                (blocks(&self.blocks))
            }
        }
    }
}

fn blocks(blocks: &[Block<'_>]) -> Markup {
    html! { @for block in blocks { (block.html()) } }
}

impl Block<'_> {
    fn html(&self) -> Markup {
        html! {
            @match self {
                Self::Lead(text) => p.lead { (printable(text)) },
                Self::Text(text) => p { (printable(text)) },
                Self::About(text) => p.about { (printable(text)) },
                Self::Warning(text) => p.warning { (printable(text)) },
                Self::Note(pieces) => p.note {
                    @for (tone, text) in pieces { span class=[tone.class()] { (printable(text)) } }
                },
                Self::List(items) => ul { @for item in items { li { (printable(item)) } } },
                Self::Table(table) => (table.html()),
                Self::Findings(findings) => ul.findings {
                    @for finding in findings { li {
                        strong.(finding.tone.class().unwrap_or("plain")) { (printable(&finding.label)) }
                        span { (printable(&finding.text)) }
                    } }
                },
                Self::Heat(maps) => div.beside { @for map in maps { (map.figure()) } },
                Self::Beside(beside) => div.beside { (blocks(beside)) },
                Self::Charts(charts) => div.charts { @for chart in *charts { (chart.figure()) } },
                Self::Folded { summary, is_open, blocks: folded } => details open[*is_open] {
                    summary { (printable(summary)) }
                    (blocks(folded))
                },
            }
        }
    }
}

/// Reduces `name` to lower-case letters, digits and hyphens, so that it is safe as a file name and as an id.
#[must_use]
pub fn slug(name: &str) -> String {
    let letters = name.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { ' ' });
    let letters = letters.collect::<String>().to_ascii_lowercase();
    let words: Vec<&str> = letters.split_whitespace().collect();
    words.join("-").chars().take(NAME_MAX).collect::<String>().trim_end_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bar, Bars, Key, Line, Lines, Panel, Scale, Symbol};

    fn panels() -> Vec<Panel> {
        let scale = Scale::lengths([9.0], "s").unwrap();
        let line = |points: &[(f64, f64)]| {
            let marks = vec![(Symbol::Ring, (1.0, 1.0))];
            Line { color: color::BLUE, points: points.to_vec(), has_dots: true, marks }
        };
        let lines = [line(&[(0.0, 1.0), (1.0, 2.0)]), line(&[(0.0, 1.0), (1.0, 2.0)]), line(&[])];
        let (name, text) = ("a".to_owned(), "4 s".to_owned());
        let (parts, spread) = (vec![(4.0, color::BLUE, String::new())], Some((3.0, 9.0)));
        let groups = vec![(String::new(), vec![Bar { name, parts, spread, mark: None, text }])];
        vec![
            Lines { title: "wall", x_name: "cpus", x: &scale, y: &scale, lines: &lines }.panel(),
            Bars { title: "", scale: &scale, axis: None, groups, text_width: 50.0 }.panel(),
        ]
    }

    fn chart() -> Chart {
        let [name, title, about] = ["a", "A chart", "What it shows."].map(str::to_owned);
        Chart { name, title, about, keys: vec![Key::new(Symbol::Ring, color::INK, "x")], panels: panels() }
    }

    #[test]
    fn headings_are_in_order_and_figures_have_names() {
        let charts = [chart()];
        let blocks = vec![Block::Charts(&charts), Block::List(vec!["<b>".into()])];
        let sections = vec![Section { title: "Over time".into(), blocks }];
        let page = Page { title: "A page".into(), header: Vec::new(), sections }.html();
        let places = [
            "<html lang=\"en\">",
            "<h1>A page",
            "<h2 id=\"over-time\">Over time",
            "<figcaption id=\"a-title\">A",
        ];
        let places = places.map(|text| page.find(text).unwrap_or_else(|| panic!("{text}: {page}")));
        assert!(places.is_sorted() && page.contains("role=\"img\" aria-label=\"What it shows.\""));
        assert!(page.contains("&lt;b&gt;") && !page.contains("<script"));
    }

    #[test]
    fn equal_lines_show_below_each_other_and_spreads_reach_their_ends() {
        let svg = chart().document();
        let document = roxmltree::Document::parse(&svg).unwrap();
        let widths = document.descendants().filter(|node| node.attribute("stroke") == Some("#006CAE"));
        let widths: Vec<i32> = widths
            .filter_map(|node| {
                node.has_tag_name("polyline").then(|| node.attribute("stroke-width")?.parse().ok())?
            })
            .collect();
        assert_eq!(widths, [36, 26]);
        let bar = document
            .descendants()
            .find(|node| node.has_tag_name("rect") && node.attribute("fill") == Some("#006CAE"));
        let length: f64 = bar.unwrap().attribute("width").unwrap().parse().unwrap();
        let spread = document.descendants().filter(|node| node.attribute("stroke-width") == Some("14"));
        let spread = spread.filter_map(|node| node.attribute("points")).next_back().unwrap();
        let ends: Vec<f64> = spread.split([' ', ',']).filter_map(|number| number.parse().ok()).collect();
        assert!((length / (ends[2] - ends[0]) - 4.0 / 6.0).abs() < 0.01, "{length} {ends:?}");
    }

    /// The labels of findings are words, so that colour is not needed to distinguish them.
    #[test]
    fn findings_and_blocks_beside_each_other() {
        let finding = |tone, label: &str| Finding { tone, label: label.into(), text: "<low>".into() };
        let findings = Block::Findings(vec![finding(Tone::Off, "warning"), finding(Tone::Plain, "note")]);
        let blocks = vec![Block::Beside(vec![findings, Block::Text("Beside.".into())])];
        let sections = vec![Section { title: "Advice".into(), blocks }];
        let page = Page { title: "A page".into(), header: Vec::new(), sections }.html();
        let expected = "<div class=\"beside\"><ul class=\"findings\">\
                        <li><strong class=\"off\">warning</strong><span>&lt;low&gt;</span></li>\
                        <li><strong class=\"plain\">note</strong><span>&lt;low&gt;</span></li></ul><p>Beside.</p></div>";
        assert!(page.contains(expected), "{page}");
    }

    #[test]
    fn fragments_are_shorter_and_have_the_same_texts() {
        let charts = [chart()];
        let blocks = || vec![Block::Charts(&charts), Block::Text("an opacity=\"1\" of".to_owned())];
        let section = Section { title: "Over time".into(), blocks: blocks() };
        let (page, fragment) = (section.html().into_string(), section.fragment());
        assert!(fragment.len() < page.len() * 9 / 10, "{} {}", fragment.len(), page.len());
        assert!(fragment.contains("an opacity=&quot;1&quot; of") && !fragment.contains(" style="));
        let texts = |html: &str| {
            let document = roxmltree::Document::parse(html).unwrap();
            document.descendants().filter_map(|node| node.text().map(str::to_owned)).collect::<Vec<_>>()
        };
        assert_eq!(texts(&fragment), texts(&page));
    }

    #[test]
    fn names_of_files_are_plain() {
        assert_eq!(slug("Ünï / Tests__9"), "n-tests-9");
    }
}

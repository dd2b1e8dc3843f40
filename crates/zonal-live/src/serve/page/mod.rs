//! The page: a shell that stays, and a fragment that each tick replaces.
//!
//! The shell has the only script and the only styles, which the content security policy names by their hashes. The
//! fragment consists of `zonal-page` sections. Related files: `overview.rs`, `zones.rs`, `history.rs`, `rates.rs`,
//! `pagesets.rs` and `fragmentation.rs` have the sections.

mod fragmentation;
mod history;
mod overview;
mod pagesets;
mod rates;
mod words;
mod zones;

use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use zonal_page::{Section, printable, slug, style};

use super::tick::Tick;

const SCRIPT: &str = include_str!("live.js");

/// Keys of the page, with their meanings.
const KEYS: [(&str, &str); 5] = [
    ("p", "pauses and resumes"),
    ("j", "goes to the next section"),
    ("k", "goes to the section before"),
    ("?", "shows these keys"),
    ("Esc", "closes them"),
];
/// Titles of the sections.
const TITLES: [&str; 7] =
    ["Zones and watermarks", "Last 60 seconds", "Locality", "Pagesets", "Fragmentation", "Nodes", "Counters"];

static STYLE: LazyLock<String> = LazyLock::new(|| style() + include_str!("live.css"));

/// Returns the content security policy: no sources except the own style, script and updates.
pub(crate) fn policy() -> String {
    let hash = |text: &str| format!("'sha256-{}'", STANDARD.encode(hmac_sha256::Hash::hash(text.as_bytes())));
    format!(
        "default-src 'none'; style-src {}; script-src {}; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
        hash(&STYLE),
        hash(SCRIPT)
    )
}

/// Returns the page with the state of a tick.
pub(crate) fn page(tick: &Tick) -> String {
    let title = words::capitalized(&printable(&tick.title));
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " – zonal" }
                link rel="icon" href="data:,";
                style { (PreEscaped(&*STYLE)) }
            }
            body {
                (bar())
                (navigation())
                main #content tabindex="-1" {
                    h1 { (title) }
                    noscript {
                        p.note { "This is the state when the page was loaded. Reload it to see a newer one, or \
                            allow scripts to have it updated." }
                    }
                    div #live { (PreEscaped(tick.fragment())) }
                }
                (footer())
                div #connection role="status" {}
                (keys())
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    page.into_string() + "\n"
}

/// Returns the part of the page that changes with each tick.
pub(crate) fn fragment(tick: &Tick) -> String {
    let mut html = overview::html(tick).into_string();
    let charts = [zones::charts(tick), history::charts(tick), fragmentation::charts(tick)];
    let blocks = [
        zones::blocks(tick, &charts[0]),
        history::blocks(&charts[1]),
        rates::locality(tick),
        pagesets::blocks(tick),
        fragmentation::blocks(tick, &charts[2]),
        zones::nodes(tick),
        rates::counters(tick),
    ];
    for (title, blocks) in TITLES.into_iter().zip(blocks) {
        html += &Section { title: title.to_owned(), blocks }.fragment();
    }
    html
}

fn bar() -> Markup {
    html! {
        header.bar {
            a.skip href="#content" { "Skip to the figures" }
            strong { "zonal" }
            span #state .still { "not updated" }
            span.buttons {
                button #pause type="button" aria-pressed="false" hidden { "Pause" }
                button #show-keys type="button" aria-haspopup="dialog" hidden { "Keys" }
            }
        }
    }
}

fn navigation() -> Markup {
    html! {
        nav aria-label="Sections" {
            ul { @for title in TITLES { li { a href={ "#" (slug(title)) } { (title) } } } }
        }
    }
}

fn footer() -> Markup {
    html! {
        footer {
            p {
                "zonal " (env!("CARGO_PKG_VERSION")) " · "
                a href="/metrics" { "metrics" } " · "
                a href="/snapshot.json" { "snapshot" }
            }
        }
    }
}

fn keys() -> Markup {
    html! {
        dialog #keys aria-labelledby="keys-title" {
            h2 #keys-title { "Keys" }
            dl {
                @for (key, meaning) in KEYS { div { dt { kbd { (key) } } dd { (meaning) } } }
            }
            p { label { input #use-keys type="checkbox" checked; " Use these keys" } }
            form method="dialog" { button type="submit" { "Close" } }
        }
    }
}

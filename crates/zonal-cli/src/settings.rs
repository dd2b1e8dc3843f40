//! `zonal settings` and `zonal set`: the table of settings, and settings of a program's pool.
//!
//! Related files: `zonal::settings` has the table; `zonal-live` talks to a pool that publishes itself.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::json;
use zonal::settings::{Access, Setting};
use zonal_live::ask;
use zonal_machine::Excerpt;

use crate::layout::{self, Content::Text, Grid, Width};
use crate::outcome::{Failure, print};

/// Show all settings: their values, defaults and meanings
#[derive(Args, Clone, Debug)]
#[command(after_help = examples())]
pub(crate) struct SettingsArgs {
    /// Socket of a program that publishes its pool; shows the values of that pool
    #[arg(long, value_name = "SOCKET")]
    pool: Option<PathBuf>,

    /// Print the table as one JSON document
    #[arg(long)]
    json: bool,
}

/// Change settings of a program's pool while it runs
#[derive(Args, Clone, Debug)]
#[command(after_help = examples())]
pub(crate) struct SetArgs {
    /// Socket of the program, which publishes its pool with `Pool::publish`, or of `zonal run --publish`
    #[arg(long, value_name = "SOCKET", required = true)]
    pool: PathBuf,

    /// Settings and their new values, which are set in this order
    #[arg(value_name = "NAME=VALUE", required = true, value_parser = assignment)]
    settings: Vec<(String, String)>,

    /// Print the new values as one JSON document
    #[arg(long)]
    json: bool,
}

/// A row of the table.
#[derive(Serialize, Deserialize)]
struct Row {
    name: String,
    /// `None` without a pool, and for settings that can only be set.
    value: Option<String>,
    default: String,
    allowed: String,
    access: String,
    summary: String,
}

/// A setting that was changed.
#[derive(Serialize, Deserialize)]
struct Changed {
    name: String,
    value: Option<String>,
}

fn examples() -> String {
    let examples = [
        ("zonal settings", "all settings and their defaults"),
        ("zonal settings --pool /run/user/1000/cache.zonal", "the values of a running program"),
        ("zonal set --pool /run/user/1000/cache.zonal zone_reclaim_mode=1", ""),
        ("zonal set --pool /run/user/1000/cache.zonal min_free_kbytes=65536 stat_interval=5", ""),
    ];
    format!("Examples:\n{}", layout::entries(examples))
}

/// Reads NAME=VALUE, and checks both against the table.
fn assignment(text: &str) -> Result<(String, String), String> {
    let Some((name, value)) = text.split_once('=') else {
        return Err(format!("`{text}` is not NAME=VALUE, as in zone_reclaim_mode=1"));
    };
    let (name, value) = (name.trim(), value.trim());
    let setting = Setting::named(name).map_err(|error| error.to_string())?;
    if setting.info().access == Access::ReadOnly {
        return Err(format!("{name} cannot be changed at run time"));
    }
    setting.parse(value).map_err(|error| error.to_string())?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Runs `zonal settings`. Returns exit code 0 for success, 1 if the pool does not answer, and 2 for bad usage.
pub(crate) fn run(args: &SettingsArgs) -> ExitCode {
    show(args).map_or_else(Failure::report, |()| ExitCode::SUCCESS)
}

/// Runs `zonal set`, with the exit codes of `zonal settings`.
pub(crate) fn run_set(args: &SetArgs) -> ExitCode {
    change(args).map_or_else(Failure::report, |()| ExitCode::SUCCESS)
}

fn show(args: &SettingsArgs) -> Result<(), Failure> {
    let rows: Vec<Row> = match &args.pool {
        Some(path) => ask(path, "settings", json!({}))?,
        None => Setting::ALL.map(row).into(),
    };
    if args.json {
        let pool = args.pool.as_deref().map(Path::to_string_lossy);
        let document = json!({ "schema": "zonal.settings.v1", "pool": pool, "settings": rows });
        return print(&format!("{document}\n"));
    }
    print(&table(&rows, args.pool.is_some(), Width::of_output()))
}

fn row(setting: Setting) -> Row {
    let info = setting.info();
    let access = match info.access {
        Access::ReadWrite => "read-write",
        Access::ReadOnly => "read-only",
        Access::WriteOnly => "write-only",
    };
    Row {
        name: info.name.to_owned(),
        value: None,
        default: info.default.to_owned(),
        allowed: info.values.to_string(),
        access: access.to_owned(),
        summary: info.summary.to_owned(),
    }
}

fn table(rows: &[Row], with_values: bool, width: Width) -> String {
    let mut titles = vec!["setting", "value", "default", "allowed values", "meaning"];
    if !with_values {
        titles.remove(1);
    }
    let mut grid = Grid::new(1, titles.into_iter().map(|title| (title, Text)));
    // The texts may be those of another program.
    let shown = |text: &str| Excerpt::name(text).to_string();
    for row in rows {
        let value = row.value.as_deref().map(shown).unwrap_or_default();
        let note = match row.access.as_str() {
            "read-only" => " Chosen when the allocator is created.",
            _ => "",
        };
        let values = with_values.then_some(value);
        let summary = Excerpt::line(&row.summary);
        let rest = [shown(&row.default), shown(&row.allowed), format!("{summary}{note}")];
        grid.row([shown(&row.name)].into_iter().chain(values).chain(rest));
    }
    grid.render("", width)
}

fn change(args: &SetArgs) -> Result<(), Failure> {
    let mut changed: Vec<Changed> = Vec::new();
    for (name, value) in &args.settings {
        let request = json!({ "name": name, "value": value });
        match ask(&args.pool, "set", request).map_err(Failure::from) {
            Ok(new) => changed.push(new),
            Err(failure) if changed.is_empty() => return Err(failure),
            Err(failure) => {
                let before: Vec<_> = changed.iter().map(|changed| changed.name.as_str()).collect();
                return Err(failure.with(&format!("; changed before: {}", before.join(", "))));
            }
        }
    }
    if args.json {
        let pool = args.pool.to_string_lossy();
        return print(&format!("{}\n", json!({ "schema": "zonal.set.v1", "pool": pool, "set": changed })));
    }
    let line = |changed: &Changed| match (Excerpt::name(&changed.name), &changed.value) {
        (name, Some(value)) => format!("{name} = {}\n", Excerpt::name(value)),
        (name, None) => format!("{name} done\n"),
    };
    print(&changed.iter().map(line).collect::<String>())
}

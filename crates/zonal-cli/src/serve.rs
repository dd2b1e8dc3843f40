//! `zonal serve`: the live state in a browser, as metrics, and as a document.
//!
//! Related files: `zonal_live::serve` has the server and the page.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use zonal_live::serve::{DEFAULT_ADDRESS, Ended, MetricDetail, PATIENCE, ServeOptions, Server, Token};
use zonal_live::{PoolSource, Source, SystemSource, Watch};

use crate::layout;
use crate::outcome::{Failure, print_message};

/// Allowed intervals, in seconds.
const INTERVALS: std::ops::RangeInclusive<f64> = 0.1..=3600.0;

/// Show the live state of this system or a pool in a browser, and as metrics
#[derive(Args, Clone, Debug)]
#[command(after_help = examples())]
pub(crate) struct ServeArgs {
    /// Address and port; port 0 is any free port. Addresses that other machines can reach need a token, which is printed
    /// unless --token-file has one
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = DEFAULT_ADDRESS, value_parser = address)]
    listen: SocketAddr,

    /// Socket of a program that publishes its pool, with `Pool::publish` or `zonal run --publish`
    #[arg(long, value_name = "SOCKET", conflicts_with_all = ["system", "sysfs"])]
    pool: Option<PathBuf>,

    /// This system, which is the default
    #[arg(long)]
    system: bool,

    /// A captured tree of another system, with the folders `sys` and `proc`
    #[arg(long, value_name = "DIR", conflicts_with = "system")]
    sysfs: Option<PathBuf>,

    /// Seconds between two readings, from 0.1 to 3600
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval, allow_hyphen_values = true)]
    interval: Duration,

    /// File with a token that clients must know; other users must not be able to read it
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// Add metrics of each pageset, whose number grows with zones and CPUs
    #[arg(long)]
    per_cpu_metrics: bool,
}

fn examples() -> String {
    let examples = [
        ("zonal serve", "this system, at http://127.0.0.1:7070/"),
        ("zonal serve --pool /run/user/1000/cache.zonal", "the pool of a running program"),
        ("zonal serve --listen 127.0.0.1:0 --interval 5", "any free port, and every 5 seconds"),
        ("zonal serve --listen 0.0.0.0:7070 --token-file token", "for other machines that have the token"),
        ("curl http://127.0.0.1:7070/metrics", "for Prometheus; /snapshot.json is for scripts"),
    ];
    format!("Examples:\n{}", layout::entries(examples))
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let numeric = match text.rsplit_once(':') {
        Some((host, port)) if host.eq_ignore_ascii_case("localhost") => format!("127.0.0.1:{port}"),
        _ => text.to_owned(),
    };
    let address: Option<SocketAddr> = numeric.parse().ok();
    let canonical = address.map(|address| match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::from((ip, address.port())),
        IpAddr::V6(_) => address,
    });
    let is_one_host = |address: &SocketAddr| match address.ip() {
        IpAddr::V4(ip) => !ip.is_multicast() && !ip.is_broadcast(),
        IpAddr::V6(ip) => !ip.is_multicast(),
    };
    canonical.filter(is_one_host).ok_or_else(|| {
        format!("`{text}` is not an address and a port, as in 127.0.0.1:7070, 0.0.0.0:7070 or [::1]:7070")
    })
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = text.parse().ok().filter(|seconds| INTERVALS.contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("`{text}` is not between 0.1 and 3600 seconds"))
}

/// Runs the command until Ctrl-C, which ends it with exit code 130, or `SIGTERM`, which is success. Returns exit code 2 for
/// bad usage and for an address that cannot be used.
pub(crate) fn run(args: &ServeArgs) -> ExitCode {
    match serve(args) {
        Ok(Ended::Interrupted) => ExitCode::from(130),
        Ok(Ended::Terminated) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn serve(args: &ServeArgs) -> Result<Ended, Failure> {
    let token = match &args.token_file {
        Some(path) => Some(Token::read(path)?),
        None if args.listen.ip().is_loopback() => None,
        None => Some(Token::generate()?),
    };
    let source: Box<dyn Source> = match (&args.pool, &args.sysfs) {
        (Some(socket), _) => Box::new(PoolSource::new(socket.clone())),
        (None, Some(folder)) => Box::new(SystemSource::tree(folder)),
        (None, None) => Box::new(SystemSource::live()),
    };
    let watch = Watch::start(source)?;
    let title = watch.title();
    let detail = if args.per_cpu_metrics { MetricDetail::Cpus } else { MetricDetail::Zones };
    let (listen, interval) = (args.listen, args.interval);
    let options = ServeOptions { listen, interval, patience: PATIENCE, token, detail };
    let server = Server::bind(watch, options)?;
    let url = server.url();
    let announce = || {
        // The address stands alone in the first line, for scripts. There is no other place to report an error of writing.
        let _ = writeln!(io::stderr(), "{url}");
        print_message(format!(
            "serves {title} until Ctrl-C; metrics are at /metrics, a document at /snapshot.json"
        ));
    };
    Ok(server.run(announce)?)
}

//! Logs that are cut off, shuffled, huge or no logs at all: they are read in bounded memory, and nothing panics.

use std::io::{self, Read};

use fastrand::Rng;
use zonal_machine::log::{LogReader, LoggedKind, ReportKind, Seen};

use super::{explained, real_logs, text};

/// Every log, in one text.
fn all() -> String {
    real_logs().iter().map(|name| text(name)).collect()
}

#[test]
fn every_kind_of_prefix_and_interleaved_lines() {
    let reports = explained(&text("synthetic/synthetic-prefixes.txt"));
    let [(report, explanation)] = &reports[..] else { panic!("one report: {reports:?}") };
    assert_eq!((report.line, report.kind), (2, Some(ReportKind::Oom)));
    assert_eq!(report.request.process.as_deref(), Some("task-a"));
    assert_eq!(report.release.as_deref(), Some("6.12.1"));
    assert_eq!(report.zones.len(), 1);
    assert_eq!((report.zones[0].kind, report.zones[0].reserve.len()), (LoggedKind::Normal, 5));
    assert_eq!(report.zones[0].blocks.as_ref().unwrap().blocks[2].count, 750);
    assert!(!explanation.is_contradicted(), "{:?}", explanation.checks);
    let with_ends = text("synthetic/synthetic-prefixes.txt").replace('\n', "\r\n");
    assert_eq!(explained(&with_ends)[0].1, *explanation);
}

#[test]
fn a_log_may_be_cut_off_anywhere() {
    let whole = text("guest/6.1-bind-two.txt");
    let mut rng = Rng::with_seed(42);
    for _ in 0..400 {
        let (from, to) = (rng.usize(..whole.len()), rng.usize(..whole.len()));
        for part in [&whole.as_bytes()[from..], &whole.as_bytes()[..to]] {
            let part = String::from_utf8_lossy(part);
            for (report, explanation) in explained(&part) {
                assert!(report.line >= 1 && !explanation.answer.is_empty());
            }
        }
    }
    let lines: Vec<&str> = whole.lines().collect();
    let (report, explanation) = &explained(&lines[1..].join("\n"))[0];
    assert!(report.is_cut_at_top && report.request.gfp.is_none());
    assert!(explanation.notes.iter().any(|note| note.contains("begins within this report")));
    let (report, explanation) = &explained(lines[0])[0];
    assert!(report.zones.is_empty() && explanation.refused_by.is_none() && explanation.checks.is_empty());
}

#[test]
fn nothing_is_decided_about_a_garbled_request() {
    let mut garbled = 0;
    for name in real_logs() {
        let text = text(&name);
        let Some(line) = explained(&text).first().map(|(report, _)| report.line as usize) else { continue };
        for (keys, values, unknown) in [
            (["order:", "order="], &["", "x", "99,", "-2,"][..], "its order is unknown"),
            (["mode:0x", "gfp_mask=0x"], &["z", ","], "its flags are unknown"),
        ] {
            for (key, value) in keys.iter().flat_map(|key| values.iter().map(move |value| (key, value))) {
                let mut lines: Vec<&str> = text.lines().collect();
                let Some((before, after)) = lines[line - 1].split_once(key) else { continue };
                let changed = format!("{before}{key}{value} {}", after.trim_start_matches(char::is_numeric));
                lines[line - 1] = &changed;
                let (report, explanation) = &explained(&lines.join("\n"))[0];
                if report.is_of_cgroup() || report.request.order == Some(-1) {
                    continue;
                }
                assert!(
                    explanation.answer[0].contains(unknown),
                    "{name}: {changed}: {:?}",
                    explanation.answer
                );
                assert!(
                    explanation.checks.is_empty() && explanation.remedies.is_empty(),
                    "{name}: {changed}"
                );
                garbled += 1;
            }
        }
    }
    assert!(garbled > 20, "{garbled}");
    let of_failure = text("guest/6.1-bind.txt").replacen(
        " invoked oom-killer: gfp_mask=",
        ": page allocation failure: mode:",
        1,
    );
    let of_failure = of_failure.replacen("order=0", "order:-1", 1);
    let (report, explanation) = &explained(&of_failure)[0];
    assert_eq!((report.kind, report.request.order), (Some(ReportKind::Failure), None));
    assert!(explanation.answer[0].contains("its order is unknown"), "{:?}", explanation.answer);
}

#[test]
fn shuffled_lines_do_not_panic() {
    let whole = all();
    let mut rng = Rng::with_seed(7);
    let mut lines: Vec<&str> = whole.lines().collect();
    for _ in 0..5 {
        rng.shuffle(&mut lines);
        for (_, explanation) in explained(&lines.join("\n")) {
            assert!(!explanation.answer.is_empty());
        }
    }
}

#[test]
fn changed_bytes_and_numbers_do_not_panic() {
    let logs: Vec<Vec<u8>> = real_logs().iter().map(|name| text(name).into_bytes()).collect();
    let numbers = ["0", "1", "18446744073709551615", "1125899906842624", "99999999999999999999999", "-1"];
    let mut rng = Rng::with_seed(11);
    for _ in 0..600 {
        let mut log = rng.choice(&logs).unwrap().clone();
        for _ in 0..8 {
            let at = rng.usize(..log.len());
            if rng.bool() {
                log[at] = rng.u8(..);
            } else if let Some(start) = log[at..].iter().position(u8::is_ascii_digit) {
                let start = at + start;
                let digits = log[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                log.splice(start..start + digits, rng.choice(numbers).unwrap().bytes());
            }
        }
        for (_, explanation) in explained(&String::from_utf8_lossy(&log)) {
            assert!(!explanation.answer.is_empty());
        }
    }
}

#[test]
fn names_from_the_log_are_escaped() {
    let name = "a\u{1b}[2J\u{202e}";
    let before = text("guest/6.1-bind.txt");
    let own = explained(&before)[0].0.request.process.clone().unwrap();
    let (report, explanation) = &explained(&before.replace(&own, name))[0];
    assert_eq!(report.request.process.as_deref(), Some(name));
    let shown = explanation.answer.join(" ") + &explanation.notes.join(" ");
    assert!(shown.contains("a\\u001b[2J") && !shown.contains(['\u{1b}', '\u{202e}']), "{shown}");
}

#[test]
fn several_reports_in_a_log_are_all_read() {
    let logs = real_logs();
    let single: usize = logs.iter().map(|name| explained(&text(name)).len()).sum();
    assert_eq!(explained(&all()).len(), single);
}

#[test]
fn a_kill_without_its_beginning_is_a_report_of_its_own() {
    let failure = "a: page allocation failure: order:0, mode:0x820(GFP_ATOMIC), nodemask=(null)\n";
    let kills = [
        "Memory cgroup out of memory: Killed process 1 (b)\n",
        "memory: usage 8kB, limit 8kB, failcnt 1\nMemory cgroup out of memory: Killed process 1 (b)\n",
        "oom-kill:constraint=CONSTRAINT_MEMCG,task=b\nMemory cgroup out of memory: Killed process 1 (b)\n",
    ];
    for kill in kills {
        let reports = explained(&format!("{failure}{kill}"));
        let kinds: Vec<_> = reports.iter().map(|(report, _)| (report.kind, report.is_of_cgroup())).collect();
        assert_eq!(kinds, [(Some(ReportKind::Failure), false), (Some(ReportKind::Oom), true)], "{kill}");
    }
}

/// A source that repeats a piece without end.
struct Endless {
    piece: &'static [u8],
    at: usize,
}

impl Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        for byte in buffer.iter_mut() {
            *byte = self.piece[self.at];
            self.at = (self.at + 1) % self.piece.len();
        }
        Ok(buffer.len())
    }
}

/// `zonal explain --log` of 1 GiB without line ends takes a second; this is the same with less.
#[test]
fn garbage_without_line_ends_is_one_line() {
    let bytes = 32 << 20;
    let mut reader = LogReader::new(Endless { piece: b"Node 0 Normal free:\xff ", at: 0 }.take(bytes));
    assert_eq!(reader.next_report().unwrap(), None);
    assert_eq!(reader.seen(), Seen { bytes, lines: 1, long_lines: 1, zero_bytes: 0 });
}

#[test]
fn many_lines_and_reports_are_streamed() {
    let piece =
        b"[ 1.5] a invoked oom-killer: gfp_mask=0x1, order=0\nOut of memory: Killed process 1 (a)\nx\n";
    let mut reader = LogReader::new(Endless { piece, at: 0 }.take(piece.len() as u64 * 20_000));
    let mut count = 0;
    while let Some(report) = reader.next_report().unwrap() {
        assert_eq!(report.line, 3 * count + 1);
        count += 1;
    }
    assert_eq!((count, reader.seen().lines), (20_000, 60_000));
}

#[test]
fn requests_of_users_and_stalls_are_no_failures() {
    let memory = "Mem-Info:\nNode 0 Normal free:4kB min:8kB low:8kB high:8kB\n";
    for line in ["sysrq: Show Memory", "a: page allocation stalls for 10000ms, order:0, mode:0x1"] {
        assert!(explained(&format!("{line}\n{memory}")).is_empty(), "{line}");
    }
    assert_eq!(explained(memory).len(), 1);
}

#[test]
fn errors_of_the_source_are_returned() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("broken"))
        }
    }
    assert_eq!(LogReader::new(Broken).next_report().unwrap_err().to_string(), "broken");
}

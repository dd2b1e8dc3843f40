//! Files of traces: what is written is read back, and what is cut, damaged or foreign never reads as whole.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use zonal::units::{CpuId, Moment, NodeId, Order, PageCount, Pfn};
use zonal_trace::{
    Action, BlockEncoder, CpuTotals, Event, FIRST_LINE, FormatText, Gfp, Header, KernelTexts, Kind,
    Migratetype, Origin, Tid, TraceError, TraceReader, TraceWriter, Trailer, info,
};

const CPUS: [u32; 3] = [0, 1, 7];

fn header() -> Header {
    Header {
        origin: Origin::Tracefs,
        writer: "test".to_owned(),
        kernel: Some("6.18.0".to_owned()),
        machine: None,
        command: vec!["true".to_owned()],
        clock: "mono".to_owned(),
        started_ns: 0,
        started_unix_ns: 1,
        cpus: CPUS.to_vec(),
        buffer_kib: 64,
        recorder: vec![9],
        names: BTreeMap::from([(5, "five".to_owned())]),
        gfp_names: vec![(0xc0, "BOTH".to_owned()), (0x40, "ONE".to_owned())],
        formats: Vec::new(),
        absent: Vec::new(),
        before: KernelTexts::default(),
    }
}

fn trailer(lost: u64) -> Trailer {
    Trailer {
        ended_ns: 1_000_000,
        cpus: vec![CpuTotals { cpu: 1, events: 0, lost }],
        kinds: Default::default(),
        skipped: 2,
        command_status: Some(3),
        after: KernelTexts { vmstat: Some("pgalloc 1".to_owned()), ..KernelTexts::default() },
    }
}

/// Writes events and reads them back.
fn written(events: &[Event]) -> Vec<u8> {
    let mut writer = TraceWriter::new(Vec::new(), &header()).unwrap();
    events.iter().for_each(|event| writer.push(event).unwrap());
    writer.finish(trailer(4)).unwrap().0
}

/// Reads a file as far as possible.
fn read(bytes: &[u8]) -> (Vec<Event>, Result<Trailer, TraceError>) {
    let mut events = Vec::new();
    let mut reader = match TraceReader::new(bytes, "t".to_owned()) {
        Ok(reader) => reader,
        Err(error) => return (events, Err(error)),
    };
    while let Some(next) = reader.next() {
        match next {
            Ok(event) => events.push(event),
            Err(error) => {
                assert!(reader.trailer().is_none() && reader.next().is_none());
                return (events, Err(error));
            }
        }
    }
    let trailer = reader.trailer().expect("a trace without an error has a trailer").clone();
    (events, Ok(trailer))
}

fn action() -> impl Strategy<Value = Action> {
    let page = || prop_oneof![0_u64..5000, any::<u64>()].prop_map(Pfn::new);
    let order = || (0_u8..=10).prop_map(|order| Order::new(order).unwrap());
    let migratetype = || prop_oneof![0..4, any::<i32>()].prop_map(Migratetype);
    let gfp = prop_oneof![Just(0xcc0), any::<u64>()].prop_map(Gfp);
    let name = "[a-z/ü]{0,15}".prop_map(|name| Arc::<str>::from(name.as_str()));
    let node = (0_u16..4).prop_map(|node| NodeId::new(node).unwrap());
    let pages = || any::<u64>().prop_map(PageCount::new);
    prop_oneof![
        4 => (proptest::option::weighted(0.9, page()), order(), gfp, migratetype())
            .prop_map(|(page, order, gfp, migratetype)| Action::Alloc { page, order, gfp, migratetype }),
        4 => (page(), order()).prop_map(|(page, order)| Action::Free { page, order }),
        2 => page().prop_map(|page| Action::FreeBatched { page }),
        2 => (page(), order(), migratetype())
            .prop_map(|(page, order, migratetype)| Action::Drain { page, order, migratetype }),
        2 => (proptest::option::of(page()), order(), migratetype(), any::<bool>()).prop_map(
            |(page, order, migratetype, is_refill)| Action::ZoneLocked { page, order, migratetype, is_refill }
        ),
        1 => (page(), order(), order(), migratetype(), migratetype(), any::<bool>()).prop_map(
            |(page, order, from_order, migratetype, from_migratetype, changes_owner)| Action::Fallback {
                page, order, from_order, migratetype, from_migratetype, changes_owner
            }
        ),
        1 => (node, name.clone(), [pages(), pages(), pages()], proptest::option::of(0..u64::MAX)).prop_map(
            |(node, zone, marks, promo)| Action::Watermarks {
                node, zone, marks, promo: promo.map(PageCount::new)
            }
        ),
        1 => (0_u16..4, name.clone(), name.clone(), pages()).prop_map(|(node, zone, upper, pages)| {
            Action::LowmemReserve { node: NodeId::new(node).unwrap(), zone, upper, pages }
        }),
        1 => (any::<i32>(), name).prop_map(|(thread, name)| Action::Named { thread: Tid(thread), name }),
        1 => proptest::option::of(0..u64::MAX).prop_map(|events| Action::Lost { events }),
    ]
}

/// Events of all CPUs in the order in which a reader returns them.
fn events(most: usize) -> impl Strategy<Value = Vec<Event>> {
    let event = (0_u64..3000, 0_usize..3, prop_oneof![0_i32..9, any::<i32>()], action());
    let events = proptest::collection::vec(event, 0..most);
    events.prop_map(|events| {
        let mut at = 0;
        let event = |(later, cpu, thread, action): (u64, usize, i32, Action)| {
            at += later;
            Event { at: Moment::from_ns(at), cpu: CpuId::new(CPUS[cpu]), thread: Tid(thread), action }
        };
        let mut events: Vec<Event> = events.into_iter().map(event).collect();
        events.sort_by_key(|event| (event.at, event.cpu));
        events
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_is_written_is_read_back(events in events(300)) {
        let bytes = written(&events);
        let (found, end) = read(&bytes);
        prop_assert_eq!(&found, &events);
        let end = end.unwrap();
        prop_assert_eq!((end.events(), end.lost(), end.skipped), (events.len() as u64, 4, 2));
        prop_assert_eq!((end.after, end.command_status), (trailer(4).after, Some(3)));
    }

    #[test]
    fn changed_bytes_are_found(events in events(60), at in any::<prop::sample::Index>(), bits in 1_u8..) {
        let mut bytes = written(&events);
        let at = at.index(bytes.len());
        bytes[at] ^= bits;
        let (found, end) = read(&bytes);
        prop_assert!(end.is_err(), "byte {at} of {}", bytes.len());
        prop_assert!(is_a_part(&found, &events));
    }

    #[test]
    fn summaries_count_every_event(events in events(200)) {
        let bytes = written(&events);
        let mut reader = TraceReader::new(&bytes[..], "t".to_owned()).unwrap();
        let info = info(&mut reader, "t", |_| true).unwrap();
        prop_assert!(info.is_complete);
        let count = |wanted: Kind| events.iter().filter(|event| event.action.kind() == wanted).count() as u64;
        for (kind, counted) in Kind::ALL.iter().zip(&info.kinds) {
            prop_assert_eq!(counted.events, count(*kind));
        }
        prop_assert_eq!(info.requests.allocations + info.requests.failed, count(Kind::Alloc));
        prop_assert!(info.requests.needed_lock <= count(Kind::Alloc));
        let lives = &info.lifetimes;
        prop_assert_eq!(lives.whole + lives.partial + lives.earlier, count(Kind::Free));
        prop_assert_eq!(lives.classes.iter().map(|class| class.frees).sum::<u64>(), lives.whole + lives.partial);
        prop_assert_eq!(info.fallbacks.iter().map(|one| one.events).sum::<u64>(), count(Kind::Fallback));
        prop_assert_eq!(info.rates.intervals.iter().map(|one| one.events).sum::<u64>(), events.len() as u64);
        let drained = |event: &Event| match event.action {
            Action::Drain { order, .. } => order.pages().get(),
            _ => 0,
        };
        prop_assert_eq!(
            info.cpus.iter().map(|cpu| cpu.moved.drained_pages).sum::<u64>(),
            events.iter().map(drained).sum::<u64>()
        );
    }
}

/// Whether events are some of the written ones, in their order.
fn is_a_part(found: &[Event], written: &[Event]) -> bool {
    let mut written = written.iter();
    found.iter().all(|event| written.any(|known| known == event))
}

/// A small file with several blocks, and its events.
fn small() -> (Vec<u8>, Vec<Event>) {
    let mut writer = TraceWriter::new(Vec::new(), &header()).unwrap();
    let mut events = Vec::new();
    for block in 0..3_u64 {
        for &cpu in &CPUS {
            let mut encoder = BlockEncoder::new(CpuId::new(cpu));
            for at in 0..5 {
                let page = Pfn::new(100 * block + at);
                let at = Moment::from_ns(1000 * block + 10 * at + u64::from(cpu));
                let action = Action::Free { page, order: Order::PAGE };
                assert!(encoder.push(at, Tid(5), action.clone()).is_none());
                events.push(Event { at, cpu: CpuId::new(cpu), thread: Tid(5), action });
            }
            writer.block(&encoder.finish().unwrap()).unwrap();
        }
        writer.complete(Moment::from_ns(1000 * (block + 1))).unwrap();
    }
    events.sort_by_key(|event| (event.at, event.cpu));
    (writer.finish(trailer(0)).unwrap().0, events)
}

#[test]
fn a_file_cut_anywhere_reads_as_cut_and_gives_only_its_events() {
    let (bytes, events) = small();
    assert_eq!(read(&bytes).0, events);
    let mut lengths = std::collections::BTreeSet::new();
    for length in 0..bytes.len() {
        let (found, end) = read(&bytes[..length]);
        match end {
            Err(TraceError::Cut { events, .. }) => assert_eq!(events, found.len() as u64, "at {length}"),
            Err(TraceError::Foreign { .. }) if length == 0 => {}
            end => panic!("cut at {length}: {end:?}"),
        }
        // The events of whole blocks, merged.
        assert_eq!(found.len() % 5, 0);
        assert!(is_a_part(&found, &events), "cut at {length}");
        lengths.insert(found.len());
    }
    assert_eq!(lengths.len(), 10, "files with 0 to 9 blocks: {lengths:?}");
}

/// Files of version 1 stay readable: this one was written when the version was new.
#[test]
fn a_stored_file_is_read() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/small.trace");
    let bytes = std::fs::read(&path).unwrap();
    let (events, end) = read(&bytes);
    assert_eq!((events, end.unwrap().events()), (small().1, 45));
}

#[test]
fn every_changed_bit_of_a_small_file_is_found() {
    let (bytes, events) = small();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            let (found, end) = read(&changed);
            assert!(end.is_err(), "bit {bit} of byte {at}");
            assert!(is_a_part(&found, &events), "bit {bit} of byte {at}");
        }
    }
}

#[test]
fn records_that_are_missing_moved_or_added_are_found() {
    let (bytes, _) = small();
    let mut starts = vec![FIRST_LINE.len()];
    while *starts.last().unwrap() < bytes.len() {
        let at = *starts.last().unwrap();
        let length = u32::from_le_bytes(bytes[at + 1..at + 5].try_into().unwrap()) as usize;
        starts.push(at + 9 + length);
    }
    let records: Vec<&[u8]> = starts.windows(2).map(|range| &bytes[range[0]..range[1]]).collect();
    assert_eq!(records.len(), 1 + 9 + 3 + 1);
    let file = |records: &[&[u8]]| [FIRST_LINE.as_bytes(), &records.concat()].concat();
    assert!(read(&file(&records)).1.is_ok());
    for at in 0..records.len() {
        let mut without = records.clone();
        without.remove(at);
        assert!(read(&file(&without)).1.is_err(), "without record {at}");
        let mut twice = records.clone();
        twice.insert(at, records[at]);
        assert!(read(&file(&twice)).1.is_err(), "with record {at} twice");
        if at > 0 {
            let mut swapped = records.clone();
            swapped.swap(at - 1, at);
            assert!(read(&file(&swapped)).1.is_err(), "with records {at} and the one before swapped");
        }
    }
    let longer = [&bytes[..], b"x"].concat();
    assert!(matches!(read(&longer).1, Err(TraceError::Damaged { .. })));
}

#[test]
fn foreign_files_are_refused_by_name() {
    for text in ["PERFILE2 and more", "hello, this is some text\n", "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"] {
        let error = read(text.as_bytes()).1.unwrap_err();
        assert!(matches!(error, TraceError::Foreign { .. }), "{error}");
        assert!(error.to_string().starts_with("t: it does not begin with"), "{error}");
    }
    let error = read(b"zonal trace 2\nand more of it").1.unwrap_err();
    assert_eq!(error.to_string(), "t: the trace has format version 2; this program reads version 1");
}

#[test]
fn late_events_come_late_and_are_counted() {
    let mut writer = TraceWriter::new(Vec::new(), &header()).unwrap();
    for (cpu, at) in [(0, 100), (1, 200), (0, 50), (1, 300)] {
        let mut encoder = BlockEncoder::new(CpuId::new(cpu));
        encoder.push(Moment::from_ns(at), Tid(1), Action::Lost { events: None });
        writer.block(&encoder.finish().unwrap()).unwrap();
        writer.complete(Moment::from_ns(at + 1)).unwrap();
    }
    let bytes = writer.finish(trailer(0)).unwrap().0;
    let mut reader = TraceReader::new(&bytes[..], "t".to_owned()).unwrap();
    let moments: Vec<u64> = (&mut reader).map(|event| event.unwrap().at.ns()).collect();
    assert_eq!((moments, reader.late()), (vec![100, 200, 50, 300], 1));
    assert_eq!(reader.trailer().unwrap().events(), 4);
}

#[test]
fn flags_have_the_kernels_names() {
    let header = header();
    let names = [(0xc0, "BOTH"), (0x40, "ONE"), (0xc1, "BOTH|0x1"), (0x80, "0x80"), (0, "0x0")];
    for (bits, text) in names {
        assert_eq!(header.gfp_text(Gfp(bits)), text);
    }
}

#[test]
fn headers_with_endless_lists_are_refused() {
    let formats = || FormatText { name: String::new(), text: String::new(), left_out: Vec::new() };
    let long = |change: &dyn Fn(&mut Header)| {
        let mut header = header();
        change(&mut header);
        let written = TraceWriter::new(Vec::new(), &header).unwrap().finish(trailer(0)).unwrap().0;
        read(&written).1.unwrap_err().to_string()
    };
    let changes: [&dyn Fn(&mut Header); 6] = [
        &|header| header.recorder = (0..70_000).collect(),
        &|header| header.absent = vec![String::new(); 2000],
        &|header| header.gfp_names = vec![(1, String::new()); 2000],
        &|header| header.formats = vec![formats(); 2000],
        &|header| header.formats = vec![FormatText { left_out: vec![String::new(); 2000], ..formats() }],
        &|header| header.command = vec![String::new(); 2_000_000],
    ];
    for (place, change) in changes.into_iter().enumerate() {
        let error = long(change);
        assert!(error.contains("a list has more than"), "{place}: {error}");
    }
}

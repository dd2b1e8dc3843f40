//! Checks that an error in a machine file is reported in one line that names the file, the field and the remedy.

use std::fs;

use serde_json::{Value, json};
use zonal::machine::ZoneDescription;
use zonal::settings::Setting;
use zonal_machine::{MachineModel, OwnedMachine};

/// Returns a valid machine, in which each test makes one error.
fn duo() -> Value {
    json!({
        "name": "duo", "page_bytes": 4096,
        "nodes": [
            {"id": 0, "cpus": [0, 1], "distances": {"0": 10, "1": 20}},
            {"id": 1, "cpus": [2], "distances": {"0": 20, "1": 10}}
        ],
        "zones": [
            {"node": 0, "kind": "DMA32", "start": 4096, "spanned": 1000, "present": 900, "managed": 800},
            {"node": 1, "kind": "DMA32", "start": 6000, "spanned": 1000, "present": 1000, "managed": 800}
        ],
        "settings": {"min_free_kbytes": 512},
        "observed": {"kernel": "6.12", "fallback_order": {"0": [0, 1]},
                     "zones": [{"node": 0, "kind": "DMA32", "min": 1, "protection": [0, 0, 0, 0, 0]}]}
    })
}

fn broken(pointer: &str, value: Value) -> String {
    let mut file = duo();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    match file.pointer_mut(parent).unwrap() {
        Value::Object(map) => {
            map.insert(key.to_owned(), value);
        }
        Value::Array(list) => list[key.parse::<usize>().unwrap()] = value,
        other => panic!("{other} has no fields"),
    }
    MachineModel::from_json(&file.to_string(), "duo.json").unwrap_err().to_string()
}

#[test]
fn each_invalid_setting_is_named() {
    for (pointer, value, expected) in [
        ("/settings/lowmem_reserve_ratio", json!([256]), "settings.lowmem_reserve_ratio: 1 ratios;"),
        ("/settings/min_unmapped_ratio", json!(101), "settings.min_unmapped_ratio: 101 is too large"),
        ("/settings/watermark_scale_factor", json!(0), "settings.watermark_scale_factor: 0 is too small"),
        (
            "/settings/swappiness",
            json!(60),
            "no setting is named `swappiness`; the settings are min_free_kbytes",
        ),
        ("/settings/min_free_kbyte", json!(60), "the nearest name is min_free_kbytes"),
        ("/settings/pageset_tuning", json!("depth"), "pageset_tuning is a setting of pools"),
        (
            "/settings/watermark_scale_factor",
            json!(1.5),
            "settings.watermark_scale_factor: invalid type: floating",
        ),
    ] {
        let message = broken(pointer, value);
        assert!(message.contains(expected), "{pointer}: {message}");
        assert!(message.starts_with("duo.json: ") && !message.contains('\n'), "{message}");
    }
}

#[test]
fn each_invalid_field_is_named() {
    let zone = |start: i64| json!({"node": 1, "kind": "DMA32", "start": start, "spanned": 10, "present": 10, "managed": 10});
    let cases = [
        ("/page_bytes", json!(5000), "page_bytes: 5000 is not a page size"),
        ("/nodes", json!([]), "nodes: there is no node"),
        ("/nodes/1/id", json!(0), "nodes[1].id: node 0 is listed twice"),
        ("/nodes/1/id", json!(1024), "nodes[1].id: 1024 is not a node id"),
        ("/nodes/1/id", json!(-1), "nodes[1].id: invalid value: integer `-1`"),
        ("/nodes/0/cpus", json!([0, 2]), "nodes[1].cpus: CPU 2 is on node 0 and again on node 1"),
        ("/nodes/0/cpus", json!([0, 0]), "nodes[0].cpus: CPU 0 is on node 0 and again on node 0"),
        ("/nodes/0/cpus", json!([1 << 20]), "nodes[0].cpus: 1048576 is not a CPU id"),
        ("/nodes/0/cpus", json!(["0"]), "nodes[0].cpus[0]: invalid type: string \"0\""),
        ("/nodes/0/distances", json!({"0": 10}), "nodes[0].distances: node 0 has no distance to node 1"),
        (
            "/nodes/0/distances",
            json!({"0": 11, "1": 20}),
            "the distance of node 0 to itself is 11; it must be 10",
        ),
        (
            "/nodes/0/distances",
            json!({"0": 10, "1": -20}),
            "from node 0 to node 1 is -20; it must be 10 to 255",
        ),
        (
            "/nodes/0/distances",
            json!({"0": 10, "1": 256}),
            "from node 0 to node 1 is 256; it must be 10 to 255",
        ),
        ("/nodes/0/distances", json!({"0": 10, "1": 9}), "from node 0 to node 1 is 9; it must be 10 to 255"),
        ("/nodes/0/distances", json!({"0": 10, "1": 20, "7": 20}), "a distance to node 7, which the machine"),
        (
            "/nodes/0/distances",
            json!({"0": 10, "one": 20}),
            "nodes[0].distances.?: invalid value: expected key to be a number",
        ),
        ("/nodes/0/distances", json!([10, 20]), "nodes[0].distances: invalid type: sequence, expected a map"),
        ("/possible_offline", json!([1]), "possible_offline[0]: node 1 is both online and possible_offline"),
        ("/possible_offline", json!([4, 4]), "possible_offline[1]: node 4 is listed twice"),
        ("/zones", json!([]), "zones: there is no zone; at least one is needed"),
        ("/zones/1/start", json!(5000), "zones[1].start: node 1 DMA32 overlaps node 0 DMA32 at frame 5000"),
        ("/zones/1/managed", json!(1001), "zones[1]: node 1 DMA32: spanned 1000, present 1000, managed 1001"),
        ("/zones/1/node", json!(2), "zones[1].node: node 2 is not a node of the machine"),
        ("/zones/1/node", json!(0), "zones[1]: node 0 has two DMA32 zones"),
        (
            "/zones/1/kind",
            json!("HighMem"),
            "zones[1].kind: unknown variant `HighMem`, expected one of `DMA`",
        ),
        ("/zones/1/spanned", json!(1_u64 << 53), "zones[1].spanned: node 1 DMA32 spans 9007199254"),
        ("/zones/1/start", json!(u64::MAX), "zones[1].spanned: node 1 DMA32 spans 1000 frames from"),
        ("/zones/1", json!({"node": 1}), "zones[1]: missing field `kind`"),
        ("/observed/kernel", json!("new"), "observed.kernel: \"new\" is not a kernel version"),
        ("/observed/fallback_order", json!({"0": [0, 5]}), "observed.fallback_order.0: node 5 is not a node"),
        (
            "/observed/fallback_order",
            json!({"0": [0, 1, 0]}),
            "observed.fallback_order.0: node 0 occurs twice; each node may occur only once",
        ),
        ("/observed/zones", json!([zone(1)]), "unknown field `managed`, expected one of `node`"),
        ("/observed/zones/0/kind", json!("Normal"), "observed.zones[0]: node 0 has no Normal zone"),
        ("/observed/zones/0/protection", json!([0]), "node 0 DMA32: 1 columns; there must be five"),
        ("/colour", json!("red"), "unknown field `colour`, expected one of `name`"),
    ];
    for (pointer, value, expected) in cases {
        let message = broken(pointer, value);
        assert!(message.contains(expected), "{pointer}: {message}");
        assert!(message.starts_with("duo.json: ") && !message.contains('\n'), "{message}");
    }
}

#[test]
fn json_errors_name_line_and_column() {
    for (text, expected) in [
        ("", "duo.json: the file: EOF while parsing a value at line 1 column 0"),
        ("{\n \"name\": }", "line 2 column 10"),
        ("{\"name\": \"a\"} x", "missing field"),
        ("[1]", "invalid"),
    ] {
        let message = MachineModel::from_json(text, "duo.json").unwrap_err().to_string();
        assert!(message.contains(expected) && !message.contains('\n'), "{message}");
    }
    let trailing = format!("{} x", duo());
    let message = MachineModel::from_json(&trailing, "duo.json").unwrap_err().to_string();
    assert!(message.contains("trailing characters"), "{message}");
}

#[test]
fn duplicate_distances_are_refused() {
    let text = duo().to_string().replacen("{\"0\":10,\"1\":20}", "{\"0\":10,\"1\":20,\"1\":30}", 1);
    let message = MachineModel::from_json(&text, "duo.json").unwrap_err().to_string();
    assert!(message.contains("nodes[0].distances: node 0 has two distances to node 1"), "{message}");
}

#[test]
fn unreadable_files_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing.json");
    let message = MachineModel::read(&missing).unwrap_err().to_string();
    assert!(message.contains("missing.json"), "{message}");
    fs::write(&missing, [0xff, 0xfe]).unwrap();
    let message = MachineModel::read(&missing).unwrap_err().to_string();
    assert!(message.contains("missing.json") && message.contains("UTF-8"), "{message}");
}

/// A machine file has the same settings as the machine, and refuses what their types and ranges exclude.
#[test]
fn every_setting_of_a_machine_is_read_and_written() {
    for setting in Setting::ALL {
        let name = setting.info().name;
        let read = |value: &Value| {
            let mut file = duo();
            file["settings"][name] = value.clone();
            MachineModel::from_json(&file.to_string(), "duo.json").map_err(|error| error.to_string())
        };
        let (right, wrong) = match setting {
            Setting::MinFreeKbytes => (vec![json!(0), json!(1_u64 << 52)], json!((1_u64 << 52) + 1)),
            Setting::LowmemReserveRatio => {
                (vec![json!([1, 2, 3, 4]), json!([0, 0, 0, 0, u32::MAX])], json!([1]))
            }
            _ => {
                let range = setting.info().values.range().unwrap_or(0..=0);
                (vec![json!(range.start()), json!(range.end())], json!(range.end() + 1))
            }
        };
        if !zonal_machine::Settings::ALL.contains(&setting) {
            let error = read(&right[0]).unwrap_err();
            assert!(error.contains(&format!("{name} is a setting of pools")), "{error}");
            continue;
        }
        for value in right {
            let model = read(&value).unwrap();
            let numbers = model.settings.numbers(setting);
            let given = value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
            assert!(
                numbers.iter().zip(given).all(|(number, given)| json!(number) == given),
                "{name}: {numbers:?}"
            );
            assert_eq!(MachineModel::from_json(&model.to_json(), "duo.json").unwrap(), model, "{name}");
        }
        let error = read(&wrong).unwrap_err();
        assert!(error.contains(&format!("settings.{name}: ")), "{error}");
    }
}

#[test]
fn absent_settings_have_their_defaults() {
    let mut file = duo();
    file.as_object_mut().unwrap().retain(|key, _| key != "settings" && key != "observed");
    let model = MachineModel::from_json(&file.to_string(), "duo.json").unwrap();
    assert_eq!(model.settings, zonal_machine::Settings::default());
    assert_eq!(model.settings.lowmem_reserve_ratio, [256, 256, 32, 0, 0]);
    assert_eq!(model.observed, None);
}

#[test]
fn accepted_machines_are_accepted_by_the_allocator() {
    let mut file = duo();
    file["zones"][1]["managed"] = json!(0);
    file["nodes"][1]["id"] = json!(1000);
    file["nodes"][0]["distances"] = json!({"0": 10, "1000": 20});
    file["nodes"][1]["distances"] = json!({"0": 20, "1000": 10});
    file["zones"][1]["node"] = json!(1000);
    file["observed"] = json!({});
    let model = MachineModel::from_json(&file.to_string(), "duo.json").unwrap();
    assert_eq!(OwnedMachine::from(&model).with(|machine| machine.zones().len()), Ok(2));
}

#[test]
fn empty_zones_and_zones_beyond_the_last_frame_are_refused() {
    let text = broken("/zones/1", zone_of_node_1(8000, 0));
    assert!(text.contains("zones[1].spanned: node 1 DMA32 spans no frame"), "{text}");
    // The limit is 2^62 bytes, for any page size.
    for (start, spanned) in [((1_u64 << 50) - 10, 11), (1, (1 << 50) + 1), (u64::MAX, u64::MAX)] {
        let text = broken("/zones/1", zone_of_node_1(start, spanned));
        assert!(
            text.contains("zones[1].spanned: ") && text.contains("must end by frame 1125899906842624"),
            "{text}"
        );
    }
    let mut file = duo();
    file["page_bytes"] = json!(1 << 30);
    let read =
        |file: &Value| MachineModel::from_json(&file.to_string(), "duo.json").map_err(|e| e.to_string());
    file["zones"][1] = zone_of_node_1(1 << 31, 1 << 31);
    assert!(read(&file).is_ok());
    file["zones"][1] = zone_of_node_1(1 << 31, (1 << 31) + 1);
    assert!(read(&file).unwrap_err().contains("must end by frame 4294967296"));
}

/// A zone of the allocator has at most 2^32 frames, counted from the aligned start of a maximum-order block.
#[test]
fn a_zone_larger_than_the_allocators_zones_becomes_several() {
    let largest = 1_u64 << 32;
    let spans = [
        (1 << 33, largest, 1),
        ((1 << 33) + 1, largest - 1, 1),
        ((1 << 33) + 1, largest, 2),
        (8000, 1, 1),
        (8000, 40 << 28, 3),
        ((1 << 50) - (40 << 28), 40 << 28, 3),
    ];
    for (start, spanned, parts) in spans {
        let mut file = duo();
        file["zones"][1] = zone_of_node_1(start, spanned);
        let model = MachineModel::from_json(&file.to_string(), "duo.json").unwrap();
        let check = |machine: &zonal::Machine<'_>| {
            let [_, zones @ ..] = machine.zones() else { panic!("there are zones") };
            assert_eq!(zones.len(), parts, "{spanned} frames from {start}");
            let sum = |count: fn(&ZoneDescription<'_>) -> u64| zones.iter().map(count).sum::<u64>();
            assert_eq!(sum(|zone| zone.span.count.get()), spanned);
            // The first nine tenths of the zone's frames are managed.
            let managed =
                |zone: &ZoneDescription<'_>| zone.managed.iter().map(|range| range.count.get()).sum();
            assert_eq!(sum(managed), spanned * 9 / 10);
            assert_eq!(zones[0].span.start.get(), start);
        };
        OwnedMachine::from(&model).with(check).unwrap();
    }
}

/// Returns zone DMA32 of node 1 with these frames, of which nine tenths are managed.
fn zone_of_node_1(start: u64, spanned: u64) -> Value {
    let managed = (u128::from(spanned) * 9 / 10) as u64;
    json!({"node": 1, "kind": "DMA32", "start": start, "spanned": spanned, "present": managed, "managed": managed})
}

#[test]
fn errors_are_one_line_for_any_key() {
    for text in ["{\"na\\nme\": 1}", "{\"nodes\": [{\"id\\r\": 1}]}"] {
        let error = MachineModel::from_json(text, "keys.json").unwrap_err().to_string();
        assert!(error.starts_with("keys.json: ") && !error.contains(['\n', '\r']), "{error:?}");
    }
}

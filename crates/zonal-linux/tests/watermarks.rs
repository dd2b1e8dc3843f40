//! The default distance between the watermarks of a pool, which follows its size.

use zonal::Config;
use zonal::units::ZoneKind;
use zonal_linux::{Pool, PoolBuilder};
use zonal_machine::{KernelVersion, Rules, predict, preset};

fn factor(builder: PoolBuilder<'_>) -> String {
    builder.build().unwrap().setting("watermark_scale_factor").unwrap().to_string()
}

#[test]
fn watermarks_are_10_mib_apart_within_bounds() {
    let of = |bytes| Pool::default_config(Some(bytes)).watermarks.scale_factor;
    assert_eq!([0, 1, 128 << 20, 200 << 20].map(of), [500; 4]);
    assert_eq!([256 << 20, 512 << 20].map(of), [390, 195]);
    assert_eq!([1 << 30, u64::MAX].map(of), [100; 2]);
    assert!((100..=500).contains(&Pool::default_config(None).watermarks.scale_factor));
    // Apart from the past forms, nothing else differs from the defaults of the core, which are those of Linux.
    let mut config = Pool::default_config(None);
    config.watermarks.scale_factor = Config::default().watermarks.scale_factor;
    assert_eq!(config, Config { past: zonal_history::PAST, ..Config::default() });
}

#[test]
fn pools_without_a_configuration_have_the_default_of_their_size() {
    assert_eq!(factor(Pool::builder().size(64 << 20)), "500");
    assert_eq!(factor(Pool::builder().size(512 << 20)), "195");
    assert_eq!(factor(Pool::builder().size(64 << 20).config(Config::default())), "10");
    let pool = Pool::builder().size(128 << 20).fake_nodes(1).build().unwrap();
    let distance = || {
        let marks = pool.zones().next().unwrap().watermarks;
        (marks.low.get() - marks.min.get(), marks.high.get() - marks.low.get())
    };
    assert_eq!(distance(), (1638, 1638)); // 5 % of 32768 frames
    pool.set_setting("watermark_scale_factor", "10").unwrap();
    assert_eq!(distance(), (90, 90)); // a quarter of `min`, which is more than 0.1 %
}

/// Descriptions of machines predict what Linux does. A pool that emulates such a machine is memory of this one.
#[test]
fn described_machines_keep_the_default_of_linux() {
    assert_eq!(Config::default().watermarks.scale_factor, 10);
    let model = preset("quad-10-12-32").unwrap();
    assert_eq!(model.settings.watermark_scale_factor, 10);
    let predicted = predict(&model, &Rules::of(KernelVersion::NEWEST)).zones;
    let normal = model.zones.iter().zip(&predicted).filter(|(zone, _)| zone.kind == ZoneKind::Normal);
    for (zone, predicted) in normal {
        let marks = predicted.watermarks;
        assert_eq!(marks.low.get() - marks.min.get(), zone.managed.get() / 1000, "{}", zone.node);
    }
    assert_eq!(factor(Pool::builder().size(64 << 20).machine(&model).unwrap()), "500");
}

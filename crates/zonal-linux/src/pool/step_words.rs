//! Steps of requests as two words each, as the cells of `pool/recent.rs` hold them.
//!
//! The bytes of the first word are the step, the watermark, the outcome and its detail, then two bytes for the zone's
//! index. The second word is a number of frames or nanoseconds.

use zonal::explain::{Exclusion, Outcome, ReclaimStep, Step, ZoneName};
use zonal::rules::watermarks::Watermark;
use zonal::units::PageCount;

/// A step in two words.
pub(super) type StepWords = [u64; 2];

const EXCLUSIONS: [Exclusion; 3] = [Exclusion::ZoneLimit, Exclusion::Node, Exclusion::AddressLimit];
const RECLAIM_STEPS: [ReclaimStep; 7] = [
    ReclaimStep::FailedRecently,
    ReclaimStep::NotTried,
    ReclaimStep::TooFew,
    ReclaimStep::Nothing,
    ReclaimStep::Some,
    ReclaimStep::Success,
    ReclaimStep::WouldRun,
];

/// Returns a step in words.
pub(super) fn encode(step: Step) -> StepWords {
    let (bytes, zone, value): ([u8; 4], Option<ZoneName>, u64) = match step {
        Step::Near(zone) => ([0; 4], Some(zone), 0),
        Step::Zone { zone, watermark, outcome } => {
            let (outcome, detail, value) = match outcome {
                Outcome::NotAllowed(why) => (0, index(&EXCLUSIONS, &why), 0),
                Outcome::MarkedFull { within_ns } => (1, 0, within_ns),
                Outcome::Below { short_by, is_reserved } => (2, is_reserved.into(), short_by.get()),
                Outcome::NoBlock => (3, 0, 0),
                Outcome::Lost => (4, 0, 0),
                Outcome::Reclaim(step) => (5, index(&RECLAIM_STEPS, &step), 0),
                Outcome::Serves => (6, 0, 0),
            };
            ([1, (watermark == Watermark::Min).into(), outcome, detail], Some(zone), value)
        }
        Step::BackgroundWoken => ([2, 0, 0, 0], None, 0),
        Step::DirectReclaim { freed } => ([3, 0, 0, 0], None, freed.get()),
        Step::WouldReclaim { has_reclaimable } => ([4, 0, 0, has_reclaimable.into()], None, 0),
        Step::PagesetsDrained { frames } => ([5, 0, 0, 0], None, frames.get()),
        Step::RangeReclaimed { freed, is_empty } => ([6, 0, 0, is_empty.into()], None, freed.get()),
    };
    let zone = zone.map_or(0, |zone| zone.id.index() as u64);
    [u64::from(u32::from_le_bytes(bytes)) | zone << 32, value]
}

/// Returns the step that words hold; `zones` are the names of all zones. Returns `None` if they hold none.
pub(super) fn decode(words: StepWords, zones: &[ZoneName]) -> Option<Step> {
    let [head, value] = words;
    let [kind, mark, outcome, detail, ..] = head.to_le_bytes();
    let zone = usize::try_from(head >> 32).ok().and_then(|index| zones.get(index).copied());
    let (frames, flag) = (PageCount::new(value), detail != 0);
    Some(match kind {
        0 => Step::Near(zone?),
        1 => {
            let outcome = match outcome {
                0 => Outcome::NotAllowed(*EXCLUSIONS.get(usize::from(detail))?),
                1 => Outcome::MarkedFull { within_ns: value },
                2 => Outcome::Below { short_by: frames, is_reserved: flag },
                3 => Outcome::NoBlock,
                4 => Outcome::Lost,
                5 => Outcome::Reclaim(*RECLAIM_STEPS.get(usize::from(detail))?),
                6 => Outcome::Serves,
                _ => return None,
            };
            let watermark = if mark == 0 { Watermark::Low } else { Watermark::Min };
            Step::Zone { zone: zone?, watermark, outcome }
        }
        2 => Step::BackgroundWoken,
        3 => Step::DirectReclaim { freed: frames },
        4 => Step::WouldReclaim { has_reclaimable: flag },
        5 => Step::PagesetsDrained { frames },
        6 => Step::RangeReclaimed { freed: frames, is_empty: flag },
        _ => return None,
    })
}

/// Returns the index of `one` in a list with all such values.
fn index<T: PartialEq>(all: &[T], one: &T) -> u8 {
    all.iter().position(|other| other == one).unwrap_or(usize::from(u8::MAX)) as u8
}

#[cfg(test)]
mod tests {
    use zonal::units::{NodeId, ZoneId, ZoneKind};

    use super::*;

    #[test]
    fn every_step_is_what_its_words_hold() {
        let name = |index: usize, node, kind| ZoneName {
            id: ZoneId::new(index).unwrap(),
            node: NodeId::new(node).unwrap(),
            kind,
        };
        let zones =
            [name(0, 0, ZoneKind::Dma32), name(1, 0, ZoneKind::Normal), name(2, 700, ZoneKind::Movable)];
        let large = PageCount::new(u64::MAX);
        let mut outcomes = vec![
            Outcome::MarkedFull { within_ns: 7 },
            Outcome::Below { short_by: large, is_reserved: true },
            Outcome::Below { short_by: PageCount::ZERO, is_reserved: false },
            Outcome::NoBlock,
            Outcome::Lost,
            Outcome::Serves,
        ];
        outcomes.extend(EXCLUSIONS.map(Outcome::NotAllowed));
        outcomes.extend(RECLAIM_STEPS.map(Outcome::Reclaim));
        let mut steps = vec![Step::BackgroundWoken, Step::DirectReclaim { freed: large }];
        steps.extend([true, false].map(|has_reclaimable| Step::WouldReclaim { has_reclaimable }));
        steps.extend([true, false].map(|is_empty| Step::RangeReclaimed { freed: large, is_empty }));
        steps.push(Step::PagesetsDrained { frames: PageCount::new(3) });
        for zone in zones {
            steps.push(Step::Near(zone));
            let marks = [Watermark::Low, Watermark::Min].into_iter();
            let each =
                |watermark| outcomes.iter().map(move |&outcome| Step::Zone { zone, watermark, outcome });
            steps.extend(marks.flat_map(each));
        }
        for step in steps {
            assert_eq!(decode(encode(step), &zones), Some(step));
        }
        assert_eq!(decode([7, 0], &zones), None);
        assert_eq!(decode([3 << 32, 0], &zones), None, "no such zone");
    }
}

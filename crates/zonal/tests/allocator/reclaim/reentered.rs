//! Tests of requests and frees by a handler that interrupted its own thread. The handler waits for no lock, which the
//! platform of these tests would detect. Calls that are refused change no state, and frees that are deferred are finished
//! later. Related files: `deferred_frees.rs` tests single deferred frees, and `interrupted.rs` interrupts operations.

use std::collections::BTreeMap;

use crate::common::{Plan, Random, TestPlatform, order, reenter_on_this_thread, run_on};
use zonal::config::{Hardening, InvalidFree, ZeroOn};
use zonal::error::{AllocError, FreeError};
use zonal::request::PageKind;
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::units::{Order, PageCount, Pfn};
use zonal::{Allocator, Config, Request};

fn configs() -> Vec<Config> {
    let tunings =
        [PagesetTuning::Depth, PagesetTuning::DepthPublished, PagesetTuning::Stepwise, PagesetTuning::Fixed];
    let mut configs: Vec<Config> =
        tunings.into_iter().map(|tuning| Config { tuning, ..Config::default() }).collect();
    configs.push(Config { invalid_free: InvalidFree::Checked, ..Config::default() });
    let hardening =
        Hardening { quarantine: PageCount::new(16), zero: ZeroOn::Request, ..Hardening::default() };
    configs.push(Config { hardening, ..Config::default() });
    configs
}

/// How many handler calls were served and refused: allocations, frees, and bulk calls.
#[derive(Default, Debug)]
struct Counts {
    takes: [u64; 2],
    gives: [u64; 2],
    bulks: [u64; 2],
}

/// A thread that sometimes acts as itself and sometimes as its signal handler.
struct Player<'a> {
    a: &'a Allocator<'static, TestPlatform>,
    random: Random,
    in_handler: bool,
    held: BTreeMap<u64, Order>,
    counts: Counts,
}

impl Player<'_> {
    fn count(&mut self, of: fn(&mut Counts) -> &mut [u64; 2], refused: bool) {
        assert!(self.in_handler || !refused, "refused outside of a handler");
        of(&mut self.counts)[usize::from(refused)] += u64::from(self.in_handler);
    }

    fn take(&mut self) {
        let order = order(self.random.pick(&[0, 0, 0, 0, 1, 3, 9]));
        let kind = self.random.pick(&PageKind::ALL);
        match self.a.alloc(&Request::new(order).kind(kind).no_wait()) {
            Ok(block) => {
                self.count(|counts| &mut counts.takes, false);
                assert!(self.held.insert(block.first.get(), order).is_none(), "allocated twice");
            }
            Err(AllocError::Reentered) => self.count(|counts| &mut counts.takes, true),
            Err(AllocError::OutOfMemory(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn take_in_bulk(&mut self) {
        let mut frames = [Pfn::new(0); 80];
        match self.a.alloc_bulk(&Request::page().no_wait(), &mut frames) {
            Ok(came) => {
                self.count(|counts| &mut counts.bulks, self.in_handler && came < 80);
                self.held.extend(frames[..came].iter().map(|frame| (frame.get(), Order::PAGE)));
            }
            Err(AllocError::Reentered) => self.count(|counts| &mut counts.bulks, true),
            Err(AllocError::OutOfMemory(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn give(&mut self) {
        let from = self.random.below(3 * 4096);
        let Some((&frame, &order)) = self.held.range(from..).next() else { return };
        match self.a.free(Pfn::new(frame), order) {
            Ok(()) => {
                self.count(|counts| &mut counts.gives, false);
                self.held.remove(&frame);
                let again = self.a.free(Pfn::new(frame), order);
                let is_refused = matches!(again, Err(FreeError::NotAllocated(_) | FreeError::Quarantined(_)));
                assert!(is_refused, "freed twice: {again:?}");
            }
            Err(FreeError::Reentered(first)) => {
                self.count(|counts| &mut counts.gives, true);
                assert_eq!(first.get(), frame);
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn give_in_bulk(&mut self) {
        let singles = self.held.iter().filter(|(_, order)| **order == Order::PAGE).take(80);
        let frames: Vec<Pfn> = singles.map(|(&frame, _)| Pfn::new(frame)).collect();
        let freed = self.a.free_bulk(&frames).map_or_else(
            |error| {
                assert_eq!(error.error, FreeError::Reentered(frames[error.freed]));
                error.freed
            },
            |()| frames.len(),
        );
        self.count(|counts| &mut counts.bulks, freed < frames.len());
        frames[..freed].iter().for_each(|frame| _ = self.held.remove(&frame.get()));
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn handlers_are_served_without_locks_or_refused() {
    for (seed, config) in configs().into_iter().enumerate() {
        let world = Plan::even(2, 2, 4096).build(&config);
        let (a, random) = (&world.allocator, Random(seed as u64));
        let (held, counts) = (BTreeMap::new(), Counts::default());
        let mut player = Player { a, random, in_handler: false, held, counts };
        let mut most_deferred = 0;
        for step in 0..40_000 {
            run_on(player.random.below(4) as u32);
            // Many handler calls in succession fill their lists of deferred frees.
            if player.random.once_in(if player.in_handler { 40 } else { 80 }) {
                player.in_handler = !player.in_handler;
            }
            reenter_on_this_thread(player.in_handler);
            match player.random.below(8) {
                0..4 if player.held.len() < 3000 => player.take(),
                4 => player.take_in_bulk(),
                5 => player.give_in_bulk(),
                _ => player.give(),
            }
            if step % 64 == 0 {
                let held: PageCount = player.held.values().map(|order| order.pages()).sum();
                let accounting = a.accounting();
                assert!(accounting.balance(), "{accounting:?}");
                most_deferred = most_deferred.max(accounting.allocated.get() - held.get());
            }
        }
        reenter_on_this_thread(false);
        let Player { held, counts, .. } = player;
        let Counts { takes, gives, bulks } = &counts;
        assert!([takes, gives, bulks].iter().all(|count| count[1] > 0), "{config:?}: {counts:?}");
        let in_quarantine = config.hardening.quarantine.get() * 2; // of two zones
        assert!(
            most_deferred > in_quarantine + 64,
            "{config:?}: at most {most_deferred} frames were deferred"
        );
        a.drain_pagesets(); // blocks in quarantine count as allocated
        let accounting = a.verify().unwrap();
        let frames = held.values().map(|order| order.pages()).sum();
        assert_eq!((accounting.balance(), accounting.allocated), (true, frames), "{config:?}");
        held.iter().for_each(|(&frame, &order)| a.free(Pfn::new(frame), order).unwrap());
        a.drain_pagesets();
        assert_eq!(a.verify().unwrap().allocated, PageCount::ZERO);
        assert_eq!(a.events().retired, 0);
    }
}

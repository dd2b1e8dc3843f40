//! The `handoff` routine: one thread allocates frames and another frees them, with a ring for each couple.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rtrb::{Consumer, Producer, RingBuffer};
use zonal::units::Order;

use crate::lane::{Lane, Operation, Routine};
use crate::{PageSource, Plan};

/// Frames that a ring can hold.
const RING: usize = 1024;
/// Frames moved between two checks of the ring's fill level.
const STEPS: usize = 64;
/// Number of consecutive waits that spin.
const SPINS: u32 = 100;

/// One side of a couple.
pub(super) struct Handoff<P> {
    side: Side<P>,
    patience: Patience,
}

/// Set when a ring will receive no more frames.
type Closed = Arc<AtomicBool>;

enum Side<P> {
    Allocates {
        ring: Producer<P>,
        _close: CloseAtEnd,
    },
    Frees(Consumer<P>, Closed),
    /// A thread without a partner, which does the work of both sides.
    Alone(Producer<P>, Consumer<P>),
}

/// Closes the ring when its allocating side is dropped, even by a panic, because the freeing side waits until the ring
/// is closed.
struct CloseAtEnd(Closed);

impl Drop for CloseAtEnd {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release); // Release: publishes the frames in the ring; pairs with `finish`.
    }
}

/// Creates allocating and freeing sides alternately, with a ring for each couple. If the number of threads is odd, the
/// last thread system frames to itself.
pub(super) fn couples<P: Copy + Send>(plan: &Plan) -> Vec<Handoff<P>> {
    let threads = plan.threads.get();
    let ring = || RingBuffer::new(plan.batch(RING));
    let couple = |_| {
        let (into, out) = ring();
        let closed = Closed::default();
        let taker = Side::Allocates { ring: into, _close: CloseAtEnd(closed.clone()) };
        [taker, Side::Frees(out, closed)]
    };
    let alone = (threads % 2 == 1).then(|| {
        let (into, out) = ring();
        Side::Alone(into, out)
    });
    let sides = (0..threads / 2).flat_map(couple).chain(alone);
    sides.map(|side| Handoff { side, patience: Patience::default() }).collect()
}

/// Waits for the other side, first by spinning and then by yielding the CPU.
#[derive(Default)]
struct Patience(u32);

impl Patience {
    fn wait(&mut self) {
        self.0 += 1;
        if self.0 < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
    }
}

struct AllocInto<'a, P>(&'a mut Producer<P>);

impl<P> Operation<P> for AllocInto<'_, P> {
    const MOVES: u64 = 1;

    #[inline]
    fn step<S: PageSource<Page = P>>(&mut self, source: &mut S) -> bool {
        let Some(page) = source.alloc(Order::PAGE) else { return false };
        self.0.push(page).is_ok()
    }
}

struct FreeFrom<'a, P>(&'a mut Consumer<P>);

impl<P> Operation<P> for FreeFrom<'_, P> {
    const MOVES: u64 = 1;

    #[inline]
    fn step<S: PageSource<Page = P>>(&mut self, source: &mut S) -> bool {
        self.0.pop().map(|page| source.free(page, Order::PAGE)).is_ok()
    }
}

impl<P: Copy + Send> Routine<P> for Handoff<P> {
    fn round<S: PageSource<Page = P>>(&mut self, lane: &mut Lane<'_, S>) {
        let moved = match &mut self.side {
            // A lane allocates at most as many frames as the ring has free slots, so that every frame fits.
            Side::Allocates { ring, .. } => lane.each(ring.slots().min(STEPS), AllocInto(ring)),
            Side::Frees(ring, _) => lane.each(ring.slots().min(STEPS), FreeFrom(ring)),
            Side::Alone(into, out) => {
                lane.each(into.slots().min(STEPS), AllocInto(into)) + lane.each(out.slots(), FreeFrom(out))
            }
        };
        if moved == 0 {
            self.patience.wait();
        } else {
            self.patience = Patience::default();
        }
    }

    fn finish<S: PageSource<Page = P>>(&mut self, lane: &mut Lane<'_, S>) {
        let (ring, closed) = match &mut self.side {
            Side::Allocates { .. } => return,
            Side::Frees(ring, closed) => (ring, closed),
            Side::Alone(_, ring) => {
                lane.each(ring.slots(), FreeFrom(ring));
                return;
            }
        };
        loop {
            // Acquire: takes all frames in the ring; pairs with `CloseAtEnd::drop`.
            let is_last = closed.load(Ordering::Acquire);
            lane.each(ring.slots(), FreeFrom(ring));
            if is_last {
                return;
            }
            self.patience.wait();
        }
    }
}

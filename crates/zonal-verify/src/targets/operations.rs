//! Operations on a small machine, one thread, against a table of who has which frame.
//!
//! The first bytes are the machine and its configuration (`operations/plan.rs`), each further group is one
//! operation. Whatever the allocator answers is held against the table (`operations/owners.rs`); at the
//! end all is given back, and every frame must be free. Neighbours: `operations/changes.rs` has what
//! changes the machine under it, `operations/cache.rs` what is reclaimed.

mod cache;
mod changes;
mod owners;
mod plan;

use zonal::error::{AllocError, FreeError};
use zonal::policy::{Policy, WeightTable};
use zonal::request::{PageKind, Urgency};
use zonal::units::{MAX_ORDER_LIMIT, Order, PageCount, Pfn, ZoneKind};
use zonal::{Allocator, NodeMask, Request};

use self::cache::{Cache, MANNERS, Manner};
use self::owners::{Frame, Owners};
use self::plan::{Plan, config, node};
use super::choices::Choices;
use super::desk::{Desk, Metadata};

/// Most operations that are played.
const OPERATIONS_MAX: usize = 3000;

type World<'m> = Desk<Cache<'m>>;

/// Plays what `data` says.
pub fn target(data: &[u8]) {
    let mut choices = Choices::new(data);
    let plan = Plan::read(&mut choices);
    let config = config(&mut choices);
    let mut metadata = Metadata::default();
    let desk = Desk::new(Cache::new(Owners::new(&plan)));
    let built = plan.with(|machine| metadata.build(desk, machine, &config));
    let allocator = built.expect("the configuration fits every machine");
    allocator.platform().reclaimer.give_to(&allocator);
    let weights = WeightTable::default();
    let policies = policies(&allocator, &weights, &mut choices);
    let mut player = Player { a: &allocator, plan: &plan, policies, choices };
    for _ in 0..OPERATIONS_MAX {
        if player.choices.is_empty() {
            break;
        }
        player.step();
    }
    player.finish();
}

/// A policy and, if it binds, the nodes it binds to.
type Named<'w, 'm> = (Policy<'w, World<'m>>, Option<NodeMask>);

fn mask(choices: &mut Choices<'_>) -> NodeMask {
    let bits = choices.byte();
    (0..4).filter(|&id| Choices::has(bits, id)).map(|id| node(id as u16)).collect()
}

fn policies<'w, 'm>(
    a: &Allocator<'m, World<'m>>,
    weights: &'w WeightTable<World<'m>>,
    choices: &mut Choices<'_>,
) -> Vec<Named<'w, 'm>> {
    (0..3).for_each(|id| weights.set(node(id), choices.byte() % 4));
    let (preferred, bound, others) = (node(choices.byte().into()), mask(choices), mask(choices));
    let mut policies = vec![(Policy::local(), None)];
    policies.extend(Policy::preferred(a, preferred).map(|policy| (policy, None)));
    policies.extend(Policy::bind(a, bound).map(|policy| (policy, Some(bound))));
    policies.extend(Policy::interleave(a, others).map(|policy| (policy, None)));
    policies.extend(Policy::weighted_interleave(a, others, weights).map(|policy| (policy, None)));
    policies
}

/// A game under way.
struct Player<'p, 'w, 'm, 'd> {
    a: &'m Allocator<'m, World<'m>>,
    plan: &'p Plan,
    policies: Vec<Named<'w, 'm>>,
    choices: Choices<'d>,
}

/// What a request may not leave.
struct Bounds {
    limit: ZoneKind,
    bound: Option<NodeMask>,
    allowed: Option<NodeMask>,
    /// Whether nothing but a lack of any frame can refuse it.
    is_sure: bool,
}

impl<'m> Player<'_, '_, 'm, '_> {
    fn desk(&self) -> &'m World<'m> {
        self.a.platform()
    }

    fn cache(&self) -> &'m Cache<'m> {
        &self.desk().reclaimer
    }

    fn step(&mut self) {
        match self.choices.small(32) {
            0..8 => self.alloc(),
            8..14 => self.free(),
            14 => self.alloc_bulk(),
            15 => self.free_bulk(),
            16 | 17 => self.free_wrongly(),
            18 => self.desk().run_on(self.choices.below(self.plan.cpus() + 1) as u32),
            19 => self.desk().advance_ms(self.choices.below(3000)),
            20 => self.desk().set_ms(self.choices.below(5000)),
            21 => self.a.tick(),
            22 => self.a.drain_pagesets(),
            23 => self.change_cpu(),
            24 => self.take_memory(),
            25 => self.return_memory(),
            26 => self.change_settings(),
            27 => self.cache().behave(self.choices.pick(&MANNERS)),
            28 => self.reclaim(),
            29 => self.free_many(),
            30 => self.alloc_many(),
            _ => self.check(),
        }
    }

    fn reclaim(&mut self) {
        let freed = self.a.background_reclaim(node(u16::from(self.choices.byte() % 4)));
        assert!(self.cache().manner() == Manner::Lying || freed.get() <= self.plan.frames(), "{freed}");
    }

    fn alloc(&mut self) {
        let choices = &mut self.choices;
        let most = choices.pick(&[3, 0, 10, MAX_ORDER_LIMIT]);
        let order = order(choices.byte() % (most + 1));
        let (flags, kind) = (choices.byte(), choices.pick(&PageKind::ALL));
        let urgency = choices.pick(&[Urgency::Normal, Urgency::Reserve, Urgency::High, Urgency::Atomic]);
        let limit = if Choices::has(flags, 0) { choices.pick(&ZoneKind::ALL) } else { ZoneKind::Movable };
        let mut request = Request::new(order).kind(kind).urgency(urgency).zone_limit(limit);
        for (bit, change) in [Request::this_node, Request::no_wait, Request::no_retry].iter().enumerate() {
            if Choices::has(flags, 1 + bit as u32) {
                request = change(request);
            }
        }
        let allowed = Choices::has(flags, 4).then(|| mask(choices));
        if let Some(mask) = &allowed {
            request = request.allowed(mask);
        }
        let policy = Choices::has(flags, 5).then(|| choices.small(self.policies.len()));
        let bound = policy.and_then(|at| self.policies[at].1);
        if let Some(at) = policy {
            request = request.policy(&self.policies[at].0);
        }
        let allowed = allowed.filter(|_| urgency != Urgency::Atomic);
        let is_sure = urgency == Urgency::Reserve && order == Order::PAGE && flags & 0x3f == 0;
        let bounds = Bounds { limit, bound, allowed, is_sure };
        self.request(&request, order, kind, &bounds);
    }

    /// Makes a request and checks the answer; gives whether it was served.
    fn request(&self, request: &Request<'_>, order: Order, kind: PageKind, bounds: &Bounds) -> bool {
        let answer = self.a.alloc(request);
        match answer {
            Ok(block) => {
                assert_eq!(block.order, order);
                let (node, zone) = self.cache().owners().take(block.first, order, kind);
                assert_eq!(node, block.node, "{block:?}");
                assert!(zone <= bounds.limit, "{block:?} is of zone {zone}, beyond {}", bounds.limit);
                let sets = [("policy", bounds.bound), ("cpuset", bounds.allowed)];
                for (name, set) in sets {
                    assert!(set.is_none_or(|set| set.contains(node)), "{block:?} is beyond the {name}");
                }
            }
            Err(AllocError::OrderTooLarge { max, .. }) => assert!(order > max),
            Err(AllocError::NoNodeInPolicy) => {
                assert!(!bounds.is_sure || self.cache().owners().managed() == 0);
            }
            Err(AllocError::OutOfMemory(shortage)) => {
                let owners = self.cache().owners();
                assert!(shortage.free.get() <= owners.managed(), "{shortage:?}");
                assert!(!bounds.is_sure || owners.owned() == owners.managed(), "{shortage:?}");
            }
            Err(other) => panic!("{other}"),
        }
        answer.is_ok()
    }

    /// Single frames until none is left, to fill pagesets and zones with few bytes.
    fn alloc_many(&mut self) {
        let count = self.choices.below(400);
        let kind = self.choices.pick(&PageKind::ALL);
        let request = Request::page().kind(kind).urgency(Urgency::Reserve);
        let bounds = Bounds { limit: ZoneKind::Movable, bound: None, allowed: None, is_sure: true };
        let all = (0..count).all(|_| self.request(&request, Order::PAGE, kind, &bounds));
        let owners = self.cache().owners();
        assert!(all || owners.owned() == owners.managed());
    }

    fn alloc_bulk(&mut self) {
        let mut frames = vec![Pfn::new(u64::MAX); self.choices.small(200)];
        let kind = self.choices.pick(&PageKind::ALL);
        match self.a.alloc_bulk(&Request::page().kind(kind), &mut frames) {
            Ok(came) => {
                frames[..came].iter().for_each(|&frame| {
                    self.cache().owners().take(frame, Order::PAGE, kind);
                });
            }
            Err(AllocError::OutOfMemory(_)) => {}
            Err(AllocError::NoNodeInPolicy) => assert_eq!(self.cache().owners().managed(), 0),
            Err(other) => panic!("{other}"),
        }
    }

    fn free(&mut self) {
        let place = self.choices.below(1 << 16);
        self.free_at(place);
    }

    fn free_at(&self, place: u64) {
        let picked = self.cache().owners().pick(place);
        if let Some((first, held)) = picked {
            self.a.free(Pfn::new(first), held.order).expect("what is held can be freed");
            self.cache().owners().give(first);
        }
    }

    fn free_many(&mut self) {
        let (count, from, step) = (self.choices.below(400), self.choices.below(1 << 16), self.choices.byte());
        (0..count).for_each(|at| self.free_at(from + at * u64::from(step)));
    }

    /// Some single frames at once, and then perhaps the first of them again.
    fn free_bulk(&mut self) {
        let (from, count) = (self.choices.below(1 << 16), self.choices.byte());
        let mut frames: Vec<Pfn> = Vec::new();
        for at in 0..u64::from(count) {
            let picked = self.cache().owners().pick(from + at);
            match picked {
                Some((first, held)) if held.order == Order::PAGE && !frames.contains(&Pfn::new(first)) => {
                    frames.push(Pfn::new(first));
                }
                _ => {}
            }
        }
        let right = frames.len();
        frames.extend(frames.first().copied().filter(|_| count % 2 == 1));
        match self.a.free_bulk(&frames) {
            Ok(()) => assert_eq!(frames.len(), right, "a frame was freed twice"),
            Err(error) => assert_eq!((error.freed, frames.len()), (right, right + 1), "{error}"),
        }
        frames[..right].iter().for_each(|frame| self.cache().owners().give(frame.get()));
    }

    /// Any frame with any order, which may happen to be right.
    fn free_wrongly(&mut self) {
        let near = self.choices.byte();
        let picked = self.cache().owners().pick(self.choices.below(1 << 16));
        let (frame, given) = match picked {
            Some((first, held)) if near < 128 => (first + u64::from(near % 8), held.order),
            _ => (self.choices.below(self.cache().owners().end() + 20), order(near % (MAX_ORDER_LIMIT + 1))),
        };
        let given =
            if near.is_multiple_of(3) { order(self.choices.byte() % (MAX_ORDER_LIMIT + 1)) } else { given };
        let (state, known) = {
            let owners = self.cache().owners();
            (owners.frame(frame), owners.held(frame))
        };
        let frame = Pfn::new(frame);
        let answer = self.a.free(frame, given);
        match (state, known) {
            (_, Some(held)) if held.order == given => {
                assert_eq!(answer, Ok(()));
                self.cache().owners().give(frame.get());
            }
            (_, Some(held)) => {
                assert_eq!(answer, Err(FreeError::WrongOrder { frame, allocated: held.order, given }));
            }
            (Frame::Absent, None) => assert_eq!(answer, Err(FreeError::NotManaged(frame))),
            (Frame::Unowned, None) if answer == Err(FreeError::Quarantined(frame)) => {}
            (Frame::Unowned, None) => assert_eq!(answer, Err(FreeError::NotAllocated(frame))),
            (Frame::Owned, None) => self.is_inside(frame, answer),
        }
    }

    /// A frame inside a block was not freed, and the answer names the block.
    fn is_inside(&self, frame: Pfn, answer: Result<(), FreeError>) {
        let Err(FreeError::InsideBlock { frame: told, block, order }) = answer else { panic!("{answer:?}") };
        let held = self.cache().owners().held(block.get()).expect("a block starts there");
        assert_eq!((told, held.order), (frame, order));
        assert!((block.get()..block.plus(order.pages()).get()).contains(&frame.get()));
    }

    /// Books and counters against the table, once nothing is under way.
    fn check(&self) {
        let books = self.a.verify().expect("what the allocator believes is consistent");
        let owners = self.cache().owners();
        assert!(books.balance());
        assert_eq!((books.managed.get(), self.a.books()), (owners.managed(), books));
        let quarantined = books.allocated.get().checked_sub(owners.owned()).expect("owned is allocated");
        assert!(quarantined <= 50 * self.plan.zones.len() as u64, "{quarantined} in quarantine");
        let (locality, events) = (self.a.locality(), self.a.events());
        assert_eq!(
            (locality.miss, locality.hit),
            (locality.foreign, locality.local + locality.other - locality.miss)
        );
        assert_eq!((events.withheld, events.poison_found), (0, 0));
    }

    /// Gives all back: every frame is free then.
    fn finish(&self) {
        self.check();
        while self.cache().owners().pick(0).is_some() {
            self.free_at(0);
        }
        self.a.drain_pagesets();
        self.check();
        let books = self.a.books();
        assert_eq!((books.free, books.allocated), (books.managed, PageCount::ZERO));
    }
}

fn order(order: u8) -> Order {
    Order::new(order).expect("orders up to 18 there are")
}

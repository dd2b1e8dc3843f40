//! Shapes as bytes: a kind, and then its fields as numbers and texts.
//!
//! Related files: `encoder.rs` and `decoder.rs` use the shapes of a block.

use std::sync::Arc;

use zonal::units::{NodeId, Order, PageCount, Pfn};

use crate::event::{Action, Gfp, Kind, Migratetype, Tid};
use crate::numbers::{self, put, put_signed, take, take_signed};

/// The longest text in a shape, in bytes.
const TEXT_BYTES_MAX: u64 = 256;

/// The longest shape, in bytes: a kind, at most two texts, and at most eight numbers with those of the texts' lengths.
pub(super) const BYTES_MAX: usize = 1 + 2 * TEXT_BYTES_MAX as usize + 8 * numbers::BYTES_MAX;

/// Appends the shape of an action; its frame is left out, but not whether it has one.
pub(super) fn write(to: &mut Vec<u8>, action: &Action) {
    to.push(action.kind().index() as u8);
    match action {
        Action::Alloc { page, order, gfp, migratetype } => {
            put(to, page.is_some().into());
            put(to, order.get().into());
            put(to, gfp.0);
            put_signed(to, migratetype.0.into());
        }
        Action::Free { order, .. } => put(to, order.get().into()),
        Action::FreeBatched { .. } => {}
        Action::Drain { order, migratetype, .. } => {
            put(to, order.get().into());
            put_signed(to, migratetype.0.into());
        }
        Action::ZoneLocked { page, order, migratetype, is_refill } => {
            put(to, page.is_some().into());
            put(to, order.get().into());
            put_signed(to, migratetype.0.into());
            put(to, (*is_refill).into());
        }
        Action::Fallback { order, from_order, migratetype, from_migratetype, changes_owner, .. } => {
            put(to, order.get().into());
            put(to, from_order.get().into());
            put_signed(to, migratetype.0.into());
            put_signed(to, from_migratetype.0.into());
            put(to, (*changes_owner).into());
        }
        Action::Watermarks { node, zone, marks, promo } => {
            put(to, node.get().into());
            put_text(to, zone);
            marks.iter().for_each(|mark| put(to, mark.get()));
            put_optional(to, promo.map(PageCount::get));
        }
        Action::LowmemReserve { node, zone, upper, pages } => {
            put(to, node.get().into());
            put_text(to, zone);
            put_text(to, upper);
            put(to, pages.get());
        }
        Action::Named { thread, name } => {
            put_signed(to, thread.0.into());
            put_text(to, name);
        }
        Action::Lost { events } => put_optional(to, *events),
    }
}

/// Takes a shape from the front. Its frame, if it has one, is zero. Returns `None` if the bytes are no shape.
pub(super) fn read(from: &mut &[u8]) -> Option<Action> {
    let zero = Pfn::new(0);
    let kind = *Kind::ALL.get(usize::from(*from.split_off_first()?))?;
    Some(match kind {
        Kind::Alloc => Action::Alloc {
            page: flag(from)?.then_some(zero),
            order: order(from)?,
            gfp: Gfp(take(from)?),
            migratetype: migratetype(from)?,
        },
        Kind::Free => Action::Free { page: zero, order: order(from)? },
        Kind::FreeBatched => Action::FreeBatched { page: zero },
        Kind::Drain => Action::Drain { page: zero, order: order(from)?, migratetype: migratetype(from)? },
        Kind::ZoneLocked => Action::ZoneLocked {
            page: flag(from)?.then_some(zero),
            order: order(from)?,
            migratetype: migratetype(from)?,
            is_refill: flag(from)?,
        },
        Kind::Fallback => Action::Fallback {
            page: zero,
            order: order(from)?,
            from_order: order(from)?,
            migratetype: migratetype(from)?,
            from_migratetype: migratetype(from)?,
            changes_owner: flag(from)?,
        },
        Kind::Watermarks => Action::Watermarks {
            node: node(from)?,
            zone: text(from)?,
            marks: [pages(from)?, pages(from)?, pages(from)?],
            promo: optional(from)?.map(PageCount::new),
        },
        Kind::LowmemReserve => Action::LowmemReserve {
            node: node(from)?,
            zone: text(from)?,
            upper: text(from)?,
            pages: pages(from)?,
        },
        Kind::Named => Action::Named { thread: Tid(take_signed(from)?.try_into().ok()?), name: text(from)? },
        Kind::Lost => Action::Lost { events: optional(from)? },
    })
}

fn put_text(to: &mut Vec<u8>, text: &str) {
    let end = text.floor_char_boundary_at(TEXT_BYTES_MAX as usize);
    put(to, end as u64);
    to.extend_from_slice(&text.as_bytes()[..end]);
}

/// Writes zero for none, and else one more than the number; the largest number is written as the one before it.
fn put_optional(to: &mut Vec<u8>, number: Option<u64>) {
    put(to, number.map_or(0, |number| number.saturating_add(1)));
}

fn optional(from: &mut &[u8]) -> Option<Option<u64>> {
    Some(take(from)?.checked_sub(1))
}

fn flag(from: &mut &[u8]) -> Option<bool> {
    match take(from)? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

fn order(from: &mut &[u8]) -> Option<Order> {
    Order::new(take(from)?.try_into().ok()?)
}

fn migratetype(from: &mut &[u8]) -> Option<Migratetype> {
    Some(Migratetype(take_signed(from)?.try_into().ok()?))
}

fn node(from: &mut &[u8]) -> Option<NodeId> {
    NodeId::new(take(from)?.try_into().ok()?)
}

fn pages(from: &mut &[u8]) -> Option<PageCount> {
    take(from).map(PageCount::new)
}

fn text(from: &mut &[u8]) -> Option<Arc<str>> {
    let bytes = take(from).filter(|&bytes| bytes <= TEXT_BYTES_MAX)?;
    let text = from.split_off(..bytes as usize)?;
    std::str::from_utf8(text).ok().map(Arc::from)
}

/// The standard library's `floor_char_boundary`, which is newer than our oldest compiler.
trait FloorCharBoundary {
    fn floor_char_boundary_at(&self, at: usize) -> usize;
}

impl FloorCharBoundary for str {
    fn floor_char_boundary_at(&self, at: usize) -> usize {
        let end = at.min(self.len());
        (0..=end).rev().find(|&end| self.is_char_boundary(end)).unwrap_or(0)
    }
}

//! Finds a second path over a vehicle that already has one.
//!
//! Two tracks may have shared one vehicle's boxes between them, or have followed its front and its
//! back. Seen one by one both look sound; after exact placing and smoothing they run closer to each
//! other than two vehicles can.

use super::{Path, PathPoint};

/// Two paths this close beside each other, metres, are in one lane,
const BESIDE: f64 = 2.3;
/// and this close behind each other one vehicle.
const BEHIND: f64 = 5.0;
/// Share of the shorter path that must be that close.
const CLOSE_SHARE: f64 = 0.6;

/// Whether two paths are one vehicle's. Without world coordinates never: in the picture alone
/// nearness says too little.
pub fn is_double(a: &Path, b: &Path) -> bool {
    let (known, other) = if a.points.len() < b.points.len() { (b, a) } else { (a, b) };
    let close = other
        .points
        .iter()
        .filter(|point| {
            let at = known.points.binary_search_by_key(&point.time_ms, |one| one.time_ms);
            at.is_ok_and(|at| is_close(known, at, point))
        })
        .count();
    close as f64 > CLOSE_SHARE * other.points.len() as f64
}

/// Whether a place lies within the vehicle that is on the known path at that moment.
fn is_close(known: &Path, at: usize, point: &PathPoint) -> bool {
    const REACH: usize = 5;
    let last = known.points.len() - 1;
    let place = |index: usize| known.points[index].world.map(|place| place.map(f64::from));
    let around = (place(at.saturating_sub(REACH)), place(at), place((at + REACH).min(last)));
    let ((Some(before), Some(here), Some(after)), Some(there)) = (around, point.world) else {
        return false;
    };
    let way = [after[0] - before[0], after[1] - before[1]];
    let length = way[0].hypot(way[1]).max(1e-6);
    let off = [f64::from(there[0]) - here[0], f64::from(there[1]) - here[1]];
    let along = (off[0] * way[0] + off[1] * way[1]) / length;
    let across = (off[1] * way[0] - off[0] * way[1]) / length;
    across.abs() < BESIDE && along.abs() < BEHIND
}

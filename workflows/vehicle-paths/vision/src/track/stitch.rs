//! Joins the fragments of one object that was lost for a while, and drops a second track over an
//! object that already has one.

use super::assign::assign;
use super::follow::{Track, seconds};
use crate::label::FrameLabels;

/// Longest gap bridged, seconds.
const LONGEST_GAP: f64 = 4.0;
/// How far off the meeting point may be: at once, and more for each second of the gap, metres.
const MEETING_ERROR: f64 = 2.5;
const MEETING_ERROR_PER_SECOND: f64 = 1.6;
/// Two tracks this close beside each other, metres, cannot be two vehicles.
const BESIDE: f64 = 1.5;
const BEHIND: f64 = 4.2;

/// The end of a track: when, where, how fast.
struct End {
    time: f64,
    place: [f64; 2],
    velocity: [f64; 2],
}

/// Joins what belongs together, until nothing more does.
pub fn stitch(mut tracks: Vec<Track>, frames: &[FrameLabels], size: (usize, usize)) -> Vec<Track> {
    loop {
        let ends: Vec<(End, End)> = tracks.iter().map(|track| ends(track, frames)).collect();
        let has_left = |track: &Track| {
            track.sightings.last().is_some_and(|last| last.rect.touches_border(size))
        };
        let cost = |a: usize, b: usize| {
            if a == b || has_left(&tracks[a]) {
                f64::INFINITY
            } else {
                joint_cost(&tracks[a], &ends[a].1, &tracks[b], &ends[b].0)
            }
        };
        let costs: Vec<Vec<f64>> =
            (0..tracks.len()).map(|a| (0..tracks.len()).map(|b| cost(a, b)).collect()).collect();
        let next = assign(&costs, 1.0);
        let Some(first) = next.iter().position(Option::is_some) else { return tracks };
        // Chains are joined pair by pair; the loop comes back for the rest.
        let second = next[first].unwrap_or(first);
        let tail = tracks[second].clone();
        tracks[first].absorb(tail);
        tracks.remove(second);
    }
}

/// Mean place and velocity over the first and the last sightings.
fn ends(track: &Track, frames: &[FrameLabels]) -> (End, End) {
    const REACH: usize = 8;
    let count = track.sightings.len();
    let of = |range: std::ops::Range<usize>, at: usize| {
        let part = &track.sightings[range];
        let time = seconds(&frames[track.sightings[at].frame]);
        let mean = |f: &dyn Fn(usize) -> f64| {
            (0..part.len()).map(f).sum::<f64>() / part.len().max(1) as f64
        };
        let t = mean(&|k| seconds(&frames[part[k].frame]));
        let middle = [0, 1].map(|axis| mean(&|k| part[k].spot.place[axis]));
        let across = mean(&|k| (seconds(&frames[part[k].frame]) - t).powi(2));
        let velocity = [0, 1].map(|axis| {
            let with = mean(&|k| {
                (seconds(&frames[part[k].frame]) - t) * (part[k].spot.place[axis] - middle[axis])
            });
            with / across.max(1e-3)
        });
        let place = [0, 1].map(|axis| middle[axis] + velocity[axis] * (time - t));
        End { time, place, velocity }
    };
    (of(0..REACH.min(count), 0), of(count.saturating_sub(REACH)..count, count - 1))
}

/// Below 1 when the second track may be the first one's continuation.
fn joint_cost(first: &Track, end: &End, second: &Track, start: &End) -> f64 {
    let gap = start.time - end.time;
    if gap <= 0.0 || gap > LONGEST_GAP {
        return f64::INFINITY;
    }
    let metre = first.sightings.last().map_or(1.0, |sighting| sighting.spot.metre);
    let off = [0, 1].map(|axis| {
        let forward = end.place[axis] + end.velocity[axis] * gap / 2.0;
        let backward = start.place[axis] - start.velocity[axis] * gap / 2.0;
        forward - backward
    });
    let allowed = (MEETING_ERROR + MEETING_ERROR_PER_SECOND * gap) * metre;
    let turn = [0, 1].map(|axis| end.velocity[axis] - start.velocity[axis]);
    let turned = turn[0].hypot(turn[1]) / (4.0 + 3.0 * gap) / metre;
    // Nobody turns back within a gap: that is one object leaving and another one coming.
    let along = end.velocity[0] * start.velocity[0] + end.velocity[1] * start.velocity[1];
    let speeds = [&end.velocity, &start.velocity].map(|v| v[0].hypot(v[1]));
    let both_move = speeds.iter().all(|speed| *speed > 1.5 * metre);
    if both_move && along < 0.2 * speeds[0] * speeds[1] {
        return f64::INFINITY;
    }
    let tone: f32 = (0..3).map(|k| (first.tone[k] - second.tone[k]).abs()).sum();
    off[0].hypot(off[1]) / allowed + 0.3 * turned + 0.2 * f64::from((tone / 60.0).min(1.5))
}

/// Drops the weaker of two tracks that move together at a distance no two vehicles keep.
pub fn drop_doubles(mut tracks: Vec<Track>) -> Vec<Track> {
    tracks.sort_by_key(|track| std::cmp::Reverse(track.own_hits()));
    let mut kept: Vec<Track> = Vec::new();
    for track in tracks {
        if !kept.iter().any(|other| is_double(other, &track)) {
            kept.push(track);
        }
    }
    kept
}

fn is_double(long: &Track, short: &Track) -> bool {
    let velocity = long.sightings.windows(2).fold([0.0; 2], |sum, pair| {
        [0, 1].map(|k| sum[k] + pair[1].spot.place[k] - pair[0].spot.place[k])
    });
    let length = velocity[0].hypot(velocity[1]).max(1e-6);
    let mut close = 0;
    for sighting in &short.sightings {
        let Ok(at) = long.sightings.binary_search_by_key(&sighting.frame, |other| other.frame)
        else {
            continue;
        };
        let other = &long.sightings[at];
        let off = [0, 1].map(|k| sighting.spot.place[k] - other.spot.place[k]);
        let along = (off[0] * velocity[0] + off[1] * velocity[1]) / length;
        let across = (off[1] * velocity[0] - off[0] * velocity[1]) / length;
        let metre = sighting.spot.metre;
        close += usize::from(across.abs() < BESIDE * metre && along.abs() < BEHIND * metre);
    }
    close * 10 > short.sightings.len() * 7
}

//! Follows boxes from picture to picture: one Kalman filter per object, the cheapest assignment
//! of boxes, and patience with objects that others hide or that melt into one box.

use super::assign::assign;
use super::kalman::State;
use super::matrix::Matrix;
use super::view::{Spot, View, foot};
use crate::label::{Class, FrameLabels, Label, Rect};

/// Random acceleration of a vehicle, metres per second squared.
const ACCELERATION: f64 = 3.0;
/// Fastest vehicle expected, metres per second.
const TOP_SPEED: f64 = 16.0;
/// Cost above which a box is not a track's.
const GATE: f64 = 18.0;
/// Sightings that confirm a track.
pub const CONFIRMING_HITS: usize = 4;
/// Seconds a confirmed track is kept unseen, in the open and behind something.
const PATIENCE: f64 = 0.9;
const HIDDEN_PATIENCE: f64 = 2.2;
/// Seconds an unconfirmed track is kept unseen.
const TENTATIVE_PATIENCE: f64 = 0.25;
/// Most tracks followed at a time.
const MAX_TRACKS: usize = 256;
/// A box this much larger than the expected one holds more than one object.
const MELTED_AREA: f32 = 1.35;
/// Seconds for which a track's place is inferred from boxes shared with others.
const SHARED_PATIENCE: f64 = 1.2;
/// Tracks that together cover this share of a box are all that is in it.
const EXPLAINED_SHARE: f32 = 0.5;
/// Two expected boxes that overlap like this belong to one object.
const SAME_PLACE: f32 = 0.6;

/// One sighting of a track.
#[derive(Clone, Copy, Debug)]
pub struct Sighting {
    /// Index into the pictures.
    pub frame: usize,
    /// Index into the picture's labels; `None` when the place was inferred from a box that the
    /// track shares with others.
    pub label: Option<usize>,
    /// The box, or the part of a shared box that is this track's.
    pub rect: Rect,
    /// Place and noise.
    pub spot: Spot,
}

/// One followed object.
#[derive(Clone, Debug)]
pub struct Track {
    /// When and where it was seen.
    pub sightings: Vec<Sighting>,
    /// How many sightings the detector called a vehicle.
    pub vehicle_votes: usize,
    /// Filter after the last sighting.
    pub state: State,
    /// The mean colour of its boxes.
    pub tone: [f32; 3],
    rect: Rect,
    seen_at: f64,
    /// When it last had a box of its own.
    alone_at: f64,
    hidden: bool,
}

impl Track {
    fn new(sighting: Sighting, label: &Label, time: f64) -> Self {
        let speed = TOP_SPEED * 0.6 * sighting.spot.metre;
        Self {
            sightings: vec![sighting],
            vehicle_votes: usize::from(label.class == Class::Vehicle),
            state: State::at(sighting.spot.place, &sighting.spot.noise, speed),
            tone: label.tone.map(f32::from),
            rect: sighting.rect,
            seen_at: time,
            alone_at: time,
            hidden: false,
        }
    }

    /// Sightings in boxes of its own.
    pub fn own_hits(&self) -> usize {
        self.sightings.iter().filter(|sighting| sighting.label.is_some()).count()
    }

    /// Takes over the sightings of another track of the same object. Where both have one, a box of
    /// its own counts more than a part of a shared box.
    pub fn absorb(&mut self, other: Self) {
        self.vehicle_votes += other.vehicle_votes;
        if other.seen_at > self.seen_at {
            (self.state, self.rect) = (other.state, other.rect);
            (self.seen_at, self.alone_at) = (other.seen_at, other.alone_at);
        }
        self.sightings.extend(other.sightings);
        self.sightings.sort_by_key(|sighting| (sighting.frame, sighting.label.is_none()));
        self.sightings.dedup_by_key(|sighting| sighting.frame);
    }

    fn is_confirmed(&self) -> bool {
        self.own_hits() >= CONFIRMING_HITS
    }

    /// What was last seen at the border has most likely left.
    fn patience(&self, size: (usize, usize)) -> f64 {
        match (self.is_confirmed(), self.hidden) {
            _ if self.rect.touches_border(size) => TENTATIVE_PATIENCE,
            (false, _) => TENTATIVE_PATIENCE,
            (true, false) => PATIENCE,
            (true, true) => HIDDEN_PATIENCE,
        }
    }

    /// Where its box should be, from the last one and the way since.
    fn expected_rect(&self, view: &View) -> Option<Rect> {
        let last = self.sightings.last()?;
        let (from, to) = (foot(&self.rect), view.pixel(self.state.place())?);
        let before = view.pixels_per_metre(last.spot.place)?;
        let scale = (view.pixels_per_metre(self.state.place())? / before).clamp(0.5, 2.0) as f32;
        let moved = |value: f32, axis: usize| (value - from[axis] as f32) * scale + to[axis] as f32;
        Some(Rect {
            left: moved(self.rect.left, 0),
            top: moved(self.rect.top, 1),
            right: moved(self.rect.right, 0),
            bottom: moved(self.rect.bottom, 1),
        })
    }

    fn take(&mut self, sighting: Sighting, label: Option<&Label>, time: f64) {
        self.state = self.state.corrected(sighting.spot.place, &sighting.spot.noise);
        self.rect = sighting.rect;
        self.seen_at = time;
        self.hidden = false;
        if let Some(label) = label {
            self.alone_at = time;
            self.vehicle_votes += usize::from(label.class == Class::Vehicle);
            for (mean, value) in self.tone.iter_mut().zip(label.tone) {
                *mean += 0.2 * (f32::from(value) - *mean);
            }
        }
        self.sightings.push(sighting);
    }
}

/// Follows everything through all pictures; unconfirmed tracks are left out.
pub fn follow(frames: &[FrameLabels], view: &View, size: (usize, usize)) -> Vec<Track> {
    let (mut live, mut done): (Vec<Track>, Vec<Track>) = (Vec::new(), Vec::new());
    let mut last = frames.first().map_or(0.0, seconds);
    for (index, frame) in frames.iter().enumerate() {
        let now = seconds(frame);
        for track in &mut live {
            let unit = track.sightings.last().map_or(1.0, |sighting| sighting.spot.metre);
            track.state = track.state.predicted(now - last, ACCELERATION * unit);
        }
        last = now;
        step(&mut live, index, frame, now, view);
        let (kept, ended) =
            live.into_iter().partition(|t: &Track| now - t.seen_at <= t.patience(size));
        live = kept;
        done.extend(ended.into_iter().filter(Track::is_confirmed));
    }
    done.extend(live.into_iter().filter(Track::is_confirmed));
    done
}

/// Time of a picture in seconds.
pub fn seconds(frame: &FrameLabels) -> f64 {
    f64::from(frame.time_ms) / 1000.0
}

fn step(live: &mut Vec<Track>, index: usize, frame: &FrameLabels, now: f64, view: &View) {
    let seen: Vec<(usize, &Label, Spot)> = frame
        .labels
        .iter()
        .enumerate()
        .filter_map(|(k, label)| Some((k, label, view.spot(&label.rect)?)))
        .collect();
    let expected: Vec<Option<Rect>> = live.iter().map(|track| track.expected_rect(view)).collect();
    let melted = share_boxes(live, &expected, &seen, index, now, view);
    let free: Vec<usize> = (0..live.len()).filter(|k| live[*k].seen_at < now).collect();
    let costs: Vec<Vec<f64>> = free
        .iter()
        .map(|k| {
            let cost = |(label, melted): (&(usize, &Label, Spot), &bool)| {
                if *melted {
                    f64::INFINITY
                } else {
                    cost(&live[*k], &expected[*k], label.1, &label.2)
                }
            };
            seen.iter().zip(&melted).map(cost).collect()
        })
        .collect();
    let mut used = melted;
    for (k, choice) in free.iter().zip(assign(&costs, GATE)) {
        if let Some(choice) = choice {
            let (label_index, label, spot) = seen[choice];
            used[choice] = true;
            let sighting =
                Sighting { frame: index, label: Some(label_index), rect: label.rect, spot };
            live[*k].take(sighting, Some(label), now);
        } else {
            live[*k].hidden = is_covered(&expected[*k], &seen);
        }
    }
    for ((label_index, label, spot), used) in seen.iter().zip(used) {
        if !used && live.len() < MAX_TRACKS {
            let rect = label.rect;
            let sighting = Sighting { frame: index, label: Some(*label_index), rect, spot: *spot };
            live.push(Track::new(sighting, label, now));
        }
    }
}

fn cost(track: &Track, expected: &Option<Rect>, label: &Label, spot: &Spot) -> f64 {
    let place = track.state.distance(spot.place, &spot.noise);
    let size = expected.map_or(0.0, |rect| {
        let ratio = f64::from((label.rect.area().max(1.0) / rect.area().max(1.0)).ln());
        ratio * ratio * 2.5
    });
    let overlap = expected.map_or(0.0, |rect| f64::from(1.0 - rect.iou(&label.rect)) * 3.0);
    let off = |k: usize| f64::from(track.tone[k] - f32::from(label.tone[k]));
    let tone = (off(0).abs() / 40.0 + (off(1).abs() + off(2).abs()) / 12.0).min(3.0);
    place + size + overlap + tone
}

/// Whether somebody else's box covers where the track should be. A box just like the expected one
/// hides nobody: it is the object itself, and another track has it.
fn is_covered(expected: &Option<Rect>, seen: &[(usize, &Label, Spot)]) -> bool {
    let Some(rect) = expected else { return false };
    seen.iter().any(|(_, label, _)| {
        let common = rect.intersection(&label.rect);
        common.is_sound_area(0.3 * rect.area()) && rect.iou(&label.rect) < SAME_PLACE
    })
}

impl Rect {
    /// Whether the rectangle is in order and at least this large.
    fn is_sound_area(&self, least: f32) -> bool {
        self.width() > 0.0 && self.height() > 0.0 && self.area() >= least
    }
}

/// Boxes in which two or more confirmed tracks are expected are shared between them: each takes
/// the shift that the sides it touches show. Returns which boxes were shared.
fn share_boxes(
    live: &mut [Track],
    expected: &[Option<Rect>],
    seen: &[(usize, &Label, Spot)],
    index: usize,
    now: f64,
    view: &View,
) -> Vec<bool> {
    let mut shared = vec![false; seen.len()];
    for (box_index, (_, label, _)) in seen.iter().enumerate() {
        let inside: Vec<(usize, Rect)> = expected
            .iter()
            .enumerate()
            .filter(|(k, _)| live[*k].is_confirmed() && live[*k].seen_at < now)
            .filter(|(k, _)| now - live[*k].alone_at <= SHARED_PATIENCE)
            .filter_map(|(k, rect)| rect.map(|rect| (k, rect)))
            .filter(|(_, rect)| {
                let common = rect.intersection(&label.rect);
                common.is_sound_area(0.6 * rect.area())
                    && label.rect.area() > MELTED_AREA * rect.area()
            })
            .collect();
        // Another box that fits a track better means that the track is not in this one.
        let inside: Vec<(usize, Rect)> = inside
            .into_iter()
            .filter(|(_, rect)| {
                let mine = rect.iou(&label.rect);
                !seen.iter().any(|(_, other, _)| other.rect.iou(rect) > mine + 0.05)
            })
            .collect();
        let inside = one_per_place(inside, live);
        let covered: f32 =
            inside.iter().map(|(_, rect)| rect.intersection(&label.rect).area()).sum();
        // Somebody else is in the box as well, known or not, who may take it or start with it.
        let explained = covered > EXPLAINED_SHARE * label.rect.area();
        if inside.is_empty() || (inside.len() == 1 && explained) {
            continue;
        }
        shared[box_index] = explained;
        for (k, rect) in inside {
            let moved = shifted(&rect, &label.rect);
            if let Some(mut spot) = view.spot(&moved) {
                spot.noise = spot.noise.plus(&Matrix::identity().scaled(0.5 * spot.metre.powi(2)));
                live[k].take(Sighting { frame: index, label: None, rect: moved, spot }, None, now);
            }
        }
    }
    shared
}

/// Of tracks that are expected in the same place only the best known one: two objects that hide
/// each other so far would not both have been seen before.
fn one_per_place(mut inside: Vec<(usize, Rect)>, live: &[Track]) -> Vec<(usize, Rect)> {
    inside.sort_by_key(|(k, _)| std::cmp::Reverse(live[*k].own_hits()));
    let mut out: Vec<(usize, Rect)> = Vec::new();
    for (k, rect) in inside {
        if out.iter().all(|(_, other)| rect.iou(other) < SAME_PLACE) {
            out.push((k, rect));
        }
    }
    out
}

/// Moves an expected box by what the sides that it has in common with a larger one tell.
fn shifted(rect: &Rect, whole: &Rect) -> Rect {
    let near = |a: f32, b: f32, size: f32| ((a - b).abs() < 0.25 * size).then_some(b - a);
    let mean = |a: Option<f32>, b: Option<f32>| match (a, b) {
        (Some(a), Some(b)) => (a + b) / 2.0,
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => 0.0,
    };
    let (width, height) = (rect.width(), rect.height());
    let across = mean(near(rect.left, whole.left, width), near(rect.right, whole.right, width));
    let down = mean(near(rect.top, whole.top, height), near(rect.bottom, whole.bottom, height));
    Rect {
        left: rect.left + across,
        top: rect.top + down,
        right: rect.right + across,
        bottom: rect.bottom + down,
    }
}

//! What the detector says about a picture, and what the tracker and the dataset read.

use serde::{Deserialize, Serialize};

/// What a box contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Class {
    /// Car, van, truck, bus, motorbike.
    Vehicle,
    /// Somebody on foot.
    Person,
}

impl Class {
    /// Category number and name in the dataset.
    pub fn category(self) -> (u32, &'static str) {
        match self {
            Self::Vehicle => (1, "vehicle"),
            Self::Person => (2, "person"),
        }
    }
}

/// A rectangle in pixels; `right` and `bottom` are outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rect {
    /// First column.
    pub left: f32,
    /// First row.
    pub top: f32,
    /// Column after the last.
    pub right: f32,
    /// Row after the last.
    pub bottom: f32,
}

impl Rect {
    /// Width in pixels.
    pub fn width(&self) -> f32 {
        self.right - self.left
    }

    /// Height in pixels.
    pub fn height(&self) -> f32 {
        self.bottom - self.top
    }

    /// Area in pixels.
    pub fn area(&self) -> f32 {
        self.width().max(0.0) * self.height().max(0.0)
    }

    /// The part that both cover, possibly empty.
    pub fn intersection(&self, other: &Self) -> Self {
        Self {
            left: self.left.max(other.left),
            top: self.top.max(other.top),
            right: self.right.min(other.right),
            bottom: self.bottom.min(other.bottom),
        }
    }

    /// Intersection over union, 0..1.
    pub fn iou(&self, other: &Self) -> f32 {
        let shared = self.intersection(other);
        if shared.width() <= 0.0 || shared.height() <= 0.0 {
            return 0.0;
        }
        shared.area() / (self.area() + other.area() - shared.area())
    }

    /// Whether it reaches a border of a picture of this size.
    pub fn touches_border(&self, size: (usize, usize)) -> bool {
        const NEAR: f32 = 4.0;
        self.left <= NEAR
            || self.top <= NEAR
            || self.right >= size.0 as f32 - NEAR
            || self.bottom >= size.1 as f32 - NEAR
    }

    /// Whether all four sides are finite and in order.
    pub fn is_sound(&self) -> bool {
        let sides = [self.left, self.top, self.right, self.bottom];
        sides.iter().all(|side| side.is_finite())
            && self.left <= self.right
            && self.top <= self.bottom
    }
}

/// One detected object.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Label {
    /// What it is.
    pub class: Class,
    /// Where.
    pub rect: Rect,
    /// 0..1.
    pub confidence: f32,
    /// Mean luma, blue and red difference of its pixels, to tell neighbours apart.
    pub tone: [u8; 3],
}

/// The labels of one picture.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FrameLabels {
    /// Number of the sampled picture, from 0.
    pub number: u32,
    /// When it was taken, milliseconds from the start of the video.
    pub time_ms: u32,
    /// Everything found in it.
    pub labels: Vec<Label>,
}

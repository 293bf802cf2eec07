//! Draws the vehicles' paths over the empty scene, as a PNG: one colour per vehicle, a dot where
//! it appeared, an arrow where it went, its number and speed beside it. Labels do not overlap while there is room.

use font8x8::{BASIC_FONTS, UnicodeFonts};
use thiserror::Error;

use crate::frame::Frame;
use crate::track::Path;

/// How much of the scene's colour is kept: the paths are what is looked at.
const SCENE_LIGHT: f32 = 0.72;
/// Half the width of a path, pixels, for a picture of 1280 columns.
const HALF_WIDTH: f32 = 2.2;
/// Pixels of a letter of the font.
const LETTER: usize = 8;
/// How much larger letters are drawn in a picture of 1280 columns.
const ZOOM: f32 = 2.0;
/// Pixels between a label's border and its text.
const PADDING: usize = 4;
/// Pixels between a label and the point of the path that it stands beside.
const LABEL_GAP: usize = 10;

/// Why a picture could not be written.
#[derive(Debug, Error)]
#[error("cannot write a PNG of {width}x{height}")]
pub struct PictureError {
    /// Width in pixels.
    width: usize,
    /// Height in pixels.
    height: usize,
    /// What the encoder said.
    #[source]
    source: png::EncodingError,
}

/// The scene with all paths, as a PNG file. `unit` is written behind the speeds, `headline` across
/// the top.
pub fn draw(
    scene: &Frame,
    paths: &[Path],
    unit: &str,
    headline: &str,
) -> Result<Vec<u8>, PictureError> {
    let mut canvas = Canvas::over(scene);
    let scale = (scene.width as f32 / 1280.0).clamp(0.5, 3.0);
    let zoom = (ZOOM * scale).round().max(1.0) as usize;
    for path in paths {
        canvas.path(path, scale);
    }
    let mut taken = Vec::new();
    if !headline.is_empty() {
        let plate = Plate { left: 0, top: 0, ..Plate::of(headline, zoom) };
        canvas.plate(headline, &plate, zoom, [255.0; 3]);
        taken.push(plate);
    }
    for path in paths {
        let text = format!("#{}: {:.0}{unit}", path.id, path.typical_speed);
        if let Some(plate) = Plate::of(&text, zoom).beside(path, scene, &taken) {
            canvas.plate(
                &text,
                &plate,
                zoom,
                colour(path.id).map(|value| value.mul_add(0.6, 102.0)),
            );
            taken.push(plate);
        }
    }
    canvas.into_png()
}

/// The dark rectangle behind a text.
#[derive(Clone, Copy)]
struct Plate {
    left: usize,
    top: usize,
    width: usize,
    height: usize,
}

impl Plate {
    fn of(text: &str, zoom: usize) -> Self {
        let width = text.chars().count() * LETTER * zoom + 2 * PADDING;
        Self { left: 0, top: 0, width, height: LETTER * zoom + 2 * PADDING }
    }

    /// Beside the point nearest to the middle of the path where it covers no other; where that is nowhere, where it
    /// covers the least. `None` for a path without points.
    fn beside(self, path: &Path, scene: &Frame, taken: &[Self]) -> Option<Self> {
        let middle = path.points.len() / 2;
        let mut points: Vec<_> = path.points.iter().enumerate().collect();
        points.sort_by_key(|(index, _)| index.abs_diff(middle));
        let corners = points.iter().flat_map(|(_, point)| {
            [(true, false), (false, false), (true, true), (false, true)].map(|(right, below)| {
                let side = |value: f32, after: bool, size: usize, end: usize| {
                    let at = value as usize;
                    let before = at.saturating_sub(LABEL_GAP + size);
                    let start = if after { at.saturating_add(LABEL_GAP) } else { before };
                    start.min(end.saturating_sub(size))
                };
                let left = side(point.pixel[0], right, self.width, scene.width);
                let top = side(point.pixel[1], below, self.height, scene.height);
                Self { left, top, ..self }
            })
        });
        let covered = |plate: &Self| taken.iter().map(|other| plate.common(other)).sum::<usize>();
        let mut best = None;
        for plate in corners {
            let covers = covered(&plate);
            if best.is_none_or(|(least, _)| covers < least) {
                best = Some((covers, plate));
            }
            if covers == 0 {
                break;
            }
        }
        best.map(|(_, plate)| plate)
    }

    /// Pixels that are of both.
    fn common(&self, other: &Self) -> usize {
        let side = |a: usize, a_size: usize, b: usize, b_size: usize| {
            (a + a_size).min(b + b_size).saturating_sub(a.max(b))
        };
        side(self.left, self.width, other.left, other.width)
            * side(self.top, self.height, other.top, other.height)
    }
}

struct Canvas {
    width: usize,
    height: usize,
    rgb: Vec<u8>,
}

/// Well separated hues, by the golden angle.
fn colour(id: u32) -> [f32; 3] {
    let hue = (id as f32 * 0.381_966 + 0.55).fract() * 6.0;
    let channel = |shift: f32| {
        let k = (shift + hue) % 6.0;
        255.0 * (1.0 - 0.82 * k.min(4.0 - k).clamp(0.0, 1.0))
    };
    [channel(5.0), channel(3.0), channel(1.0)]
}

impl Canvas {
    fn over(scene: &Frame) -> Self {
        let mut rgb = scene.to_rgb();
        for pixel in rgb.chunks_exact_mut(3) {
            let grey = pixel.iter().map(|value| f32::from(*value)).sum::<f32>() / 3.0;
            for value in pixel {
                *value = ((0.6 * f32::from(*value) + 0.4 * grey) * SCENE_LIGHT) as u8;
            }
        }
        Self { width: scene.width, height: scene.height, rgb }
    }

    fn path(&mut self, path: &Path, scale: f32) {
        let points: Vec<[f32; 2]> = path.points.iter().map(|point| point.pixel).collect();
        let paint = colour(path.id);
        let half = HALF_WIDTH * scale;
        for (ink, width, opacity) in [([12.0; 3], half + 1.6 * scale, 0.55), (paint, half, 0.95)] {
            for pair in points.windows(2) {
                self.stroke(pair[0], pair[1], width, ink, opacity);
            }
            if let Some(first) = points.first() {
                self.stroke(*first, *first, width + 3.0 * scale, ink, opacity);
            }
            self.arrow(&points, width, ink, scale);
        }
    }

    /// A head at the end, in the direction of the last stretch that is long enough to have one.
    fn arrow(&mut self, points: &[[f32; 2]], width: f32, ink: [f32; 3], scale: f32) {
        let Some(tip) = points.last() else { return };
        let long = 14.0 * scale;
        let away = |point: &&[f32; 2]| (point[0] - tip[0]).hypot(point[1] - tip[1]) > long;
        let Some(from) = points.iter().rev().find(away) else { return };
        let length = (tip[0] - from[0]).hypot(tip[1] - from[1]);
        let ahead = [(tip[0] - from[0]) / length, (tip[1] - from[1]) / length];
        for side in [-0.45, 0.45] {
            let back = [
                tip[0] - long * (ahead[0] - side * ahead[1]),
                tip[1] - long * (ahead[1] + side * ahead[0]),
            ];
            self.stroke(back, *tip, width, ink, 0.95);
        }
    }

    /// A line with round ends and soft borders; a dot when both ends are the same.
    fn stroke(&mut self, a: [f32; 2], b: [f32; 2], half: f32, ink: [f32; 3], opacity: f32) {
        if !a.iter().chain(&b).all(|value| value.is_finite() && value.abs() < 1e5) {
            return;
        }
        let reach = half + 1.0;
        let columns = clamp_range(a[0].min(b[0]) - reach, a[0].max(b[0]) + reach, self.width);
        let rows = clamp_range(a[1].min(b[1]) - reach, a[1].max(b[1]) + reach, self.height);
        let (dx, dy) = (b[0] - a[0], b[1] - a[1]);
        let square = (dx * dx + dy * dy).max(1e-6);
        for row in rows {
            for column in columns.clone() {
                let (x, y) = (column as f32 + 0.5 - a[0], row as f32 + 0.5 - a[1]);
                let t = ((x * dx + y * dy) / square).clamp(0.0, 1.0);
                let distance = (x - t * dx).hypot(y - t * dy);
                let cover = (half + 0.5 - distance).clamp(0.0, 1.0) * opacity;
                self.blend(column, row, ink, cover);
            }
        }
    }

    fn blend(&mut self, column: usize, row: usize, ink: [f32; 3], cover: f32) {
        let at = (row * self.width + column) * 3;
        for (value, target) in self.rgb[at..at + 3].iter_mut().zip(ink) {
            let mixed = f32::from(*value) * (1.0 - cover) + target * cover;
            *value = mixed as u8;
        }
    }

    /// Text on a dark plate.
    fn plate(&mut self, text: &str, plate: &Plate, zoom: usize, ink: [f32; 3]) {
        for row in plate.top..(plate.top + plate.height).min(self.height) {
            for column in plate.left..(plate.left + plate.width).min(self.width) {
                self.blend(column, row, [16.0, 16.0, 20.0], 0.72);
            }
        }
        self.write(text, (plate.left + PADDING, plate.top + PADDING), zoom, ink);
    }

    fn write(&mut self, text: &str, at: (usize, usize), zoom: usize, ink: [f32; 3]) {
        for (position, letter) in text.chars().enumerate() {
            let glyph = BASIC_FONTS.get(letter).unwrap_or_default();
            for row in 0..LETTER * zoom {
                for column in (0..LETTER * zoom)
                    .filter(|column| glyph[row / zoom] >> (column / zoom) & 1 == 1)
                {
                    let (x, y) = (at.0 + position * LETTER * zoom + column, at.1 + row);
                    if x < self.width && y < self.height {
                        self.blend(x, y, ink, 1.0);
                    }
                }
            }
        }
    }

    fn into_png(self) -> Result<Vec<u8>, PictureError> {
        let (width, height) = (self.width, self.height);
        let failed = |source| PictureError { width, height, source };
        let mut out = Vec::new();
        let mut encoder = png::Encoder::new(&mut out, width as u32, height as u32);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header().map_err(failed)?;
        writer.write_image_data(&self.rgb).map_err(failed)?;
        writer.finish().map_err(failed)?;
        Ok(out)
    }
}

fn clamp_range(low: f32, high: f32, size: usize) -> std::ops::Range<usize> {
    (low.max(0.0) as usize).min(size)..(high.max(0.0).ceil() as usize).min(size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::track::PathPoint;

    fn path(points: &[[f32; 2]]) -> Path {
        let point = |pixel: &[f32; 2]| PathPoint {
            number: 0,
            time_ms: 0,
            pixel: *pixel,
            world: None,
            speed: 0.0,
        };
        Path {
            id: 1,
            typical_speed: 12.0,
            points: points.iter().map(point).collect(),
            labels: vec![],
        }
    }

    #[test]
    fn a_path_leaves_its_colour_and_the_rest_is_the_scene() {
        let scene = Frame::grey(200, 100, 100);
        let png = draw(&scene, &[path(&[[20.0, 50.0], [180.0, 50.0]])], "", "").unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(png)).read_info().unwrap();
        let mut rgb = vec![0; 200 * 100 * 3];
        reader.next_frame(&mut rgb).unwrap();
        let at = |x: usize, y: usize| &rgb[(y * 200 + x) * 3..][..3];
        assert!(at(60, 50).iter().max().unwrap() - at(60, 50).iter().min().unwrap() > 90);
        assert_eq!(at(5, 95), [72; 3]);
    }

    #[test]
    fn labels_of_paths_that_run_together_do_not_overlap() {
        let scene = Frame::grey(1280, 720, 100);
        let line: Vec<[f32; 2]> = (0_u16..60).map(|at| [f32::from(at) * 20.0, 300.0]).collect();
        let mut taken: Vec<Plate> = Vec::new();
        for _ in 0..12 {
            let plate = Plate::of("#4: 38 km/h", 2).beside(&path(&line), &scene, &taken).unwrap();
            assert!(taken.iter().all(|other| plate.common(other) == 0));
            assert!(plate.left + plate.width <= 1280 && plate.top + plate.height <= 720);
            taken.push(plate);
        }
        // No room is left: they are drawn all the same.
        let small = Frame::grey(40, 30, 100);
        let plate = Plate::of("#4: 38 km/h", 2);
        assert!(plate.beside(&path(&[[20.0, 15.0]]), &small, &taken).is_some());
        assert!(plate.beside(&path(&[]), &small, &taken).is_none());
    }

    #[test]
    fn wild_points_are_clipped() {
        let scene = Frame::grey(40, 30, 100);
        let wild = [[-500.0, -20.0], [1e9, f32::NAN], [1e4, 1e4], [39.0, 29.0]];
        assert!(
            draw(
                &scene,
                &[path(&wild), path(&[]), path(&[[1.0, 1.0]])],
                "km/h",
                "a headline longer than the picture"
            )
            .is_ok()
        );
    }
}

//! A float RGB canvas with anti-aliased convex polygons, and beside it the number of the object
//! that owns each pixel, from which occlusion is counted.

/// How many sub-scanlines a pixel row is sampled with.
const SUBROWS: usize = 4;

/// A picture being painted. Colours are 0..255, three floats a pixel.
#[derive(Clone)]
pub struct Canvas {
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
    /// RGB, row by row.
    pub rgb: Vec<f32>,
    /// The object that painted the pixel last; 0 is the scene.
    pub owner: Vec<u16>,
    coverage: Vec<f32>,
}

impl Canvas {
    /// A black picture.
    pub fn new(width: usize, height: usize) -> Self {
        Self {
            width,
            height,
            rgb: vec![0.0; width * height * 3],
            owner: vec![0; width * height],
            coverage: vec![0.0; width],
        }
    }

    /// Calls `paint(pixel index, coverage 0..1)` for each pixel that the polygon touches.
    pub fn scan(
        coverage: &mut [f32],
        size: (usize, usize),
        points: &[[f64; 2]],
        mut paint: impl FnMut(usize, f32),
    ) {
        let (width, height) = size;
        let low = points.iter().map(|p| p[1]).fold(f64::MAX, f64::min).max(0.0);
        let high = points.iter().map(|p| p[1]).fold(f64::MIN, f64::max).min(height as f64);
        if points.len() < 3 || low >= high {
            return;
        }
        for row in low as usize..(high.ceil() as usize).min(height) {
            let mut touched = (width, 0);
            for sub in 0..SUBROWS {
                let y = row as f64 + (sub as f64 + 0.5) / SUBROWS as f64;
                if let Some((left, right)) = span_at(points, y) {
                    let first = left.clamp(0.0, width as f64);
                    let last = right.clamp(0.0, width as f64);
                    let range = (first as usize, (last.ceil() as usize).min(width));
                    for (x, cell) in coverage.iter_mut().enumerate().take(range.1).skip(range.0) {
                        let part = (last.min(x as f64 + 1.0) - first.max(x as f64)).max(0.0);
                        *cell += part as f32 / SUBROWS as f32;
                    }
                    touched = (touched.0.min(range.0), touched.1.max(range.1));
                }
            }
            for (x, cell) in coverage.iter_mut().enumerate().take(touched.1).skip(touched.0) {
                if *cell > 0.0 {
                    paint(row * width + x, cell.min(1.0));
                    *cell = 0.0;
                }
            }
        }
    }

    /// Fills a convex polygon with one colour for one object (0 keeps the owner).
    pub fn fill(&mut self, points: &[[f64; 2]], colour: [f32; 3], owner: u16) {
        let (rgb, owners) = (&mut self.rgb, &mut self.owner);
        Self::scan(&mut self.coverage, (self.width, self.height), points, |index, part| {
            for (value, target) in rgb[index * 3..index * 3 + 3].iter_mut().zip(colour) {
                *value += (target - *value) * part;
            }
            if owner != 0 && part >= 0.5 {
                owners[index] = owner;
            }
        });
    }

    /// Fills an ellipse; `radius` is (horizontal, vertical).
    pub fn ellipse(&mut self, at: [f64; 2], radius: [f64; 2], colour: [f32; 3], owner: u16) {
        let points: Vec<[f64; 2]> = (0..16)
            .map(|k| f64::from(k) * std::f64::consts::TAU / 16.0)
            .map(|a| [at[0] + radius[0] * a.cos(), at[1] + radius[1] * a.sin()])
            .collect();
        self.fill(&points, colour, owner);
    }

    /// A thick line as a quadrilateral.
    pub fn line(&mut self, a: [f64; 2], b: [f64; 2], width: f64, colour: [f32; 3], owner: u16) {
        let (dx, dy) = (b[0] - a[0], b[1] - a[1]);
        let length = dx.hypot(dy).max(1e-6);
        let (nx, ny) = (-dy / length * width / 2.0, dx / length * width / 2.0);
        let quad = [
            [a[0] + nx, a[1] + ny],
            [b[0] + nx, b[1] + ny],
            [b[0] - nx, b[1] - ny],
            [a[0] - nx, a[1] - ny],
        ];
        self.fill(&quad, colour, owner);
    }
}

/// Where a convex polygon meets a horizontal line.
fn span_at(points: &[[f64; 2]], y: f64) -> Option<(f64, f64)> {
    let mut span: Option<(f64, f64)> = None;
    for (index, a) in points.iter().enumerate() {
        let b = points[(index + 1) % points.len()];
        if (a[1] <= y) == (b[1] <= y) {
            continue;
        }
        let x = a[0] + (b[0] - a[0]) * (y - a[1]) / (b[1] - a[1]);
        span = Some(span.map_or((x, x), |(low, high)| (low.min(x), high.max(x))));
    }
    span
}

/// Convex hull, counter-clockwise (Andrew's monotone chain).
pub fn hull(mut points: Vec<[f64; 2]>) -> Vec<[f64; 2]> {
    points.sort_by(|a, b| a[0].total_cmp(&b[0]).then(a[1].total_cmp(&b[1])));
    let turn = |o: [f64; 2], a: [f64; 2], b: [f64; 2]| {
        (a[0] - o[0]) * (b[1] - o[1]) - (a[1] - o[1]) * (b[0] - o[0])
    };
    let mut chain: Vec<[f64; 2]> = Vec::new();
    for pass in 0..2 {
        let start = chain.len();
        for point in &points {
            while chain.len() >= start + 2
                && turn(chain[chain.len() - 2], chain[chain.len() - 1], *point) <= 0.0
            {
                chain.pop();
            }
            chain.push(*point);
        }
        chain.pop();
        if pass == 0 {
            points.reverse();
        }
    }
    chain
}

/// One separable blur pass `[side, 1-2*side, side]` over a plane of `channels` floats a pixel.
pub fn soften(plane: &mut [f32], width: usize, height: usize, channels: usize, side: f32) {
    let stride = width * channels;
    let mut row = vec![0.0f32; stride];
    for y in 0..height {
        let line = &mut plane[y * stride..(y + 1) * stride];
        row.copy_from_slice(line);
        for i in channels..stride - channels {
            line[i] = row[i] * (1.0 - 2.0 * side) + (row[i - channels] + row[i + channels]) * side;
        }
    }
    let mut above = plane[..stride].to_vec();
    for y in 1..height - 1 {
        row.copy_from_slice(&plane[y * stride..(y + 1) * stride]);
        for i in 0..stride {
            let below = plane[(y + 1) * stride + i];
            plane[y * stride + i] = row[i] * (1.0 - 2.0 * side) + (above[i] + below) * side;
        }
        above.copy_from_slice(&row);
    }
}

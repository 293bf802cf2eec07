//! Between the ground and the picture: homographies, and the camera that a homography implies.

use crate::label::Rect;

/// A 3×3 matrix, row by row.
pub type Matrix3 = [f64; 9];

/// Applies a homography to a point; `None` on or near the horizon.
pub fn apply(matrix: &Matrix3, point: [f64; 2]) -> Option<[f64; 2]> {
    let row = |k: usize| matrix[k] * point[0] + matrix[k + 1] * point[1] + matrix[k + 2];
    let depth = row(6);
    (depth.abs() > 1e-9).then(|| [row(0) / depth, row(3) / depth])
}

/// The inverse, unless the matrix is singular or not finite.
pub fn invert(m: &Matrix3) -> Option<Matrix3> {
    let minor = |a: usize, b: usize, c: usize, d: usize| m[a] * m[d] - m[b] * m[c];
    let cofactors = [
        minor(4, 5, 7, 8),
        -minor(1, 2, 7, 8),
        minor(1, 2, 4, 5),
        -minor(3, 5, 6, 8),
        minor(0, 2, 6, 8),
        -minor(0, 2, 3, 5),
        minor(3, 4, 6, 7),
        -minor(0, 1, 6, 7),
        minor(0, 1, 3, 4),
    ];
    let determinant = m[0] * cofactors[0] + m[1] * cofactors[3] + m[2] * cofactors[6];
    let usable = determinant.is_finite() && determinant.abs() > 1e-15;
    usable.then(|| cofactors.map(|value| value / determinant))
}

/// A pinhole camera: square pixels, principal point in the middle of the picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Camera {
    focal: f64,
    centre: [f64; 2],
    /// Columns of the rotation and the translation: camera = r1·x + r2·y + r3·z + t.
    r1: [f64; 3],
    r2: [f64; 3],
    r3: [f64; 3],
    t: [f64; 3],
}

impl Camera {
    /// Recovers the camera from the homography of the ground (world to pixels), with z up.
    /// `None` when the homography does not come from such a camera.
    pub fn from_homography(h: &Matrix3, size: (usize, usize)) -> Option<Self> {
        let centre = [size.0 as f64 / 2.0, size.1 as f64 / 2.0];
        let column =
            |k: usize| [h[k] - centre[0] * h[k + 6], h[k + 3] - centre[1] * h[k + 6], h[k + 6]];
        let (h1, h2, h3) = (column(0), column(1), column(2));
        // r1 ⟂ r2 and |r1| = |r2| give two equations p·s + q = 0 for s = 1/f².
        let p = [h1[0] * h2[0] + h1[1] * h2[1], square(h1) - square(h2)];
        let q = [h1[2] * h2[2], h1[2] * h1[2] - h2[2] * h2[2]];
        let s = -(p[0] * q[0] + p[1] * q[1]) / (p[0] * p[0] + p[1] * p[1]);
        if !s.is_finite() || s <= 0.0 {
            return None;
        }
        let focal = 1.0 / s.sqrt();
        let ray = |c: [f64; 3]| [c[0] / focal, c[1] / focal, c[2]];
        let length = dot(ray(h1), ray(h1)).sqrt();
        let camera = |sign: f64| {
            let scaled = |c: [f64; 3]| ray(c).map(|value| sign * value / length);
            let (r1, r2) = (scaled(h1), scaled(h2));
            Self { focal, centre, r1, r2, r3: cross(r1, r2), t: scaled(h3) }
        };
        // The ground in the picture lies in front of the camera, and the camera above the ground.
        let ground = apply(&invert(h)?, [centre[0], size.1 as f64])?;
        let mut found = camera(1.0);
        if found.depth([ground[0], ground[1], 0.0]) < 0.0 {
            found = camera(-1.0);
        }
        if dot(found.r3, found.t) > 0.0 {
            found.r3 = found.r3.map(|value| -value);
        }
        Some(found)
    }

    fn depth(&self, p: [f64; 3]) -> f64 {
        self.r1[2] * p[0] + self.r2[2] * p[1] + self.r3[2] * p[2] + self.t[2]
    }

    /// Pixel of a world point; `None` behind the camera or nearer than half a metre.
    pub fn project(&self, p: [f64; 3]) -> Option<[f64; 2]> {
        let depth = self.depth(p);
        let axis = |k: usize| {
            let value = self.r1[k] * p[0] + self.r2[k] * p[1] + self.r3[k] * p[2] + self.t[k];
            self.focal * value / depth + self.centre[k]
        };
        (depth > 0.5).then(|| [axis(0), axis(1)])
    }

    /// The box around a cuboid standing on the ground.
    pub fn cuboid_rect(&self, at: [f64; 2], heading: f64, size: [f64; 3]) -> Option<Rect> {
        let (sin, cos) = heading.sin_cos();
        let mut rect = Rect { left: f32::MAX, top: f32::MAX, right: f32::MIN, bottom: f32::MIN };
        for corner in 0..8u8 {
            let side = |bit: u8| if corner & bit == 0 { -0.5 } else { 0.5 };
            let (along, across) = (side(1) * size[0], side(2) * size[1]);
            let z = (side(4) + 0.5) * size[2];
            let x = at[0] + along * cos - across * sin;
            let y = at[1] + along * sin + across * cos;
            let [u, v] = self.project([x, y, z])?.map(|value| value as f32);
            rect.left = rect.left.min(u);
            rect.right = rect.right.max(u);
            rect.top = rect.top.min(v);
            rect.bottom = rect.bottom.max(v);
        }
        Some(rect)
    }
}

fn dot(a: [f64; 3], b: [f64; 3]) -> f64 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
}

fn square(a: [f64; 3]) -> f64 {
    a[0] * a[0] + a[1] * a[1]
}

fn cross(a: [f64; 3], b: [f64; 3]) -> [f64; 3] {
    [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looking north from 10 m above (0, -20), 45 degrees down, focal length 800.
    fn example() -> Matrix3 {
        let (c, s) = (0.5f64.sqrt(), 0.5f64.sqrt());
        let (f, cx, cy) = (800.0, 640.0, 360.0);
        // camera axes: right = +x, down = (0, -s, -c), forward = (0, c, -s)
        let t = [0.0, -20.0 * s + 10.0 * c, 20.0 * c + 10.0 * s];
        [f, cx * c, cx * t[2], 0.0, -f * s + cy * c, f * t[1] + cy * t[2], 0.0, c, t[2]]
    }

    #[test]
    fn inverse_undoes() {
        let h = example();
        let back = invert(&h).unwrap();
        let pixel = apply(&h, [3.0, 4.0]).unwrap();
        let world = apply(&back, pixel).unwrap();
        assert!((world[0] - 3.0).abs() < 1e-9 && (world[1] - 4.0).abs() < 1e-9);
        assert!(invert(&[0.0; 9]).is_none());
    }

    #[test]
    fn the_camera_agrees_with_its_homography_and_sees_height_upwards() {
        let h = example();
        let camera = Camera::from_homography(&h, (1280, 720)).unwrap();
        assert!((camera.focal - 800.0).abs() < 1e-6);
        let ground = camera.project([2.0, 5.0, 0.0]).unwrap();
        let expected = apply(&h, [2.0, 5.0]).unwrap();
        assert!((ground[0] - expected[0]).abs() < 1e-6 && (ground[1] - expected[1]).abs() < 1e-6);
        assert!(camera.project([2.0, 5.0, 2.0]).unwrap()[1] < ground[1]);
    }

    #[test]
    fn no_camera_in_the_identity() {
        let identity = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0];
        assert!(Camera::from_homography(&identity, (1280, 720)).is_none());
    }
}

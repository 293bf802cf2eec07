//! Pinhole cameras over the junction, and the homography from the ground plane to their pixels.

/// A point or direction in the world, metres.
pub type Vec3 = [f64; 3];

/// `a - b`.
pub fn sub(a: Vec3, b: Vec3) -> Vec3 {
    [a[0] - b[0], a[1] - b[1], a[2] - b[2]]
}

/// Scalar product.
pub fn dot(a: Vec3, b: Vec3) -> f64 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
}

/// Vector product.
pub fn cross(a: Vec3, b: Vec3) -> Vec3 {
    [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]
}

/// `a` with length 1.
pub fn unit(a: Vec3) -> Vec3 {
    let length = dot(a, a).sqrt().max(1e-12);
    [a[0] / length, a[1] / length, a[2] / length]
}

/// A pinhole camera without roll or lens distortion.
#[derive(Clone, Debug)]
pub struct Camera {
    /// Where it hangs.
    pub position: Vec3,
    /// Rows: image right, image down, viewing direction, in world axes.
    pub axes: [Vec3; 3],
    /// Focal length in pixels.
    pub focal: f64,
    /// Picture width in pixels.
    pub width: usize,
    /// Picture height in pixels.
    pub height: usize,
}

impl Camera {
    /// A camera at `position` looking at `target` with a horizontal field of view in degrees.
    pub fn new(position: Vec3, target: Vec3, fov_degrees: f64, size: (usize, usize)) -> Self {
        let forward = unit(sub(target, position));
        let right = unit(cross(forward, [0.0, 0.0, 1.0]));
        let down = cross(forward, right);
        let focal = size.0 as f64 / 2.0 / (fov_degrees.to_radians() / 2.0).tan();
        Self { position, axes: [right, down, forward], focal, width: size.0, height: size.1 }
    }

    /// The cameras of the junction: two along the main street, one along the side street.
    pub fn of_junction(count: usize, size: (usize, usize)) -> Vec<Self> {
        let poses = [
            ([-34.0, -15.0, 9.5], [-8.0, 2.0, 0.0], 62.0),
            ([40.0, 16.0, 10.0], [12.0, -2.0, 0.0], 60.0),
            ([12.0, -38.0, 9.0], [-1.0, -8.0, 0.0], 60.0),
        ];
        poses.iter().take(count).map(|(at, to, fov)| Self::new(*at, *to, *fov, size)).collect()
    }

    /// Pixel position and depth of a world point; a depth under 0.3 m is clamped to it.
    pub fn project(&self, point: Vec3) -> ([f64; 2], f64) {
        let from_camera = sub(point, self.position);
        let depth = dot(self.axes[2], from_camera);
        let safe = depth.max(0.3);
        let x = self.focal * dot(self.axes[0], from_camera) / safe + self.width as f64 / 2.0;
        let y = self.focal * dot(self.axes[1], from_camera) / safe + self.height as f64 / 2.0;
        ([x, y], depth)
    }

    /// The viewing ray of a pixel in world axes, not normalized.
    pub fn ray(&self, x: f64, y: f64) -> Vec3 {
        let a = (x - self.width as f64 / 2.0) / self.focal;
        let b = (y - self.height as f64 / 2.0) / self.focal;
        [0, 1, 2].map(|k| self.axes[0][k] * a + self.axes[1][k] * b + self.axes[2][k])
    }

    /// Distance on the ground from the camera's foot.
    pub fn ground_distance(&self, x: f64, y: f64) -> f64 {
        (x - self.position[0]).hypot(y - self.position[1])
    }

    /// World (x, y, 1) to pixels, row by row, scaled so that the last entry is 1.
    pub fn homography(&self) -> [f64; 9] {
        let k = [
            [self.focal, 0.0, self.width as f64 / 2.0],
            [0.0, self.focal, self.height as f64 / 2.0],
            [0.0, 0.0, 1.0],
        ];
        let extrinsic: [Vec3; 3] =
            self.axes.map(|axis| [axis[0], axis[1], -dot(axis, self.position)]);
        let mut out = [0.0; 9];
        for row in 0..3 {
            for column in 0..3 {
                out[row * 3 + column] = (0..3).map(|i| k[row][i] * extrinsic[i][column]).sum();
            }
        }
        let scale = out[8];
        out.map(|value| value / scale)
    }
}

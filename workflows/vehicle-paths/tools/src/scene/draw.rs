//! Paints vehicles, pedestrians and their shadows with a painter's algorithm: shaded prisms with
//! windows, wheels, lamps and number plates.

use super::camera::{Camera, Vec3, cross, dot, sub, unit};
use super::raster::{Canvas, hull};
use super::traffic::{KINDS, Pedestrian, Pose, Vehicle};

/// Direction of the sunlight.
const SUN: Vec3 = [-0.45, 0.35, -0.82];
/// How much of the light a shadow takes away.
const SHADOW_DEPTH: f32 = 0.48;
const GLASS: [f32; 3] = [48.0, 55.0, 62.0];

/// A prism over a four-cornered foot, listed counter-clockwise seen from above.
pub struct Solid {
    /// Corners at the bottom.
    pub foot: [[f64; 2]; 4],
    /// Corners at the top.
    pub top: [[f64; 2]; 4],
    /// Height of the bottom.
    pub low: f64,
    /// Height of the top.
    pub high: f64,
    /// RGB.
    pub colour: [f32; 3],
}

/// A vehicle's own axes, to say where a part of it is.
struct Body {
    centre: [f64; 2],
    forward: [f64; 2],
    right: [f64; 2],
    half: [f64; 2],
}

impl Body {
    fn new(kind: usize, pose: &Pose) -> Self {
        let forward = [pose.heading.cos(), pose.heading.sin()];
        let right = [forward[1], -forward[0]];
        let half = [KINDS[kind].1 / 2.0, KINDS[kind].2 / 2.0];
        Self { centre: [pose.x, pose.y], forward, right, half }
    }

    /// A point at fractions (-1..1) of the half length and half width.
    fn at(&self, along: f64, across: f64) -> [f64; 2] {
        [0, 1].map(|k| {
            self.centre[k]
                + self.forward[k] * along * self.half[0]
                + self.right[k] * across * self.half[1]
        })
    }

    /// Counter-clockwise corners between two fractions of the length.
    fn slab(&self, back: f64, front: f64, width: f64) -> [[f64; 2]; 4] {
        [self.at(front, width), self.at(front, -width), self.at(back, -width), self.at(back, width)]
    }
}

fn lift(point: [f64; 2], z: f64) -> Vec3 {
    [point[0], point[1], z]
}

/// One flat face, shaded by the sun; nothing when it looks away from the camera.
fn face(
    canvas: &mut Canvas,
    camera: &Camera,
    corners: &[Vec3],
    colour: [f32; 3],
    owner: u16,
) -> bool {
    let normal = unit(cross(sub(corners[1], corners[0]), sub(corners[2], corners[0])));
    face_towards(canvas, camera, corners, normal, colour, owner)
}

fn face_towards(
    canvas: &mut Canvas,
    camera: &Camera,
    corners: &[Vec3],
    normal: Vec3,
    colour: [f32; 3],
    owner: u16,
) -> bool {
    let count = corners.len() as f64;
    let middle = [0, 1, 2].map(|k| corners.iter().map(|c| c[k]).sum::<f64>() / count);
    let projected: Vec<_> = corners.iter().map(|corner| camera.project(*corner)).collect();
    if dot(normal, sub(camera.position, middle)) <= 0.0 || projected.iter().any(|p| p.1 < 1.0) {
        return false;
    }
    let light = 0.62 + 0.42 * (-dot(normal, unit(SUN))).max(0.0) as f32;
    let points: Vec<[f64; 2]> = projected.iter().map(|p| p.0).collect();
    canvas.fill(&points, colour.map(|value| (value * light).min(255.0)), owner);
    true
}

/// Paints a prism, far sides first; `windows` covers its walls with them.
pub fn draw_solid(canvas: &mut Canvas, camera: &Camera, solid: &Solid, owner: u16, windows: bool) {
    let mut sides: Vec<usize> = (0..4).collect();
    let distance = |i: &usize| {
        let (a, b) = (solid.foot[*i], solid.foot[(*i + 1) % 4]);
        camera.ground_distance((a[0] + b[0]) / 2.0, (a[1] + b[1]) / 2.0)
    };
    sides.sort_by(|a, b| distance(b).total_cmp(&distance(a)));
    for i in sides {
        let j = (i + 1) % 4;
        let wall = [
            lift(solid.foot[i], solid.low),
            lift(solid.foot[j], solid.low),
            lift(solid.top[j], solid.high),
            lift(solid.top[i], solid.high),
        ];
        if face(canvas, camera, &wall, solid.colour, owner) && windows {
            draw_windows(canvas, camera, solid.foot[i], solid.foot[j], solid.high);
        }
    }
    let roof = solid.top.map(|corner| lift(corner, solid.high));
    face(canvas, camera, &roof, solid.colour.map(|value| value * 1.05), owner);
}

fn draw_windows(canvas: &mut Canvas, camera: &Camera, a: [f64; 2], b: [f64; 2], height: f64) {
    let length = (b[0] - a[0]).hypot(b[1] - a[1]);
    let on = |s: f64| [0, 1].map(|k| a[k] + (b[k] - a[k]) * s / length);
    let mut s = 1.0;
    while s < length - 1.6 {
        let mut z = 1.2;
        while z < height - 1.5 {
            let pane = [
                lift(on(s), z),
                lift(on(s + 1.6), z),
                lift(on(s + 1.6), z + 1.5),
                lift(on(s), z + 1.5),
            ];
            face(canvas, camera, &pane, [55.0, 62.0, 70.0], 0);
            z += 3.0;
        }
        s += 3.0;
    }
}

/// Marks in `shade` where a vehicle keeps the sun from the ground.
pub fn cast_shadow(canvas: &mut Canvas, camera: &Camera, vehicle: &Vehicle, pose: &Pose) {
    let body = Body::new(vehicle.kind, pose);
    let sun = unit(SUN);
    let mut points = Vec::new();
    for corner in body.slab(-1.0, 1.0, 1.0) {
        for z in [0.0, KINDS[vehicle.kind].3 * 0.9] {
            let reach = -z / sun[2];
            let ground = [corner[0] + sun[0] * reach, corner[1] + sun[1] * reach, 0.0];
            let (point, depth) = camera.project(ground);
            if depth < 1.0 {
                return;
            }
            points.push(point);
        }
    }
    canvas.fill(&hull(points), [1.0; 3], 0);
}

/// Darkens the picture by a painted and softened shade plane.
pub fn apply_shade(canvas: &mut Canvas, shade: &Canvas) {
    for (value, dark) in canvas.rgb.iter_mut().zip(&shade.rgb) {
        *value *= 1.0 - SHADOW_DEPTH * dark;
    }
}

/// Paints one vehicle.
pub fn draw_vehicle(canvas: &mut Canvas, camera: &Camera, vehicle: &Vehicle, pose: &Pose) {
    let (name, _, _, height, _) = KINDS[vehicle.kind];
    let body = Body::new(vehicle.kind, pose);
    let owner = vehicle.id;
    let mut prism = |foot, top, low, high, colour| {
        draw_solid(canvas, camera, &Solid { foot, top, low, high, colour }, owner, false);
    };
    let whole = body.slab(-1.0, 1.0, 1.0);
    match name {
        "car" | "suv" => {
            let waist = height * 0.55;
            prism(whole, whole, 0.28, waist, vehicle.colour);
            let roof = body.slab(-0.6, 0.12, 0.82);
            prism(body.slab(-0.85, 0.42, 0.94), roof, waist, height, GLASS);
            let lid = roof.map(|corner| lift(corner, height + 0.01));
            face(canvas, camera, &lid, vehicle.colour, owner);
        }
        "motorbike" => {
            let frame = body.slab(-1.0, 1.0, 0.5);
            prism(frame, frame, 0.2, 0.85, [38.0, 35.0, 35.0]);
            let rider = body.slab(-0.35, 0.15, 0.9);
            prism(rider, rider, 0.75, 1.45, vehicle.colour);
            let (head, depth) = camera.project(lift(body.centre, 1.65));
            let radius = 0.15 * camera.focal / depth.max(1.0);
            canvas.ellipse(head, [radius, radius], [30.0; 3], owner);
            return;
        }
        _ => {
            prism(whole, whole, 0.4, height, vehicle.colour);
            draw_cab_glass(canvas, camera, &body, height, name == "bus", owner);
        }
    }
    draw_wheels(canvas, camera, &body, owner);
    draw_ends(canvas, camera, &body, owner);
}

fn draw_cab_glass(
    canvas: &mut Canvas,
    camera: &Camera,
    body: &Body,
    height: f64,
    is_bus: bool,
    owner: u16,
) {
    let (low, high) = (height * 0.5, height * 0.85);
    for side in [1.0, -1.0] {
        let back = if is_bus { -0.9 } else { 0.55 };
        let (a, b) = (body.at(0.9, side * 1.01), body.at(back, side * 1.01));
        let pane = [lift(a, low), lift(b, low), lift(b, high), lift(a, high)];
        let normal = [body.right[0] * side, body.right[1] * side, 0.0];
        face_towards(canvas, camera, &pane, normal, GLASS, owner);
    }
    let (a, b) = (body.at(1.003, 0.85), body.at(1.003, -0.85));
    let pane = [lift(a, low), lift(b, low), lift(b, height * 0.88), lift(a, height * 0.88)];
    face_towards(canvas, camera, &pane, lift(body.forward, 0.0), GLASS, owner);
}

fn draw_wheels(canvas: &mut Canvas, camera: &Camera, body: &Body, owner: u16) {
    for side in [1.0, -1.0] {
        let normal = [body.right[0] * side, body.right[1] * side, 0.0];
        for along in [-0.62, 0.62] {
            let hub = lift(body.at(along, side * 1.01), 0.33);
            for (radius, colour) in [(0.33, [25.0; 3]), (0.165, [125.0; 3])] {
                let rim: Vec<Vec3> = (0..14)
                    .map(|k| f64::from(k) * std::f64::consts::TAU / 14.0)
                    .map(|a| {
                        let (c, s) = (a.cos() * radius, a.sin() * radius);
                        [hub[0] + body.forward[0] * c, hub[1] + body.forward[1] * c, hub[2] + s]
                    })
                    .collect();
                face_towards(canvas, camera, &rim, normal, colour, owner);
            }
        }
    }
}

/// Lamps and number plates at both ends.
fn draw_ends(canvas: &mut Canvas, camera: &Camera, body: &Body, owner: u16) {
    for (end, lamp) in [(1.005, [245.0, 240.0, 225.0]), (-1.005, [190.0, 35.0, 35.0])] {
        let normal = lift(body.forward.map(|value| value * f64::signum(end)), 0.0);
        let mut plate = |left: f64, right: f64, low: f64, high: f64, colour| {
            let (a, b) = (body.at(end, left), body.at(end, right));
            let quad = [lift(a, low), lift(b, low), lift(b, high), lift(a, high)];
            face_towards(canvas, camera, &quad, normal, colour, owner);
        };
        plate(0.59, 0.91, 0.6, 0.78, lamp);
        plate(-0.91, -0.59, 0.6, 0.78, lamp);
        plate(-0.29, 0.29, 0.45, 0.56, [238.0; 3]);
        for glyph in 0..6 {
            let left = -0.2 + 0.075 * f64::from(glyph);
            plate(left, left + 0.04, 0.47, 0.54, [18.0; 3]);
        }
    }
}

/// Paints one pedestrian in mid-walk.
pub fn draw_pedestrian(canvas: &mut Canvas, camera: &Camera, walker: &Pedestrian, seconds: f64) {
    let (foot, depth) = camera.project([walker.x(seconds), walker.y, 0.0]);
    if depth < 2.0 {
        return;
    }
    let scale = camera.focal / depth;
    let stride = (seconds * 6.0 + walker.phase).sin() * 0.22;
    let hip = [foot[0], foot[1] - 0.85 * scale];
    for side in [1.0, -1.0] {
        let toe = [foot[0] + side * stride * scale, foot[1]];
        canvas.line(hip, toe, (0.13 * scale).max(1.0), [40.0, 40.0, 50.0], walker.id);
    }
    let chest = [foot[0], foot[1] - 1.13 * scale];
    canvas.ellipse(chest, [0.2 * scale, 0.36 * scale], walker.colour, walker.id);
    let head = [foot[0], foot[1] - 1.6 * scale];
    canvas.ellipse(head, [0.12 * scale, 0.14 * scale], [205.0, 165.0, 140.0], walker.id);
}

//! Who drives where: lanes, arrivals, leader-following, slowing for turns, and pedestrians.

use super::random::Random;

/// Spacing of the points of a lane, metres.
const LANE_STEP: f64 = 0.25;
/// Seconds simulated before the first picture, so that the street is not empty.
const WARM_UP_SECONDS: f64 = 9.0;

/// Waypoints of the lane centres and how often each is taken.
const ROUTES: [(&str, f64, &[[f64; 2]]); 8] = [
    ("E", 3.0, &[[-90.0, -1.75], [90.0, -1.75]]),
    ("E2", 2.0, &[[-90.0, -5.25], [90.0, -5.25]]),
    ("W", 3.0, &[[90.0, 1.75], [-90.0, 1.75]]),
    ("W2", 2.0, &[[90.0, 5.25], [-90.0, 5.25]]),
    (
        "E_S",
        1.2,
        &[
            [-90.0, -5.25],
            [-9.0, -5.25],
            [-5.0, -6.2],
            [-2.6, -9.0],
            [-1.75, -13.0],
            [-1.75, -80.0],
        ],
    ),
    (
        "S_E",
        1.2,
        &[[1.75, -80.0], [1.75, -13.0], [2.6, -9.0], [5.0, -6.2], [9.0, -5.25], [90.0, -5.25]],
    ),
    (
        "W_S",
        1.0,
        &[[90.0, 1.75], [8.0, 1.75], [3.0, 0.5], [-0.5, -3.0], [-1.75, -9.0], [-1.75, -80.0]],
    ),
    (
        "S_W",
        1.0,
        &[[1.75, -80.0], [1.75, -9.0], [0.5, -2.0], [-3.0, 3.5], [-8.0, 5.25], [-90.0, 5.25]],
    ),
];

/// A kind of vehicle: name, length, width, height in metres, share of the traffic.
pub const KINDS: [(&str, f64, f64, f64, f64); 6] = [
    ("car", 4.3, 1.8, 1.45, 0.55),
    ("suv", 4.7, 1.9, 1.7, 0.17),
    ("van", 5.2, 2.0, 2.1, 0.10),
    ("truck", 8.5, 2.4, 3.1, 0.07),
    ("bus", 11.5, 2.5, 3.0, 0.04),
    ("motorbike", 2.1, 0.7, 1.4, 0.07),
];

/// Paint: white, black and two greys of the road's own tone make up half of it.
const PAINT: [[f32; 3]; 8] = [
    [235.0, 235.0, 235.0],
    [42.0, 40.0, 40.0],
    [125.0, 120.0, 120.0],
    [175.0, 172.0, 170.0],
    [150.0, 30.0, 30.0],
    [25.0, 60.0, 130.0],
    [40.0, 90.0, 50.0],
    [190.0, 140.0, 40.0],
];

/// Where a vehicle is at one picture.
#[derive(Clone, Copy, Debug)]
pub struct Pose {
    /// World x of the centre.
    pub x: f64,
    /// World y of the centre.
    pub y: f64,
    /// Direction of travel, radians from east.
    pub heading: f64,
    /// Metres a second.
    pub speed: f64,
}

/// One vehicle and where it is at each picture.
#[derive(Clone, Debug)]
pub struct Vehicle {
    /// From 1.
    pub id: u16,
    /// Index into [`KINDS`].
    pub kind: usize,
    /// Its route's name.
    pub route: &'static str,
    /// RGB.
    pub colour: [f32; 3],
    /// By picture number; `None` before it arrives and after it leaves.
    pub poses: Vec<Option<Pose>>,
    lane: usize,
    enters_at: f64,
    cruise: f64,
    along: f64,
    speed: f64,
}

/// One pedestrian, walking along a pavement for ever.
#[derive(Clone, Debug)]
pub struct Pedestrian {
    /// From 1000.
    pub id: u16,
    /// RGB of the clothes.
    pub colour: [f32; 3],
    /// World y of the pavement line.
    pub y: f64,
    start: f64,
    speed: f64,
    /// Phase of the walk, radians.
    pub phase: f64,
}

impl Pedestrian {
    /// World x at a time, wrapping around at the ends of the street.
    pub fn x(&self, seconds: f64) -> f64 {
        (self.start + self.speed * seconds + 45.0).rem_euclid(90.0) - 45.0
    }
}

/// Everybody in the scene.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// Vehicles in order of arrival.
    pub vehicles: Vec<Vehicle>,
    /// Pedestrians.
    pub pedestrians: Vec<Pedestrian>,
}

impl Traffic {
    /// Simulates `seconds` at `fps`; `rate` is arrivals a second over all lanes.
    pub fn simulate(random: &mut Random, seconds: f64, fps: f64, rate: f64) -> Self {
        let lanes: Vec<Vec<[f64; 2]>> = ROUTES.iter().map(|(_, _, way)| lane(way)).collect();
        let mut vehicles = arrivals(random, seconds, rate);
        let pedestrians = (0..8).map(|index| pedestrian(random, index)).collect();
        let pictures = (seconds * fps).round() as usize;
        let first = -(WARM_UP_SECONDS * fps) as i64;
        for step in first..pictures as i64 {
            let now = step as f64 / fps;
            let poses: Vec<Option<Pose>> =
                vehicles.iter().map(|vehicle| pose_of(vehicle, &lanes, now)).collect();
            for (index, vehicle) in vehicles.iter_mut().enumerate() {
                if step >= 0 {
                    vehicle.poses.push(poses[index]);
                }
                if let Some(pose) = poses[index] {
                    let want = wanted_speed(vehicle, index, pose, &poses, &lanes[vehicle.lane]);
                    let change = (want - vehicle.speed).clamp(-5.0 / fps, 2.2 / fps);
                    vehicle.speed += change;
                    vehicle.along += vehicle.speed.max(0.0) / fps;
                }
            }
        }
        Self { vehicles, pedestrians }
    }
}

fn arrivals(random: &mut Random, seconds: f64, rate: f64) -> Vec<Vehicle> {
    let weights: Vec<f64> = ROUTES.iter().map(|route| route.1).collect();
    let shares: Vec<f64> = KINDS.iter().map(|kind| kind.4).collect();
    let mut last_in_lane = [f64::MIN; ROUTES.len()];
    let mut out: Vec<Vehicle> = Vec::new();
    let mut now = -WARM_UP_SECONDS;
    while now < seconds && out.len() < 900 {
        now += random.exponential(1.0 / rate);
        let lane = random.weighted(&weights);
        let kind = random.weighted(&shares);
        let cruise = random.uniform(8.0, 12.5);
        let colour = PAINT[random.index(PAINT.len())];
        if now - last_in_lane[lane] < 3.2 {
            continue;
        }
        last_in_lane[lane] = now;
        out.push(Vehicle {
            id: out.len() as u16 + 1,
            kind,
            route: ROUTES[lane].0,
            colour,
            poses: Vec::new(),
            lane,
            enters_at: now,
            cruise,
            along: 0.0,
            speed: cruise,
        });
    }
    out
}

fn pedestrian(random: &mut Random, index: u16) -> Pedestrian {
    let lines = [-8.6, 8.6, -9.3, 9.2];
    let direction = if random.index(2) == 0 { -1.0 } else { 1.0 };
    Pedestrian {
        id: 1000 + index,
        y: lines[random.index(lines.len())],
        start: random.uniform(-40.0, 40.0),
        speed: direction * random.uniform(0.9, 1.6),
        colour: [0; 3].map(|_: i32| random.uniform(20.0, 200.0) as f32),
        phase: random.uniform(0.0, 6.0),
    }
}

/// Evenly spaced, smoothed points along the waypoints.
fn lane(way: &[[f64; 2]]) -> Vec<[f64; 2]> {
    let mut dense = Vec::new();
    for pair in way.windows(2) {
        let length = (pair[1][0] - pair[0][0]).hypot(pair[1][1] - pair[0][1]);
        let steps = (length / LANE_STEP).max(1.0) as usize;
        for k in 0..steps {
            let t = k as f64 / steps as f64;
            dense.push([0, 1].map(|axis| pair[0][axis] + (pair[1][axis] - pair[0][axis]) * t));
        }
    }
    let last = dense.len() - 1;
    (0..=last)
        .map(|i| {
            [0, 1].map(|axis| {
                let window = (i as i64 - 10..=i as i64 + 10)
                    .map(|j| dense[j.clamp(0, last as i64) as usize][axis]);
                window.sum::<f64>() / 21.0
            })
        })
        .collect()
}

fn pose_of(vehicle: &Vehicle, lanes: &[Vec<[f64; 2]>], now: f64) -> Option<Pose> {
    let lane = &lanes[vehicle.lane];
    let at = vehicle.along / LANE_STEP;
    if now < vehicle.enters_at || at as usize + 12 >= lane.len() {
        return None;
    }
    let (i, part) = (at as usize, at.fract());
    let (a, b) = (lane[i], lane[i + 1]);
    let (back, ahead) = (lane[i.saturating_sub(2)], lane[i + 2]);
    Some(Pose {
        x: a[0] + (b[0] - a[0]) * part,
        y: a[1] + (b[1] - a[1]) * part,
        heading: (ahead[1] - back[1]).atan2(ahead[0] - back[0]),
        speed: vehicle.speed,
    })
}

/// Cruise, but slow for a bend ahead and for anybody in front.
fn wanted_speed(
    vehicle: &Vehicle,
    index: usize,
    pose: Pose,
    poses: &[Option<Pose>],
    lane: &[[f64; 2]],
) -> f64 {
    let mut want = vehicle.cruise;
    let ahead = ((vehicle.along / LANE_STEP) as usize + 60).min(lane.len() - 1);
    let (a, b) = (lane[ahead - 2], lane[ahead]);
    if ((b[1] - a[1]).atan2(b[0] - a[0]) - pose.heading).sin().abs() > 0.15 {
        want = want.min(5.5);
    }
    let (fx, fy) = (pose.heading.cos(), pose.heading.sin());
    for (other, other_pose) in poses.iter().enumerate() {
        let Some(other_pose) = other_pose.filter(|_| other != index) else { continue };
        let (rx, ry) = (other_pose.x - pose.x, other_pose.y - pose.y);
        let (along, across) = (rx * fx + ry * fy, (ry * fx - rx * fy).abs());
        if along > 0.0 && along < 18.0 && across < 1.6 {
            let gap = along - 0.5 * KINDS[vehicle.kind].1 - 4.5;
            want = want.min((other_pose.speed + gap * 0.5).min(gap * 1.2).max(0.0));
        }
    }
    want
}

//! The empty street as a camera sees it: asphalt with grain, markings, pavements, grass, sky and
//! a row of houses.

use super::camera::Camera;
use super::draw::{Solid, draw_solid};
use super::random::Random;
use super::raster::{Canvas, soften};

/// Side of the tileable noise textures.
const TILE: usize = 512;

/// Fine and coarse grain.
struct Grain {
    fine: Vec<f32>,
    coarse: Vec<f32>,
}

impl Grain {
    fn new(random: &mut Random) -> Self {
        let noise: Vec<f32> = (0..TILE * TILE).map(|_| random.normal() as f32).collect();
        let blurred = |passes: usize, gain: f32| {
            let mut plane = noise.clone();
            (0..passes).for_each(|_| soften(&mut plane, TILE, TILE, 1, 0.33));
            plane.iter_mut().for_each(|value| *value *= gain);
            plane
        };
        Self { fine: blurred(2, 3.0), coarse: blurred(40, 12.0) }
    }

    fn at(plane: &[f32], x: f64, y: f64) -> f32 {
        let (x, y) = (x.rem_euclid(TILE as f64), y.rem_euclid(TILE as f64));
        let (i, j) = (x as usize % TILE, y as usize % TILE);
        let (fx, fy) = (x.fract() as f32, y.fract() as f32);
        let value = |i: usize, j: usize| plane[(j % TILE) * TILE + i % TILE];
        let top = value(i, j) + (value(i + 1, j) - value(i, j)) * fx;
        let low = value(i, j + 1) + (value(i + 1, j + 1) - value(i, j + 1)) * fx;
        top + (low - top) * fy
    }
}

/// The street without anybody in it.
pub fn empty_street(camera: &Camera, random: &mut Random) -> Canvas {
    let mut canvas = Canvas::new(camera.width, camera.height);
    let grain = Grain::new(random);
    for row in 0..camera.height {
        for column in 0..camera.width {
            let colour = pixel(camera, &grain, column as f64 + 0.5, row as f64 + 0.5);
            let at = (row * camera.width + column) * 3;
            canvas.rgb[at..at + 3].copy_from_slice(&colour);
        }
    }
    houses(&mut canvas, camera, random);
    canvas
}

fn pixel(camera: &Camera, grain: &Grain, column: f64, row: f64) -> [f32; 3] {
    let ray = camera.ray(column, row);
    if ray[2] > -0.015 {
        let low = (row / camera.height as f64 * 1.6).clamp(0.0, 1.0) as f32;
        return [170.0, 200.0, 225.0].map(|sky| sky * (1.0 - low * 0.25) + 30.0 * low);
    }
    let reach = -camera.position[2] / ray[2];
    let (x, y) = (camera.position[0] + ray[0] * reach, camera.position[1] + ray[1] * reach);
    let mut colour = surface(grain, x, y);
    if is_painted(x, y) {
        colour = colour.map(|value| value * 0.25 + 175.0);
    }
    let haze = ((camera.ground_distance(x, y) - 50.0) / 160.0).clamp(0.0, 0.75) as f32;
    let air = [185.0, 195.0, 205.0];
    [0, 1, 2].map(|k| colour[k] * (1.0 - haze) + air[k] * haze)
}

fn surface(grain: &Grain, x: f64, y: f64) -> [f32; 3] {
    let n = Grain::at(&grain.fine, x * 20.0, y * 20.0) * 1.6
        + Grain::at(&grain.coarse, x * 8.0, y * 8.0) * 1.5;
    let main = y.abs() < 7.0;
    let side = x.abs() < 3.5 && y < 0.0;
    if main || side {
        return [95.0 + n, 96.0 + n, 98.0 + n];
    }
    if y.abs() < 10.5 || (x.abs() < 6.0 && y < 0.0) {
        let joint = x.rem_euclid(1.2) < 0.05 || y.rem_euclid(1.2) < 0.05;
        let base = n - if joint { 18.0 } else { 0.0 };
        return [155.0 + base, 152.0 + base, 150.0 + base];
    }
    [80.0 + n * 1.8, 105.0 + n * 2.2, 55.0 + n * 1.5]
}

/// Lane lines, edge lines and the zebra crossing.
fn is_painted(x: f64, y: f64) -> bool {
    let main = y.abs() < 7.0;
    let junction = x.abs() < 6.0 && y < 1.0;
    let lanes = (y.abs() - 3.5).abs() < 0.07 && x.rem_euclid(6.0) < 2.5;
    let middle = (y.abs() - 0.12).abs() < 0.06;
    let edge = (y.abs() - 6.8).abs() < 0.07;
    let side = x.abs() < 0.07 && y < -8.0 && y.rem_euclid(6.0) < 3.0;
    let zebra = y.abs() < 6.9 && (x + 9.0).abs() < 1.6 && y.rem_euclid(1.0) < 0.5;
    (main && !junction && (lanes || middle || edge)) || side || zebra
}

fn houses(canvas: &mut Canvas, camera: &Camera, random: &mut Random) {
    let mut all = Vec::new();
    for step in -5..5 {
        for (y, depth) in [(17.0, 14.0), (-30.0, 14.0)] {
            let x = f64::from(step) * 22.0 + random.uniform(-2.0, 2.0);
            let (width, height) = (random.uniform(15.0, 20.0), random.uniform(7.0, 16.0));
            let paint = [0; 3].map(|_: i32| random.uniform(90.0, 190.0) as f32);
            let near = camera.ground_distance(x + width / 2.0, y + depth / 2.0);
            let blocks_side_street = y < 0.0 && (x + 9.0).abs() < 20.0;
            if near > 20.0 && !blocks_side_street {
                all.push((near, x, y, width, depth, height, paint));
            }
        }
    }
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (_, x, y, width, depth, height, paint) in all {
        let foot = [[x, y], [x + width, y], [x + width, y + depth], [x, y + depth]];
        let solid = Solid { foot, top: foot, low: 0.0, high: height, colour: paint };
        draw_solid(canvas, camera, &solid, 0, true);
    }
}

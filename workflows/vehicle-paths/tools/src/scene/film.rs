//! Films the junction: renders every camera's pictures and pipes them into the system's `ffmpeg`.
//! Nothing but the compressed video and the ground truth is written to disk.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use font8x8::{BASIC_FONTS, UnicodeFonts};

use super::camera::Camera;
use super::random::Random;
use super::raster::{Canvas, soften};
use super::traffic::{KINDS, Traffic, Vehicle};
use super::truth::{CameraTruth, Seen, Truth, VehicleTruth};
use super::{draw, ground};

/// How far away a vehicle is still drawn, metres.
const DRAW_DISTANCE: f64 = 110.0;
/// Sensor noise pictures that are cycled through at random.
const NOISE_PICTURES: usize = 9;

/// How the video is coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Codec {
    /// H.264 in MP4.
    H264,
    /// Motion JPEG in AVI.
    Mjpeg,
}

/// What is filmed, and how.
#[derive(Clone, Debug)]
pub struct Filming {
    /// Everything random follows from it.
    pub seed: u64,
    /// Length of the video.
    pub seconds: f64,
    /// Pictures a second.
    pub fps: f64,
    /// Picture size in pixels.
    pub size: (usize, usize),
    /// How many cameras, 1 to 3.
    pub cameras: usize,
    /// Vehicles arriving a second.
    pub rate: f64,
    /// How the video is coded.
    pub codec: Codec,
}

impl Filming {
    /// What a seed's scene looks like unless something else is asked for: 16 s of 1280x720 at 20
    /// pictures a second, one camera, H.264.
    pub fn of_seed(seed: u64) -> Self {
        let size = (1280, 720);
        Self { seed, seconds: 16.0, fps: 20.0, size, cameras: 1, rate: 0.55, codec: Codec::H264 }
    }
}

/// Writes `cam0.mp4` (or `.avi`), ..., and `truth.json` into `folder`, which is created.
pub fn film(folder: &Path, filming: &Filming) -> Result<Truth> {
    let (width, height) = filming.size;
    ensure!((1..=3).contains(&filming.cameras), "there are 1 to 3 cameras");
    ensure!(width >= 64 && height >= 64, "the picture is too small to draw in");
    ensure!(
        width.is_multiple_of(2) && height.is_multiple_of(2),
        "4:2:0 video needs an even width and height"
    );
    std::fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    let mut random = Random::new(filming.seed);
    let traffic = Traffic::simulate(&mut random, filming.seconds, filming.fps, filming.rate);
    let mut truth = Truth {
        seed: filming.seed,
        fps: filming.fps,
        width,
        height,
        cameras: Vec::new(),
        vehicles: vehicles(&traffic),
    };
    for (index, camera) in Camera::of_junction(filming.cameras, filming.size).iter().enumerate() {
        truth.cameras.push(film_camera(folder, filming, camera, index, &traffic, &mut random)?);
    }
    let path = folder.join("truth.json");
    std::fs::write(&path, serde_json::to_vec(&truth)?)
        .with_context(|| format!("write {}", path.display()))?;
    Ok(truth)
}

fn vehicles(traffic: &Traffic) -> Vec<VehicleTruth> {
    let one = |vehicle: &Vehicle| VehicleTruth {
        id: vehicle.id,
        kind: KINDS[vehicle.kind].0.to_owned(),
        route: vehicle.route.to_owned(),
        track: vehicle
            .poses
            .iter()
            .enumerate()
            .filter_map(|(n, pose)| pose.map(|p| (n as u32, p.x, p.y, p.heading, p.speed)))
            .collect(),
    };
    traffic.vehicles.iter().map(one).collect()
}

/// Renders one camera's video.
fn film_camera(
    folder: &Path,
    filming: &Filming,
    camera: &Camera,
    index: usize,
    traffic: &Traffic,
    random: &mut Random,
) -> Result<CameraTruth> {
    let extension = match filming.codec {
        Codec::H264 => "mp4",
        Codec::Mjpeg => "avi",
    };
    let video = format!("cam{index}.{extension}");
    let mut encoder = encoder(filming, &folder.join(&video))?;
    let mut pipe = encoder.stdin.take().context("ffmpeg has no stdin")?;
    let empty = ground::empty_street(camera, random);
    let sensor = Sensor::new(filming.size.0 * filming.size.1, random);
    let pictures = (filming.seconds * filming.fps).round() as usize;
    let mut frames = Vec::with_capacity(pictures);
    let mut drift = 0.0;
    for number in 0..pictures {
        let mut canvas = empty.clone();
        frames.push(paint(&mut canvas, camera, traffic, number, filming.fps));
        soften(&mut canvas.rgb, filming.size.0, filming.size.1, 3, 0.2);
        drift = 0.97 * drift + random.normal() * 0.12;
        let mut bytes = sensor.expose(&canvas, 1.0 + 0.006 * drift as f32, random);
        stamp(&mut bytes, filming.size.0, index, number, filming.fps);
        pipe.write_all(&bytes).context("ffmpeg stopped reading frames")?;
    }
    drop(pipe);
    let status = encoder.wait().context("wait for ffmpeg")?;
    ensure!(status.success(), "ffmpeg ended with {status}");
    let homography = camera.homography();
    Ok(CameraTruth { video, homography, position: camera.position, frames })
}

fn encoder(filming: &Filming, path: &Path) -> Result<Child> {
    let mut command = Command::new("ffmpeg");
    command.args(["-v", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgb24"]);
    command.args(["-s", &format!("{}x{}", filming.size.0, filming.size.1)]);
    command.args(["-r", &filming.fps.to_string(), "-i", "-"]);
    match filming.codec {
        Codec::H264 => command.args([
            "-c:v",
            "libx264",
            "-profile:v",
            "main",
            "-preset",
            "veryfast",
            "-crf",
            "21",
            "-pix_fmt",
            "yuv420p",
            "-movflags",
            "+faststart",
        ]),
        Codec::Mjpeg => command.args(["-c:v", "mjpeg", "-q:v", "3", "-pix_fmt", "yuvj420p"]),
    };
    command.arg(path).stdin(Stdio::piped());
    command.spawn().context("start ffmpeg (Debian package ffmpeg)")
}

/// Draws everybody, far to near, and says who is to be seen.
fn paint(
    canvas: &mut Canvas,
    camera: &Camera,
    traffic: &Traffic,
    number: usize,
    fps: f64,
) -> Vec<Seen> {
    let seconds = number as f64 / fps;
    let mut shade = Canvas::new(camera.width, camera.height);
    let mut order = Vec::new();
    for vehicle in &traffic.vehicles {
        if let Some(pose) = vehicle.poses[number] {
            let distance = camera.ground_distance(pose.x, pose.y);
            if distance < DRAW_DISTANCE {
                draw::cast_shadow(&mut shade, camera, vehicle, &pose);
                order.push((distance, Some((vehicle, pose)), None));
            }
        }
    }
    for walker in &traffic.pedestrians {
        let distance = camera.ground_distance(walker.x(seconds), walker.y);
        order.push((distance, None, Some(walker)));
    }
    soften(&mut shade.rgb, camera.width, camera.height, 3, 0.33);
    draw::apply_shade(canvas, &shade);
    order.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut whole = Vec::new();
    for (_, vehicle, walker) in order {
        if let Some((vehicle, pose)) = vehicle {
            draw::draw_vehicle(canvas, camera, vehicle, &pose);
            whole.extend(extent(canvas, vehicle.id));
        } else if let Some(walker) = walker {
            draw::draw_pedestrian(canvas, camera, walker, seconds);
            whole.extend(extent(canvas, walker.id));
        }
    }
    seen(canvas, whole)
}

/// Box and pixel count of an object just drawn, while nothing covers it yet.
struct Extent {
    id: u16,
    low: (usize, usize),
    high: (usize, usize),
    pixels: u32,
}

fn extent(canvas: &Canvas, id: u16) -> Option<Extent> {
    let mut out = Extent { id, low: (usize::MAX, usize::MAX), high: (0, 0), pixels: 0 };
    for (row, line) in canvas.owner.chunks_exact(canvas.width).enumerate() {
        for (column, owner) in line.iter().enumerate() {
            if *owner == id {
                out.low = (out.low.0.min(column), out.low.1.min(row));
                out.high = (out.high.0.max(column + 1), out.high.1.max(row + 1));
                out.pixels += 1;
            }
        }
    }
    (out.pixels > 0).then_some(out)
}

fn seen(canvas: &Canvas, whole: Vec<Extent>) -> Vec<Seen> {
    let mut left = vec![0u32; 2048];
    for owner in &canvas.owner {
        left[usize::from(*owner)] += 1;
    }
    let one = |extent: Extent| {
        let (low, high) = (extent.low, extent.high);
        Seen {
            id: extent.id,
            bbox: [low.0, low.1, high.0 - low.0, high.1 - low.1].map(|value| value as f32),
            visible: left[usize::from(extent.id)] as f32 / extent.pixels as f32,
            cut: low.0 == 0 || low.1 == 0 || high.0 == canvas.width || high.1 == canvas.height,
        }
    };
    whole.into_iter().map(one).collect()
}

/// Noise that the light adds to each picture.
struct Sensor {
    noise: Vec<Vec<i8>>,
}

impl Sensor {
    fn new(pixels: usize, random: &mut Random) -> Self {
        let mut picture = || {
            let mut plane = Vec::with_capacity(pixels * 3);
            for _ in 0..pixels {
                let luma = random.normal() * 2.4;
                // A cheap uniform is enough for the small chroma noise.
                plane.extend([0; 3].map(|_: i32| (luma + random.uniform(-1.4, 1.4)) as i8));
            }
            plane
        };
        Self { noise: (0..NOISE_PICTURES).map(|_| picture()).collect() }
    }

    fn expose(&self, canvas: &Canvas, gain: f32, random: &mut Random) -> Vec<u8> {
        let noise = &self.noise[random.index(NOISE_PICTURES)];
        let exposed = |(value, noise): (&f32, &i8)| (value * gain + f32::from(*noise)) as u8;
        canvas.rgb.iter().zip(noise).map(exposed).collect()
    }
}

/// Burns the camera's name and the time in, as real recorders do.
fn stamp(bytes: &mut [u8], width: usize, camera: usize, number: usize, fps: f64) {
    let seconds = number as f64 / fps;
    let text = format!("CAM{} 17:{:02}:{:05.2}", camera + 1, seconds as u32 / 60, seconds % 60.0);
    for (position, letter) in text.chars().enumerate() {
        let glyph = BASIC_FONTS.get(letter).unwrap_or_default();
        for (row, bits) in glyph.iter().enumerate() {
            for column in (0..8).filter(|column| bits & (1 << column) != 0) {
                for (dx, dy) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
                    let x = 16 + (position * 8 + column) * 2 + dx;
                    let y = 14 + row * 2 + dy;
                    if x < width {
                        let at = (y * width + x) * 3;
                        bytes[at..at + 3].fill(250);
                    }
                }
            }
        }
    }
}

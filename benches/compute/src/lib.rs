//! Programs that compute: the same code in a guest and in a native process. Input is made before the clock starts.

use std::collections::HashMap;
use std::time::Instant;

use cwasi_bench_protocol::{Answer, Job};
use sha2::{Digest as _, Sha256};
use zune_core::bytestream::ZCursor;
use zune_jpeg::JpegDecoder;

/// Names of the programs.
pub const PROGRAMS: [&str; 4] = ["sha-256", "hash-map", "jpeg-decode", "n-body"];

/// Bytes that are hashed.
const HASHED: usize = 2 << 20;
/// Keys that are inserted and found.
const KEYS: u64 = 100_000;
/// Size of the picture.
const PICTURE: (u16, u16) = (1280, 720);
/// Steps of the simulation.
const STEPS: usize = 100_000;

/// Runs the program that is the job's target, as often as it says. Each run is a call of the answer.
///
/// # Errors
/// Without such a program, and when a run's result differs from the first one's.
pub fn perform(job: &Job) -> Result<Answer, String> {
    let name = job.targets.first().map_or("", String::as_str);
    let program = program(name)?;
    let (mut answer, mut first) = (Answer::default(), None);
    for _ in 0..job.count {
        let started = Instant::now();
        let result = program();
        let took = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if *first.get_or_insert(result) != result {
            return Err(format!("{name} computed something else"));
        }
        answer.add(0, 0, took);
    }
    Ok(answer)
}

/// A program with its input; it returns a number that depends on all that it did.
fn program(name: &str) -> Result<Box<dyn Fn() -> u64>, String> {
    Ok(match name {
        "sha-256" => {
            let bytes = noise(HASHED);
            Box::new(move || number(&Sha256::digest(&bytes)))
        }
        "hash-map" => Box::new(|| insert_and_find(KEYS)),
        "jpeg-decode" => {
            let picture = jpeg()?;
            Box::new(move || decode(&picture))
        }
        "n-body" => Box::new(|| simulate(STEPS)),
        _ => return Err(format!("no program is called {name}")),
    })
}

/// Bytes that look random, the same each time (xorshift).
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..length.div_ceil(8)).flat_map(|_| next()).take(length).collect()
}

/// The first eight bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn insert_and_find(keys: u64) -> u64 {
    let spread = |key: u64| key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut map = HashMap::new();
    for key in 0..keys {
        map.insert(spread(key), key);
    }
    (0..keys).filter_map(|key| map.get(&spread(key))).sum()
}

/// A picture with smooth and with noisy parts.
fn jpeg() -> Result<Vec<u8>, String> {
    let (width, height) = PICTURE;
    let noise = noise(usize::from(width) * usize::from(height));
    let pixels: Vec<u8> = noise
        .iter()
        .zip(0_u32..)
        .flat_map(|(noise, at)| {
            let (x, y) = (at % u32::from(width), at / u32::from(width));
            let smooth = |value: u32| value.to_le_bytes()[0];
            [smooth(x / 5), smooth(y / 3), if x > y { *noise / 4 } else { smooth(x + y) }]
        })
        .collect();
    let mut bytes = Vec::new();
    jpeg_encoder::Encoder::new(&mut bytes, 85)
        .encode(&pixels, width, height, jpeg_encoder::ColorType::Rgb)
        .map_err(|error| error.to_string())?;
    Ok(bytes)
}

fn decode(picture: &[u8]) -> u64 {
    let pixels = JpegDecoder::new(ZCursor::new(picture)).decode().unwrap_or_default();
    pixels.iter().map(|pixel| u64::from(*pixel)).sum()
}

/// Position, velocity and mass of a body.
type Body = ([f64; 3], [f64; 3], f64);

/// Five bodies that attract each other, in steps of equal length; the bits of their energy at the end.
fn simulate(steps: usize) -> u64 {
    const STEP: f64 = 0.001;
    let mut bodies: [Body; 5] = [
        ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0], 40.0),
        ([5.0, 0.0, 0.1], [0.0, 2.8, 0.0], 0.04),
        ([0.0, 9.0, 0.2], [-2.1, 0.0, 0.1], 0.01),
        ([-15.0, 0.0, 0.0], [0.0, -1.6, 0.0], 0.002),
        ([0.0, -25.0, 1.0], [1.3, 0.0, 0.0], 0.002),
    ];
    for _ in 0..steps {
        for first in 0..bodies.len() {
            for second in first + 1..bodies.len() {
                let apart: [f64; 3] =
                    std::array::from_fn(|axis| bodies[first].0[axis] - bodies[second].0[axis]);
                let square: f64 = apart.iter().map(|part| part * part).sum();
                let pull = STEP / (square * square.sqrt());
                let (light, heavy) = (bodies[second].2 * pull, bodies[first].2 * pull);
                for (axis, apart) in apart.into_iter().enumerate() {
                    bodies[first].1[axis] -= apart * light;
                    bodies[second].1[axis] += apart * heavy;
                }
            }
        }
        for (position, velocity, _) in &mut bodies {
            for (position, velocity) in position.iter_mut().zip(velocity) {
                *position += *velocity * STEP;
            }
        }
    }
    let squares = |of: &[f64; 3]| of.iter().map(|part| part * part).sum::<f64>();
    bodies.iter().map(|(_, velocity, mass)| squares(velocity) * mass / 2.0).sum::<f64>().to_bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_computes_something() {
        for name in PROGRAMS {
            let program = program(name).unwrap();
            let result = program();
            assert_ne!(result, 0, "{name}");
            assert_eq!(program(), result, "{name}");
        }
        assert!(program("none").is_err());
        let decoded = JpegDecoder::new(ZCursor::new(jpeg().unwrap())).decode().unwrap();
        assert_eq!(decoded.len(), 3 * usize::from(PICTURE.0) * usize::from(PICTURE.1));
    }
}

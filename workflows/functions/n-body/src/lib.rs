//! Moves the sun and the four outer planets, as the Computer Language Benchmarks Game's `n-body` does: the energy of
//! the system before and after.

use std::f64::consts::PI;

use function::Query;

const STEPS: u32 = 1000;
/// Of a step, in years.
const DURATION: f64 = 0.01;
const SOLAR_MASS: f64 = 4.0 * PI * PI;
const YEAR: f64 = 365.24;

/// In astronomical units, years and solar masses times 4 π².
#[derive(Clone, Copy, Debug)]
struct Body {
    position: [f64; 3],
    velocity: [f64; 3],
    mass: f64,
}

/// `velocity` in astronomical units a day, `mass` in solar masses.
fn planet(position: [f64; 3], velocity: [f64; 3], mass: f64) -> Body {
    Body { position, velocity: velocity.map(|it| it * YEAR), mass: mass * SOLAR_MASS }
}

/// The sun, Jupiter, Saturn, Uranus and Neptune at the benchmark's beginning.
fn solar_system() -> [Body; 5] {
    let mut bodies = [
        planet([0.0; 3], [0.0; 3], 1.0),
        planet(
            [4.841_431_442_464_721, -1.160_320_044_027_428_4, -0.103_622_044_471_123_11],
            [0.001_660_076_642_744_037, 0.007_699_011_184_197_404, -6.904_600_169_720_63e-5],
            9.547_919_384_243_266e-4,
        ),
        planet(
            [8.343_366_718_244_58, 4.124_798_564_124_305, -0.403_523_417_114_321_4],
            [-0.002_767_425_107_268_624, 0.004_998_528_012_349_172, 2.304_172_975_737_639_3e-5],
            2.858_859_806_661_308e-4,
        ),
        planet(
            [12.894_369_562_139_13, -15.111_151_401_698_631, -0.223_307_578_892_655_73],
            [0.002_964_601_375_647_616, 0.002_378_471_739_594_809_5, -2.965_895_685_402_375_6e-5],
            4.366_244_043_351_563e-5,
        ),
        planet(
            [15.379_697_114_850_917, -25.919_314_609_987_964, 0.179_258_772_950_371_18],
            [0.002_680_677_724_903_893_2, 0.001_628_241_700_382_423, -9.515_922_545_197_159e-5],
            5.151_389_020_466_114_5e-5,
        ),
    ];
    // The system as a whole rests.
    let mut momentum = [0.0; 3];
    for body in &bodies {
        for (sum, velocity) in momentum.iter_mut().zip(body.velocity) {
            *sum += velocity * body.mass;
        }
    }
    bodies[0].velocity = momentum.map(|it| -it / SOLAR_MASS);
    bodies
}

fn difference(a: [f64; 3], b: [f64; 3]) -> [f64; 3] {
    [a[0] - b[0], a[1] - b[1], a[2] - b[2]]
}

fn square(it: [f64; 3]) -> f64 {
    it[0] * it[0] + it[1] * it[1] + it[2] * it[2]
}

fn energy(bodies: &[Body]) -> f64 {
    let mut energy = 0.0;
    for (index, body) in bodies.iter().enumerate() {
        energy += 0.5 * body.mass * square(body.velocity);
        for other in &bodies[index + 1..] {
            let distance = square(difference(body.position, other.position)).sqrt();
            energy -= body.mass * other.mass / distance;
        }
    }
    energy
}

fn step(bodies: &mut [Body]) {
    for index in 1..bodies.len() {
        let (before, rest) = bodies.split_at_mut(index);
        let other = &mut rest[0];
        for body in before {
            let way = difference(body.position, other.position);
            let distance = square(way);
            let pull = DURATION / (distance * distance.sqrt());
            for (axis, way) in way.into_iter().enumerate() {
                body.velocity[axis] -= way * other.mass * pull;
                other.velocity[axis] += way * body.mass * pull;
            }
        }
    }
    for body in bodies {
        for (position, velocity) in body.position.iter_mut().zip(body.velocity) {
            *position += DURATION * velocity;
        }
    }
}

/// The function. It reads nothing of the query.
///
/// # Errors
/// None.
pub fn answer(_query: &Query) -> Result<String, String> {
    let mut bodies = solar_system();
    let before = energy(&bodies);
    for _ in 0..STEPS {
        step(&mut bodies);
    }
    Ok(format!("{before:.9}\n{:.9}", energy(&bodies)))
}

function::export!(answer);

#[cfg(test)]
mod tests {
    #[test]
    fn the_energies_are_the_benchmarks() {
        let answer = super::answer(&function::Query::default());
        assert_eq!(answer, Ok("-0.169075164\n-0.169087605".to_owned()));
    }
}

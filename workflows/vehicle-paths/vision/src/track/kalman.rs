//! Constant-velocity Kalman filter in the plane, and the backward pass that smooths its result.
//! State: x, y, and their change per second.

use super::matrix::Matrix;

/// Place and velocity with their covariance.
#[derive(Clone, Copy, Debug)]
pub struct State {
    /// x, y, vx, vy.
    pub mean: Matrix<4, 1>,
    /// Covariance of the mean.
    pub spread: Matrix<4, 4>,
}

const SEE: Matrix<2, 4> = Matrix([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]);

impl State {
    /// At a measured place, with a velocity known only to within `speed`.
    pub fn at(place: [f64; 2], noise: &Matrix<2, 2>, speed: f64) -> Self {
        let mut spread = Matrix::ZERO;
        for r in 0..2 {
            for c in 0..2 {
                spread.0[r][c] = noise.0[r][c];
            }
            spread.0[r + 2][r + 2] = speed * speed;
        }
        Self { mean: Matrix([[place[0]], [place[1]], [0.0], [0.0]]), spread }
    }

    /// x and y.
    pub fn place(&self) -> [f64; 2] {
        [self.mean.0[0][0], self.mean.0[1][0]]
    }

    /// Velocity.
    pub fn velocity(&self) -> [f64; 2] {
        [self.mean.0[2][0], self.mean.0[3][0]]
    }

    /// Speed.
    pub fn speed(&self) -> f64 {
        self.mean.0[2][0].hypot(self.mean.0[3][0])
    }

    /// Later (or, with a negative `seconds`, earlier) under random acceleration of this size.
    pub fn predicted(&self, seconds: f64, acceleration: f64) -> Self {
        let step = transition(seconds);
        let mean = step.times(&self.mean);
        let dt = seconds.abs();
        let q = acceleration * acceleration;
        let mut noise = Matrix::ZERO;
        for k in 0..2 {
            noise.0[k][k] = q * dt.powi(4) / 4.0 + q * dt.powi(3) / 3.0;
            noise.0[k][k + 2] = q * dt * dt * seconds.signum() / 2.0;
            noise.0[k + 2][k] = noise.0[k][k + 2];
            noise.0[k + 2][k + 2] = q * dt;
        }
        let spread = step.times(&self.spread).times(&step.transposed()).plus(&noise);
        Self { mean, spread }
    }

    /// Squared distance of a measurement in standard deviations.
    pub fn distance(&self, place: [f64; 2], noise: &Matrix<2, 2>) -> f64 {
        let (off, spread) = self.innovation(place, noise);
        let Some(inverse) = spread.inverse() else { return f64::INFINITY };
        off.transposed().times(&inverse).times(&off).0[0][0]
    }

    fn innovation(&self, place: [f64; 2], noise: &Matrix<2, 2>) -> (Matrix<2, 1>, Matrix<2, 2>) {
        let off = Matrix([[place[0]], [place[1]]]).minus(&SEE.times(&self.mean));
        (off, SEE.times(&self.spread).times(&SEE.transposed()).plus(noise))
    }

    /// Takes a measurement in.
    pub fn corrected(&self, place: [f64; 2], noise: &Matrix<2, 2>) -> Self {
        let (off, spread) = self.innovation(place, noise);
        let Some(inverse) = spread.inverse() else { return *self };
        let gain = self.spread.times(&SEE.transposed()).times(&inverse);
        Self {
            mean: self.mean.plus(&gain.times(&off)),
            spread: Matrix::identity().minus(&gain.times(&SEE)).times(&self.spread),
        }
    }
}

fn transition(seconds: f64) -> Matrix<4, 4> {
    let mut step = Matrix::identity();
    step.0[0][2] = seconds;
    step.0[1][3] = seconds;
    step
}

/// A measured place with its covariance.
pub type Measured = ([f64; 2], Matrix<2, 2>);

/// The best estimate at every time, using measurements before and after it (Rauch, Tung and
/// Striebel). Times in seconds, ascending; where nothing was measured the path is interpolated.
pub fn smooth(steps: &[(f64, Option<Measured>)], acceleration: f64, speed: f64) -> Vec<State> {
    let Some((place, noise)) = steps.iter().find_map(|step| step.1) else { return Vec::new() };
    let mut state = State::at(place, &noise.scaled(4.0), speed);
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let mut last = steps[0].0;
    for (time, measured) in steps {
        state = state.predicted(time - last, acceleration);
        last = *time;
        before.push(state);
        if let Some((place, noise)) = measured {
            state = state.corrected(*place, noise);
        }
        after.push(state);
    }
    for k in (0..after.len().saturating_sub(1)).rev() {
        let step = transition(steps[k + 1].0 - steps[k].0);
        let Some(inverse) = before[k + 1].spread.inverse() else { continue };
        let gain = after[k].spread.times(&step.transposed()).times(&inverse);
        let later = after[k + 1].mean.minus(&before[k + 1].mean);
        let spread = after[k + 1].spread.minus(&before[k + 1].spread);
        after[k].mean = after[k].mean.plus(&gain.times(&later));
        after[k].spread = after[k].spread.plus(&gain.times(&spread).times(&gain.transposed()));
    }
    after
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_in_a_straight_drive_is_bridged() {
        let noise = Matrix([[0.04, 0.0], [0.0, 0.04]]);
        let steps: Vec<_> = (0..40)
            .map(|k| {
                let wobble = if k % 2 == 0 { 0.1 } else { -0.1 };
                let measured = ([f64::from(k) * 0.8, wobble], noise);
                (f64::from(k) * 0.1, (!(15..25).contains(&k)).then_some(measured))
            })
            .collect();
        let smoothed = smooth(&steps, 1.5, 15.0);
        let middle = smoothed[20].place();
        assert!((middle[0] - 16.0).abs() < 0.1 && middle[1].abs() < 0.1, "{middle:?}");
        assert!((smoothed[20].speed() - 8.0).abs() < 0.3);
    }

    #[test]
    fn nothing_measured_is_no_path() {
        assert!(smooth(&[(0.0, None), (0.1, None)], 1.0, 1.0).is_empty());
    }
}

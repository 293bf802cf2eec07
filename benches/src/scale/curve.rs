//! One curve: a cost over growing amounts of one thing, and how fast it grows.

use serde::Serialize;

use crate::stats::Distribution;

/// Exponent above which the cost of all counts as superlinear: ten times as many cost more than 14 times as much.
pub const SUPERLINEAR: f64 = 1.15;
/// Points that an exponent needs.
const POINTS_MIN: usize = 2;

/// What a point's figure is the cost of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cost {
    /// Of all of the amount: a straight line has exponent 1.
    All,
    /// Of one among the amount: if it stays as it is, the cost of all is a straight line, so the exponent is 0.
    One,
}

/// A measured amount.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    pub at: usize,
    #[serde(flatten)]
    pub cost: Distribution,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    pub name: &'static str,
    /// What there is more and more of.
    pub over: &'static str,
    /// Unit of the figures.
    pub unit: &'static str,
    pub cost: Cost,
    /// What was measured, and how.
    pub conditions: &'static str,
    /// In order of growth.
    pub points: Vec<Point>,
}

impl Curve {
    #[must_use]
    pub const fn new(
        name: &'static str,
        [over, unit]: [&'static str; 2],
        cost: Cost,
        conditions: &'static str,
    ) -> Self {
        Self { name, over, unit, cost, conditions, points: Vec::new() }
    }

    /// Adds the next amount, unless there are no samples.
    pub fn add(&mut self, at: usize, samples: &[f64]) {
        self.points.extend(Distribution::of(samples).map(|cost| Point { at, cost }));
    }

    /// Exponent of all points.
    #[must_use]
    pub fn exponent(&self) -> Option<f64> {
        exponent(&self.points)
    }

    /// Exponent of the last half of the points, where fixed costs weigh least.
    #[must_use]
    pub fn exponent_of_last_half(&self) -> Option<f64> {
        exponent(&self.points[self.points.len() / 2..])
    }

    /// True when the cost of all grows faster than the amount, over all points or over the last half.
    #[must_use]
    pub fn is_superlinear(&self) -> bool {
        let of_all = match self.cost {
            Cost::All => 0.0,
            Cost::One => 1.0,
        };
        let exponents = [self.exponent(), self.exponent_of_last_half()];
        exponents.into_iter().flatten().any(|exponent| exponent + of_all > SUPERLINEAR)
    }
}

/// Slope of the medians by least squares, both axes logarithmic. A point at 0 is on no such axis.
fn exponent(points: &[Point]) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "amounts up to 2^30")]
    let logarithms: Vec<(f64, f64)> = points
        .iter()
        .filter(|point| point.at > 0 && point.cost.p50 > 0.0)
        .map(|point| ((point.at as f64).ln(), point.cost.p50.ln()))
        .collect();
    if logarithms.len() < POINTS_MIN {
        return None;
    }
    #[expect(clippy::cast_precision_loss, reason = "a few points")]
    let count = logarithms.len() as f64;
    let mean_x = logarithms.iter().map(|(x, _)| x).sum::<f64>() / count;
    let mean_y = logarithms.iter().map(|(_, y)| y).sum::<f64>() / count;
    let (mut above, mut below) = (0.0, 0.0);
    for (x, y) in logarithms {
        above += (x - mean_x) * (y - mean_y);
        below += (x - mean_x) * (x - mean_x);
    }
    (below > 0.0).then(|| above / below)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(cost: Cost, points: &[(usize, f64)]) -> Curve {
        let mut curve = Curve::new("c", ["things", "us"], cost, "");
        for (at, value) in points {
            curve.add(*at, &[*value]);
        }
        curve
    }

    fn near(found: Option<f64>, expected: f64) -> bool {
        found.is_some_and(|found| (found - expected).abs() < 1e-9)
    }

    #[test]
    fn an_exponent_is_the_slope_of_the_logarithms() {
        for power in [0, 1, 2] {
            let points =
                [1, 10, 100, 1000].map(|at: i32| (at as usize, 3.0 * f64::from(at.pow(power))));
            let curve = curve(Cost::All, &points);
            assert!(near(curve.exponent(), f64::from(power)), "{curve:?}");
            assert!(near(curve.exponent_of_last_half(), f64::from(power)), "{curve:?}");
            assert_eq!(curve.is_superlinear(), power == 2);
        }
    }

    #[test]
    fn a_bend_shows_in_the_last_half() {
        let bent = curve(Cost::All, &[(1, 50.0), (10, 50.0), (100, 50.0), (1000, 5000.0)]);
        assert!(near(bent.exponent_of_last_half(), 2.0));
        assert!(bent.exponent().unwrap() < SUPERLINEAR && bent.is_superlinear());
    }

    #[test]
    fn what_one_costs_may_stay_and_not_grow() {
        assert!(!curve(Cost::One, &[(1, 55.0), (1000, 55.0)]).is_superlinear());
        let grows = curve(Cost::One, &[(100, 55.0), (300, 90.0), (1000, 162.0)]);
        assert!(grows.is_superlinear() && grows.exponent().unwrap() < 1.0);
    }

    #[test]
    fn points_without_a_logarithm_are_left_out() {
        let payload = curve(Cost::All, &[(0, 9.0), (10, 10.0), (100, 100.0)]);
        assert!(near(payload.exponent(), 1.0));
        assert_eq!(curve(Cost::All, &[(0, 9.0), (10, 10.0)]).exponent(), None);
        assert_eq!(curve(Cost::All, &[(10, 9.0), (10, 10.0)]).exponent(), None);
        assert_eq!(curve(Cost::All, &[]).exponent_of_last_half(), None);
        let mut empty = curve(Cost::All, &[]);
        empty.add(1, &[]);
        assert!(empty.points.is_empty());
    }
}

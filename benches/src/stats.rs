//! Distributions of a side's samples, and comparison of two sides that took turns.

use serde::Serialize;

/// Smallest, middle and large samples, in the unit of the samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Distribution {
    /// The smallest.
    pub min: f64,
    pub p50: f64,
    /// 99 of 100 are at most this.
    pub p99: f64,
    /// How many there were.
    pub repeats: usize,
}

impl Distribution {
    /// Of these samples; `None` when there are none.
    #[must_use]
    pub fn of(samples: &[f64]) -> Option<Self> {
        let sorted = sorted(samples);
        Some(Self {
            min: *sorted.first()?,
            p50: quantile(&sorted, 0.5)?,
            p99: quantile(&sorted, 0.99)?,
            repeats: sorted.len(),
        })
    }
}

/// The samples of one side, round by round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rounds(pub Vec<Vec<f64>>);

impl Rounds {
    #[must_use]
    pub fn all(&self) -> Vec<f64> {
        self.0.concat()
    }

    /// Of all samples.
    #[must_use]
    pub fn median(&self) -> Option<f64> {
        quantile(&sorted(&self.all()), 0.5)
    }

    fn medians(&self) -> Vec<Option<f64>> {
        self.0.iter().map(|round| quantile(&sorted(round), 0.5)).collect()
    }
}

/// How one side's median compares with another's, in one run of rounds that both took turns in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// Median of all samples by median of all samples.
    pub value: f64,
    /// First quartile of the rounds' own ratios.
    pub low: f64,
    /// Third quartile of the rounds' own ratios.
    pub high: f64,
}

impl Ratio {
    /// `above` by `below`; `None` when a side has no samples, or took no time.
    #[must_use]
    pub fn of(above: &Rounds, below: &Rounds) -> Option<Self> {
        let value = above.median()? / below.median()?;
        let each: Vec<f64> = above
            .medians()
            .into_iter()
            .zip(below.medians())
            .filter_map(|(above, below)| Some(above? / below?))
            .collect();
        let each = sorted(&each);
        let ratio = Self { value, low: quantile(&each, 0.25)?, high: quantile(&each, 0.75)? };
        ratio.value.is_finite().then_some(ratio)
    }
}

/// The samples in ascending order.
#[must_use]
pub fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The smallest sample that this part of them does not exceed; `None` when there are none.
#[must_use]
pub fn quantile(sorted: &[f64], part: f64) -> Option<f64> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "far fewer than 2^52 samples, and a part between 0 and 1"
    )]
    let rank = (part * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_is_that_of_the_samples_in_any_order() {
        let samples: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let expected = Distribution { min: 1.0, p50: 50.0, p99: 99.0, repeats: 100 };
        assert_eq!(Distribution::of(&samples), Some(expected));
        let one = Distribution { min: 7.0, p50: 7.0, p99: 7.0, repeats: 1 };
        assert_eq!(Distribution::of(&[7.0]), Some(one));
        assert_eq!(Distribution::of(&[]), None);
    }

    #[test]
    fn a_ratio_is_that_of_the_medians_with_the_rounds_quartiles() {
        let above = Rounds(vec![vec![10.0, 20.0], vec![20.0, 40.0], vec![30.0], vec![40.0]]);
        let below = Rounds(vec![vec![10.0], vec![10.0], vec![10.0], vec![10.0]]);
        // All: 10 20 20 30 40 40; rounds: 1 2 3 4.
        assert_eq!(Ratio::of(&above, &below), Some(Ratio { value: 2.0, low: 1.0, high: 3.0 }));
        assert_eq!(Ratio::of(&above, &Rounds::default()), None);
        assert_eq!(Ratio::of(&above, &Rounds(vec![vec![0.0]])), None);
    }

    #[test]
    fn drift_that_hits_both_sides_leaves_the_rounds_ratios_alone() {
        let above = Rounds((1..=9).map(|round| vec![f64::from(round) * 3.0]).collect());
        let below = Rounds((1..=9).map(|round| vec![f64::from(round)]).collect());
        assert_eq!(Ratio::of(&above, &below), Some(Ratio { value: 3.0, low: 3.0, high: 3.0 }));
    }
}

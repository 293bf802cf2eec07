//! A measured series, from which tables, plots, CSV and JSON are made, and its statistics.

use std::borrow::Cow;

use cwasi_bench::stats::{quantile, sorted};
use serde::{Deserialize, Serialize};
use statrs::stats_tests::Alternative;
use statrs::stats_tests::mannwhitneyu::{MannWhitneyUMethod, mannwhitneyu};

/// Samples of one side in one case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Who was measured: `cwasi local`, `native in runc`…
    pub side: String,
    /// What was varied: `2 MB`, `10`, `aes`. Plots put cases that begin with a number in its place.
    pub case: String,
    pub unit: Cow<'static, str>,
    pub samples: Vec<f64>,
}

impl Series {
    #[must_use]
    pub fn new(
        side: &str,
        case: impl ToString,
        unit: impl Into<Cow<'static, str>>,
        samples: Vec<f64>,
    ) -> Self {
        Self { side: side.to_owned(), case: case.to_string(), unit: unit.into(), samples }
    }

    /// `None` without samples.
    #[must_use]
    pub fn summary(&self) -> Option<Summary> {
        Summary::of(&self.samples)
    }
}

/// Number at the beginning of a case.
#[must_use]
pub fn number(case: &str) -> Option<f64> {
    case.split([' ', '/']).next()?.parse().ok()
}

/// Distribution of samples, in their unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    pub count: usize,
    pub mean: f64,
    /// Standard deviation of the sample; 0 for a single one.
    pub deviation: f64,
    pub min: f64,
    pub p25: f64,
    pub p50: f64,
    pub p75: f64,
    pub p99: f64,
    pub max: f64,
}

impl Summary {
    /// `None` without samples.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 samples")]
    pub fn of(samples: &[f64]) -> Option<Self> {
        let sorted = sorted(samples);
        let count = sorted.len();
        let mean = sorted.iter().sum::<f64>() / count as f64;
        let squares: f64 = sorted.iter().map(|sample| (sample - mean).powi(2)).sum();
        let free = count.saturating_sub(1).max(1) as f64;
        Some(Self {
            count,
            mean,
            deviation: (squares / free).sqrt(),
            min: *sorted.first()?,
            p25: quantile(&sorted, 0.25)?,
            p50: quantile(&sorted, 0.5)?,
            p75: quantile(&sorted, 0.75)?,
            p99: quantile(&sorted, 0.99)?,
            max: *sorted.last()?,
        })
    }

    /// Standard deviation by mean.
    #[must_use]
    pub fn variation(&self) -> f64 {
        self.deviation / self.mean
    }
}

/// The case of the thesis' comparisons.
pub const MEANS: &str = "means of all";

/// Series with one more for each side: the mean of each case, whose mean the thesis compares.
#[must_use]
pub fn with_means(series: &[Series]) -> Vec<Series> {
    let mut all = series.to_vec();
    for one in series {
        let Some(Summary { mean, .. }) = one.summary() else { continue };
        match all.iter_mut().find(|series| series.side == one.side && series.case == MEANS) {
            Some(means) => means.samples.push(mean),
            None => all.push(Series::new(&one.side, MEANS, one.unit.clone(), vec![mean])),
        }
    }
    all
}

/// p of the two-sided Mann-Whitney U test: the probability of ranks that differ this much if both came from one
/// population. `None` for fewer than two samples on a side.
#[must_use]
pub fn mann_whitney(one: &[f64], other: &[f64]) -> Option<f64> {
    if one.len() < 2 || other.len() < 2 {
        return None;
    }
    let method = MannWhitneyUMethod::AsymptoticInclContinuityCorrection;
    mannwhitneyu(one, other, method, Alternative::TwoSided).ok().map(|(_, p)| p)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_that_of_the_samples_in_any_order() {
        let summary = Summary::of(&[4.0, 2.0, 8.0, 6.0]).unwrap();
        assert_eq!((summary.count, summary.mean, summary.min, summary.max), (4, 5.0, 2.0, 8.0));
        assert_eq!((summary.p25, summary.p50, summary.p75), (2.0, 4.0, 6.0));
        // Squares 9 + 1 + 1 + 9, by 3.
        assert!((summary.deviation - (20.0_f64 / 3.0).sqrt()).abs() < 1e-12);
        assert!((summary.variation() - summary.deviation / 5.0).abs() < 1e-12);
        assert_eq!(Summary::of(&[3.0]).unwrap().deviation, 0.0);
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn a_case_has_the_number_that_it_begins_with() {
        assert_eq!(
            ["2 MB", "10", "10/90", "aes"].map(number),
            [Some(2.0), Some(10.0), Some(10.0), None]
        );
    }

    /// The example of `scipy.stats.mannwhitneyu`, with its p of `method="asymptotic"`.
    #[test]
    fn equal_populations_are_told_from_others() {
        let one = [19.0, 22.0, 16.0, 29.0, 24.0];
        let other = [20.0, 11.0, 17.0, 12.0];
        let p = mann_whitney(&one, &other).unwrap();
        assert!((p - 0.111_346_886_533_140_41).abs() < 1e-9, "{p}");
        let far: Vec<f64> = one.iter().map(|sample| sample + 100.0).collect();
        assert!(mann_whitney(&one, &far).unwrap() < 0.05);
        assert_eq!(mann_whitney(&one, &[1.0]), None);
    }

    #[test]
    fn a_side_has_the_means_of_its_cases() {
        let series = [
            Series::new("one", 1, "ms", vec![1.0, 3.0]),
            Series::new("one", 2, "ms", vec![4.0]),
            Series::new("two", 1, "ms", vec![9.0]),
        ];
        let all = with_means(&series);
        let means: Vec<_> = all.iter().filter(|series| series.case == MEANS).collect();
        assert_eq!((means.len(), &means[0].samples[..]), (2, &[2.0, 4.0][..]));
        assert_eq!(all.len(), 5);
    }
}

//! A table or figure of a paper with what we measured for it.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::series::Series;

/// One of the four papers that CWASI follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Paper {
    Cwasi,
    Wow,
    Thesis,
    Operator,
}

impl Paper {
    pub const ALL: [Self; 4] = [Self::Cwasi, Self::Wow, Self::Thesis, Self::Operator];

    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Cwasi => {
                "CWASI: A WebAssembly Runtime Shim for Inter-function Communication in the Serverless Edge-Cloud \
                 Continuum (SEC ’23)"
            }
            Self::Wow => {
                "Pushing Serverless to the Edge with WebAssembly Runtimes: WOW (CCGrid ’22)"
            }
            Self::Thesis => "WebAssembly for Edge-Cloud Computing (Final Master’s Project, 2023)",
            Self::Operator => {
                "WebAssembly Orchestration in the Context of Serverless Computing (2023)"
            }
        }
    }
}

/// How an exhibit is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// The medians of each side over the cases' numbers.
    Lines,
    /// Boxes of quartiles, side by side for each case.
    Boxes,
    /// Part of the samples that are not larger, a curve for each side.
    Ecdf,
    /// Numbers only.
    Table,
}

/// A number of the paper.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Published {
    /// The paper's name of what it measured.
    pub side: Cow<'static, str>,
    pub case: Cow<'static, str>,
    /// In the exhibit's unit.
    pub value: f64,
}

/// A table or figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exhibit {
    /// That of [`crate::contents::CONTENTS`].
    pub id: Cow<'static, str>,
    pub form: Form,
    /// How it was measured.
    pub conditions: String,
    pub published: Vec<Published>,
    pub series: Vec<Series>,
    /// The side that the Mann-Whitney U test compares with the others, where the paper has the test.
    pub tested: Option<Cow<'static, str>>,
    /// Sides whose numbers are lower bounds: the run ended before the side did.
    pub bounded: Vec<String>,
}

impl Exhibit {
    #[must_use]
    pub fn new(
        id: &'static str,
        form: Form,
        conditions: impl Into<String>,
        series: Vec<Series>,
    ) -> Self {
        let conditions = conditions.into();
        Self {
            id: id.into(),
            form,
            conditions,
            published: Vec::new(),
            series,
            tested: None,
            bounded: Vec::new(),
        }
    }

    #[must_use]
    pub fn published(mut self, numbers: &[(&'static str, &'static str, f64)]) -> Self {
        let numbers = numbers.iter();
        self.published.extend(numbers.map(|&(side, case, value)| {
            let (side, case) = (side.into(), case.into());
            Published { side, case, value }
        }));
        self
    }

    /// Compares this side with the others by the Mann-Whitney U test.
    #[must_use]
    pub fn tested(mut self, side: &'static str) -> Self {
        self.tested = Some(side.into());
        self
    }

    /// Says whose numbers are lower bounds.
    #[must_use]
    pub fn bounded(mut self, sides: &[String]) -> Self {
        self.bounded = sides.to_vec();
        self
    }

    /// True when the number of this side is a lower bound.
    #[must_use]
    pub fn is_bound(&self, side: &str) -> bool {
        self.bounded.iter().any(|bounded| bounded == side)
    }

    /// Names in the order of their first series.
    #[must_use]
    pub fn sides(&self) -> Vec<&str> {
        distinct(self.series.iter().map(|series| series.side.as_str()))
    }

    /// As [`Self::sides`].
    #[must_use]
    pub fn cases(&self) -> Vec<&str> {
        distinct(self.series.iter().map(|series| series.case.as_str()))
    }

    #[must_use]
    pub fn of(&self, side: &str, case: &str) -> Option<&Series> {
        self.series.iter().find(|series| series.side == side && series.case == case)
    }

    #[must_use]
    pub fn unit(&self) -> &str {
        self.series.first().map_or("", |series| &series.unit)
    }

    /// What is wrong with it: series without samples, in several units, or none at all.
    #[must_use]
    pub fn flaw(&self) -> Option<String> {
        if self.series.is_empty() {
            return Some("nothing was measured".to_owned());
        }
        let wrong = |series: &&Series| {
            series.unit != self.unit()
                || series.samples.is_empty()
                || series.samples.iter().any(|sample| !sample.is_finite())
        };
        let wrong = self.series.iter().find(wrong)?;
        Some(format!(
            "{}, {}: {} samples in {}",
            wrong.side,
            wrong.case,
            wrong.samples.len(),
            wrong.unit
        ))
    }
}

fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut found = Vec::new();
    for name in names {
        if !found.contains(&name) {
            found.push(name);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_and_cases_keep_their_order_and_flaws_show() {
        let series = |side, case, samples| Series::new(side, case, "ms", samples);
        let all = vec![
            series("b", "2", vec![1.0]),
            series("a", "1", vec![2.0]),
            series("b", "1", vec![3.0]),
        ];
        let exhibit = Exhibit::new("id", Form::Table, "", all.clone());
        assert_eq!((exhibit.sides(), exhibit.cases()), (vec!["b", "a"], vec!["2", "1"]));
        assert_eq!(exhibit.of("b", "1").unwrap().samples, [3.0]);
        assert_eq!(exhibit.flaw(), None);
        let with =
            |more: Series| Exhibit::new("id", Form::Table, "", [all.clone(), vec![more]].concat());
        for wrong in [
            series("c", "1", vec![]),
            series("c", "1", vec![f64::NAN]),
            Series::new("c", "1", "s", vec![1.0]),
        ] {
            assert!(with(wrong.clone()).flaw().is_some(), "{wrong:?}");
        }
        assert!(Exhibit::new("id", Form::Table, "", vec![]).flaw().is_some());
    }
}

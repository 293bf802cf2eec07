//! The curves of a run, as JSON, CSV and a table in the terminal.

use std::fmt::Write as _;

use anyhow::Error;
use serde_json::{Value, json};

use super::curve::{Cost, Curve, Point, SUPERLINEAR};
use crate::machine::Machine;
use crate::plan::{Effort, MIB, size_name};
use crate::report::terminal::with_unit;

/// A group without curves, and why.
#[derive(Clone, Debug)]
pub struct Failure {
    pub group: &'static str,
    pub reason: String,
}

#[derive(Clone, Debug)]
pub struct Report {
    /// What the curves were taken on.
    pub machine: Machine,
    pub effort: Effort,
    pub curves: Vec<Curve>,
    pub failures: Vec<Failure>,
}

impl Report {
    /// Of a run that starts now.
    #[must_use]
    pub fn new(effort: Effort) -> Self {
        Self { machine: Machine::read(), effort, curves: Vec::new(), failures: Vec::new() }
    }

    pub fn add(&mut self, curve: Curve) {
        eprintln!("{}", line(&curve));
        self.curves.push(curve);
    }

    pub fn fail(&mut self, group: &'static str, error: &Error) {
        eprintln!("{group} FAILED: {error:#}");
        self.failures.push(Failure { group, reason: format!("{error:#}") });
    }

    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.curves.is_empty() && self.failures.is_empty()
    }

    /// Names of the curves that grow faster than what they are over.
    #[must_use]
    pub fn superlinear(&self) -> Vec<&'static str> {
        let superlinear = self.curves.iter().filter(|curve| curve.is_superlinear());
        superlinear.map(|curve| curve.name).collect()
    }

    #[must_use]
    pub fn json(&self) -> Value {
        let curves = self.curves.iter().map(|curve| {
            json!({
                "name": curve.name,
                "over": curve.over,
                "unit": curve.unit,
                "cost": curve.cost,
                "exponent": curve.exponent(),
                "exponent_last_half": curve.exponent_of_last_half(),
                "superlinear": curve.is_superlinear(),
                "conditions": curve.conditions,
                "points": curve.points,
            })
        });
        let failures =
            self.failures.iter().map(|it| json!({"group": it.group, "reason": it.reason}));
        json!({
            "effort": format!("{:?}", self.effort).to_lowercase(),
            "machine": self.machine,
            "curves": curves.collect::<Vec<_>>(),
            "failures": failures.collect::<Vec<_>>(),
        })
    }

    #[must_use]
    pub fn csv(&self) -> String {
        let mut text = "curve,over,at,unit,min,p50,p99,repeats\n".to_owned();
        for curve in &self.curves {
            for Point { at, cost } in &curve.points {
                let Curve { name, over, unit, .. } = curve;
                // Writing to a string never fails.
                let _written = writeln!(
                    text,
                    "{name},{over},{at},{unit},{},{},{},{}",
                    cost.min, cost.p50, cost.p99, cost.repeats
                );
            }
        }
        text
    }

    /// The table.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text =
            "how cost grows (p50/p99; exponent of all points, of the last half)\n".to_owned();
        for curve in &self.curves {
            text.push_str(&line(curve));
            text.push('\n');
        }
        for failure in &self.failures {
            text.push_str(&format!("FAILED {}: {}\n", failure.group, failure.reason));
        }
        let names = self.superlinear();
        let which = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        text.push_str(&format!("superlinear (above {SUPERLINEAR} for all): {which}\n"));
        text.push_str(&self.machine.sentence());
        text
    }
}

/// One curve as a line of text.
fn line(curve: &Curve) -> String {
    let points =
        curve.points.iter().map(|it| format!("{}: {}", amount(curve, it.at), figure(curve, it)));
    format!(
        "{:<22} {} | {} {}",
        curve.name,
        points.collect::<Vec<_>>().join("  "),
        exponents(curve),
        if curve.is_superlinear() { "SUPERLINEAR" } else { "" }
    )
}

/// An amount in the words of its curve.
pub fn amount(curve: &Curve, at: usize) -> String {
    match at {
        _ if !curve.over.starts_with("bytes") => at.to_string(),
        _ if at >= 1024 * MIB => format!("{}GiB", at / (1024 * MIB)),
        _ => size_name(at),
    }
}

/// p50 and p99, or the one figure.
pub fn figure(curve: &Curve, point: &Point) -> String {
    let p50 = with_unit(Some(point.cost.p50), curve.unit);
    if point.cost.repeats == 1 {
        return p50;
    }
    format!("{p50}/{}", with_unit(Some(point.cost.p99), curve.unit))
}

/// Both exponents; those of the cost of one say so.
pub fn exponents(curve: &Curve) -> String {
    let text =
        |exponent: Option<f64>| exponent.map_or_else(|| "–".to_owned(), |it| format!("{it:.2}"));
    let of_one = if curve.cost == Cost::One { " (of one)" } else { "" };
    format!("{}, {}{of_one}", text(curve.exponent()), text(curve.exponent_of_last_half()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut report = Report::new(Effort::Quick);
        let mut start = Curve::new("start", ["functions", "us"], Cost::One, "one after the other");
        start.add(1, &[55_000.0, 56_000.0]);
        start.add(1000, &[162_000.0]);
        report.add(start);
        let mut payload = Curve::new("payload", ["bytes of the payload", "us"], Cost::All, "");
        payload.add(0, &[9.0]);
        payload.add(1024 * MIB, &[12.0]);
        report.add(payload);
        report.fail("nodes", &Error::msg("no Redis").context("start"));
        report
    }

    #[test]
    fn the_table_has_every_point_and_names_what_grows_too_fast() {
        let table = report().table();
        for text in [
            "1: 55.0 ms/56.0 ms  1000: 162 ms | 0.16, – (of one) SUPERLINEAR",
            "0B: 9.00 µs  1GiB: 12.0 µs | –, – ",
            "FAILED nodes: start: no Redis",
            "superlinear (above 1.15 for all): start\n",
        ] {
            assert!(table.contains(text), "{text} in {table}");
        }
    }

    #[test]
    fn json_has_points_and_exponents() {
        let json = report().json();
        assert_eq!(json["effort"], "quick");
        let start = &json["curves"][0];
        assert_eq!((&start["cost"], &start["superlinear"]), (&json!("one"), &json!(true)));
        assert!(start["exponent"].as_f64().is_some_and(|it| it > 0.15), "{start}");
        assert_eq!(start["points"][0]["at"], 1);
        assert_eq!(start["points"][0]["p99"], 56_000.0);
        assert_eq!(json["failures"][0]["group"], "nodes");
    }

    #[test]
    fn csv_has_a_row_for_each_point() {
        let csv = report().csv();
        assert!(csv.starts_with("curve,over,at,unit,min,p50,p99,repeats\n"), "{csv}");
        assert!(csv.contains("\nstart,functions,1000,us,162000,162000,162000,1\n"), "{csv}");
        assert_eq!(csv.lines().count(), 5);
    }
}

//! The report as lines of text.

use super::{BARS, Entry, Report, Verdict};

/// A number in its unit, short.
#[must_use]
pub fn with_unit(value: Option<f64>, unit: &str) -> String {
    match value {
        None => "–".to_owned(),
        Some(micros) if unit == "us" && micros >= 10_000.0 => {
            format!("{} ms", digits(micros / 1e3))
        }
        Some(micros) if unit == "us" => format!("{} µs", digits(micros)),
        Some(value) => format!("{} {unit}", digits(value)),
    }
}

/// Three digits that count.
#[must_use]
pub fn digits(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        0.1.. => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// Says what an entry found.
pub fn print(entry: &Entry) {
    eprintln!("{}", line(entry));
}

fn line(entry: &Entry) -> String {
    if let Some(reason) = &entry.failed {
        return format!("{:<50} FAILED: {reason}", entry.case);
    }
    let ours = with_unit(entry.ours_p50, entry.unit);
    if entry.baseline == "none" {
        return format!("{:<50} {ours:>12} {}", entry.case, verdict(entry));
    }
    let theirs = with_unit(entry.baseline_p50, entry.unit);
    let ratio = entry.ratio.map_or_else(|| "–".to_owned(), digits);
    let spread = match (entry.ratio_low, entry.ratio_high) {
        (Some(low), Some(high)) => format!("({}–{})", digits(low), digits(high)),
        _ => String::new(),
    };
    format!(
        "{:<50} {ours:>12} {:>14} {theirs:>12} {ratio:>8}× {spread:<15} {}",
        entry.case,
        entry.baseline,
        verdict(entry)
    )
}

fn verdict(entry: &Entry) -> String {
    match (&entry.bar, entry.met) {
        (Some(bar), Some(true)) => format!("{bar}: met"),
        (Some(bar), _) => format!("{bar}: NOT MET"),
        (None, _) => String::new(),
    }
}

/// The bars, and what failed.
pub fn print_summary(report: &Report) {
    eprintln!("\nbars (medians of this run):");
    for bar in BARS {
        let mut of_bar = report.entries.iter().filter(|one| one.case == bar.case);
        match of_bar.find(|one| one.baseline == bar.baseline) {
            Some(entry) => eprintln!("  {}", line(entry)),
            None => eprintln!("  {:<48} {:>29} not measured", bar.case, bar.baseline),
        }
    }
    let met = BARS.iter().filter(|bar| {
        report.entries.iter().any(|one| {
            one.case == bar.case && one.baseline == bar.baseline && bar.judge(one) == Verdict::Met
        })
    });
    eprintln!("{} of {} bars met", met.count(), BARS.len());
    for entry in report.failures() {
        eprintln!("FAILED {}: {}", entry.case, entry.failed.as_deref().unwrap_or_default());
    }
    eprintln!("{}", report.machine.sentence());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_in_their_unit() {
        assert_eq!(with_unit(Some(3.456), "us"), "3.46 µs");
        assert_eq!(with_unit(Some(25_123.0), "us"), "25.1 ms");
        assert_eq!(with_unit(Some(1.25), "MiB"), "1.25 MiB");
        assert_eq!(with_unit(None, "us"), "–");
        assert_eq!(digits(0.001_23), "0.0012");
    }
}

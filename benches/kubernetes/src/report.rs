//! What a run leaves: a table on stdout, `starts.csv`, `starts.json`, and a box plot for each time, as the paper's.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use cwasi_bench::stats::{quantile, sorted};
use plotters::prelude::*;

use crate::pod::{Side, Start, Times};

const SIZE: (u32, u32) = (900, 420);
/// Half of the way between the boxes of both sides, of one function's room.
const SHIFT: f64 = 0.17;

/// A time that is plotted.
type Time = (&'static str, &'static str, fn(&Times) -> f64);

const TIMES: [Time; 3] = [
    ("started", "from scheduled to the start of the task", |times| times.started_ms),
    ("running", "from scheduled to running", |times| times.running_ms),
    ("answer", "from scheduled to the first answer", |times| times.answer_ms),
];

/// Sorted samples of a side's function.
type Samples = BTreeMap<(String, Side), Vec<f64>>;

/// Writes the report.
///
/// # Errors
/// When the folder cannot be written to.
pub fn write(starts: &[Start], folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    fs::write(folder.join("starts.csv"), csv(starts)?)?;
    fs::write(folder.join("starts.json"), serde_json::to_vec_pretty(starts)?)?;
    for (name, title, time) in TIMES {
        let samples = samples(starts, time);
        println!("{title}, ms");
        print!("{}", table(&samples)?);
        fs::write(folder.join(format!("{name}.svg")), plot(title, &samples)?)?;
    }
    println!("samples and plots: {}", folder.display());
    Ok(())
}

fn csv(starts: &[Start]) -> Result<String> {
    let mut text = "function,side,started_ms,running_ms,answer_ms\n".to_owned();
    for Start { function, side, times } in starts {
        let Times { started_ms, running_ms, answer_ms } = times;
        writeln!(text, "{function},{side},{started_ms:.3},{running_ms:.3},{answer_ms:.3}")?;
    }
    Ok(text)
}

fn samples(starts: &[Start], time: fn(&Times) -> f64) -> Samples {
    let mut samples = Samples::new();
    for Start { function, side, times } in starts {
        samples.entry((function.clone(), *side)).or_default().push(time(times));
    }
    samples.values_mut().for_each(|values| *values = sorted(values));
    samples
}

fn table(samples: &Samples) -> Result<String> {
    let mut text = format!(
        "{:<18} {:<7} {:>5} {:>8} {:>8} {:>8} {:>8} {:>8}  native/ours\n",
        "function", "side", "pods", "min", "p25", "p50", "p75", "p99"
    );
    for ((function, side), values) in samples {
        write!(text, "{function:<18} {side:<7} {:>5}", values.len())?;
        for at in [0.0, 0.25, 0.5, 0.75, 0.99] {
            write!(text, " {:>8.1}", quantile(values, at).unwrap_or(f64::NAN))?;
        }
        let native = samples.get(&(function.clone(), Side::Native));
        let native = native.filter(|_| *side == Side::Ours).and_then(|it| quantile(it, 0.5));
        match (native, quantile(values, 0.5)) {
            (Some(native), Some(ours)) => writeln!(text, "  {:.2}", native / ours)?,
            _ => text.push('\n'),
        }
    }
    Ok(text)
}

/// Boxes of quartiles, whiskers of 1.5 times their distance at most.
fn plot(title: &str, samples: &Samples) -> Result<String> {
    let mut svg = String::new();
    let drawn = draw(title, samples, &SVGBackend::with_string(&mut svg, SIZE).into_drawing_area());
    drawn.map_err(|error| anyhow!("draw {title}: {error}"))?;
    Ok(svg)
}

fn draw<B: DrawingBackend>(
    title: &str,
    samples: &Samples,
    root: &DrawingArea<B, plotters::coord::Shift>,
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    let mut functions: Vec<&str> = samples.keys().map(|(name, _)| name.as_str()).collect();
    functions.dedup();
    let highest = samples.values().filter_map(|it| it.last()).copied().fold(0.0, f64::max);
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(root)
        .caption(format!("{title}, ms: ours (blue), native (grey)"), ("sans-serif", 16))
        .margin(12)
        .x_label_area_size(30)
        .y_label_area_size(60)
        .build_cartesian_2d(-0.5..functions.len() as f64 - 0.5, 0.0..(highest * 1.05) as f32)?;
    let label = |at: &f64| {
        let place = at.round();
        let name = functions.get(place as usize).filter(|_| (at - place).abs() < 1e-6);
        name.map(|name| (*name).to_owned()).unwrap_or_default()
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .x_labels(functions.len() * 2 + 1)
        .x_label_formatter(&label)
        .draw()?;
    for (index, function) in functions.iter().enumerate() {
        for (side, colour, shift) in [
            (Side::Ours, RGBColor(0, 90, 160), -SHIFT),
            (Side::Native, RGBColor(90, 90, 90), SHIFT),
        ] {
            let Some(values) = samples.get(&((*function).to_owned(), side)) else { continue };
            let quartiles = Quartiles::new(values);
            let place = index as f64 + shift;
            let plot = Boxplot::new_vertical(place, &quartiles).width(24).style(colour);
            chart.draw_series([plot])?;
        }
    }
    root.present()
}

#[cfg(test)]
mod tests {
    use super::{Side, Start, TIMES, Times, plot, samples, table};

    #[test]
    fn a_report_compares_both_sides() {
        let start = |side, answer_ms| Start {
            function: "aes".to_owned(),
            side,
            times: Times { started_ms: 0.5, running_ms: 1.0, answer_ms },
        };
        let ours = [300.0, 100.0, 200.0].map(|answer_ms| start(Side::Ours, answer_ms));
        let starts = [ours.as_slice(), &[start(Side::Native, 400.0)]].concat();
        let samples = samples(&starts, TIMES[2].2);
        let text = table(&samples).unwrap();
        assert!(
            text.contains("200.0") && text.lines().nth(1).unwrap().ends_with("  2.00"),
            "{text}"
        );
        assert!(plot("t", &samples).unwrap().contains("aes"));
    }
}

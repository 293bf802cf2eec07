//! Plots as the papers draw them: lines over a number, boxes of quartiles, curves of shares.

use anyhow::{Result, anyhow};
use cwasi_bench::stats::sorted;
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::exhibit::{Exhibit, Form};
use crate::series::number;

/// Width of a plot, and of the names of the sides beside it.
const WIDTHS: (u32, u32) = (820, 320);
/// Least height of a picture; each side's name needs some.
const HEIGHT: u32 = 440;
const NAME_HEIGHT: i32 = 17;
/// Most points of a curve of shares.
const POINTS_MAX: usize = 400;
/// Colours of the first sides, in their order; further ones have lighter, then darker ones.
const COLOURS: [RGBColor; 10] = [
    RGBColor(0, 90, 160),
    RGBColor(200, 80, 0),
    RGBColor(90, 90, 90),
    RGBColor(0, 130, 90),
    RGBColor(160, 20, 60),
    RGBColor(120, 70, 170),
    RGBColor(150, 120, 0),
    RGBColor(0, 150, 180),
    RGBColor(100, 60, 40),
    RGBColor(220, 110, 170),
];

type Area<'a, B> = DrawingArea<B, Shift>;
type Drawn<B> = Result<(), DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

/// Colour and points of a side.
type Curve = (RGBColor, Vec<(f64, f64)>);

/// As SVG.
pub fn draw(exhibit: &Exhibit) -> Result<String> {
    let mut svg = String::new();
    let sides = exhibit.sides();
    let names = NAME_HEIGHT * i32::try_from(sides.len() + 2)?;
    let size = (WIDTHS.0 + WIDTHS.1, HEIGHT.max(u32::try_from(names)?));
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        let (root, beside) = root.split_horizontally(WIDTHS.0);
        legend(&sides, &beside).map_err(|error| anyhow!("draw {}: {error}", exhibit.id))?;
        let drawn = match exhibit.form {
            Form::Boxes => boxes(exhibit, &root),
            Form::Ecdf => curves(
                &shares(exhibit),
                &root,
                exhibit.unit(),
                "part of the samples",
                (true, false),
            ),
            Form::Lines | Form::Table => {
                curves(&medians(exhibit), &root, "", exhibit.unit(), (false, true))
            }
        };
        drawn.map_err(|error| anyhow!("draw {}: {error}", exhibit.id))?;
    }
    Ok(svg)
}

fn colour(index: usize) -> RGBColor {
    let RGBColor(red, green, blue) = COLOURS[index % COLOURS.len()];
    let shade = |part: u8| match index / COLOURS.len() {
        0 => part,
        1 => part / 2 + 100,
        _ => part / 2,
    };
    RGBColor(shade(red), shade(green), shade(blue))
}

/// The names of the sides with their colours.
fn legend<B: DrawingBackend>(sides: &[&str], area: &Area<'_, B>) -> Drawn<B>
where
    B::ErrorType: 'static,
{
    area.fill(&WHITE)?;
    let mut top = NAME_HEIGHT;
    for (index, side) in sides.iter().enumerate() {
        let mark = [(4, top), (18, top + 8)];
        area.draw(&Rectangle::new(mark, colour(index).filled()))?;
        area.draw(&Text::new((*side).to_owned(), (24, top - 2), ("sans-serif", 12)))?;
        top += NAME_HEIGHT;
    }
    Ok(())
}

/// Each side's medians over the numbers of the cases.
fn medians(exhibit: &Exhibit) -> Vec<Curve> {
    let sides = exhibit.sides().into_iter().enumerate();
    let of = |(index, side): (usize, &str)| {
        let own = exhibit.series.iter().filter(|series| series.side == side);
        let point =
            |series: &crate::series::Series| Some((number(&series.case)?, series.summary()?.p50));
        let mut points: Vec<_> = own.filter_map(point).collect();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        (colour(index), points)
    };
    sides.map(of).collect()
}

/// Each side's share of samples up to a value, in steps.
#[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 samples")]
fn shares(exhibit: &Exhibit) -> Vec<Curve> {
    let sides = exhibit.sides().into_iter().enumerate();
    let of = |(index, side): (usize, &str)| {
        let own = exhibit.series.iter().filter(|series| series.side == side);
        let samples = sorted(&own.flat_map(|series| series.samples.clone()).collect::<Vec<_>>());
        let step = samples.len().div_ceil(POINTS_MAX).max(1);
        let last = samples.len().saturating_sub(1);
        let kept = samples.iter().enumerate().filter(|(at, _)| at % step == 0 || *at == last);
        let (mut points, mut below) = (Vec::new(), 0.0);
        for (at, sample) in kept {
            let share = (at + 1) as f64 / samples.len() as f64;
            // A step: up at the sample, and not before.
            points.extend([(*sample, below), (*sample, share)]);
            below = share;
        }
        (colour(index), points)
    };
    sides.map(of).collect()
}

/// The range of values, with room; above zero for a logarithmic axis.
fn range(values: impl Iterator<Item = f64> + Clone, logarithmic: bool) -> std::ops::Range<f64> {
    let highest = values.clone().fold(0.0, f64::max);
    let highest = if highest > 0.0 { highest } else { 1.0 };
    if !logarithmic {
        return 0.0..highest * 1.05;
    }
    let lowest = values.filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
    let lowest = if lowest < highest { lowest } else { highest / 10.0 };
    lowest / 1.3..highest * 1.3
}

/// Curves; `logarithmic` says whether each axis is.
fn curves<B: DrawingBackend>(
    curves: &[Curve],
    root: &Area<'_, B>,
    x: &str,
    y: &str,
    logarithmic: (bool, bool),
) -> Drawn<B>
where
    B::ErrorType: 'static,
{
    let points = curves.iter().flat_map(|(_, points)| points);
    let across = range(points.clone().map(|point| point.0), logarithmic.0);
    let up = range(points.map(|point| point.1), logarithmic.1);
    // A step has no points.
    let points_of = if logarithmic.0 { 0 } else { 2 };
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(root);
    chart.margin(12).x_label_area_size(36).y_label_area_size(70);
    // An axis is logarithmic by its type.
    macro_rules! plot {
        ($across:expr, $up:expr) => {{
            let mut chart = chart.build_cartesian_2d($across, $up)?;
            chart.configure_mesh().light_line_style(TRANSPARENT).x_desc(x).y_desc(y).draw()?;
            for (colour, points) in curves {
                chart.draw_series(
                    LineSeries::new(points.iter().copied(), colour.stroke_width(2))
                        .point_size(points_of),
                )?;
            }
        }};
    }
    match logarithmic {
        (true, false) => plot!(across.log_scale(), up),
        _ => plot!(across, up.log_scale()),
    }
    root.present()
}

/// Boxes of quartiles, whiskers of 1.5 times their distance at most.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "places of boxes in a picture"
)]
fn boxes<B: DrawingBackend>(exhibit: &Exhibit, root: &Area<'_, B>) -> Drawn<B>
where
    B::ErrorType: 'static,
{
    let (cases, sides) = (exhibit.cases(), exhibit.sides());
    let samples = exhibit.series.iter().flat_map(|series| series.samples.iter().copied());
    let up = range(samples, true);
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(root)
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(70)
        .build_cartesian_2d(
        -0.5..cases.len() as f64 - 0.5,
        (up.start as f32..up.end as f32).log_scale(),
    )?;
    let label = |at: &f64| {
        let place = at.round();
        let name = cases.get(place as usize).filter(|_| (at - place).abs() < 1e-6 && place >= 0.0);
        name.map(|name| (*name).to_owned()).unwrap_or_default()
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .x_labels(cases.len() * 2 + 1)
        .x_label_formatter(&label)
        .y_desc(exhibit.unit())
        .draw()?;
    let room = 0.8 / sides.len() as f64;
    let width =
        (f64::from(WIDTHS.0 - 100) / cases.len() as f64 * room * 0.7).clamp(3.0, 26.0) as u32;
    for (index, side) in sides.iter().enumerate() {
        let shift = room * (index as f64 - (sides.len() - 1) as f64 / 2.0);
        let mut plots = Vec::new();
        for (at, case) in cases.iter().enumerate() {
            let Some(series) = exhibit.of(side, case) else { continue };
            let quartiles = Quartiles::new(&series.samples);
            let plot = Boxplot::new_vertical(at as f64 + shift, &quartiles);
            plots.push(plot.width(width).style(colour(index)));
        }
        chart.draw_series(plots)?;
    }
    root.present()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::series::Series;

    #[test]
    fn every_form_draws_every_side() {
        let series = |side, case, samples: &[f64]| Series::new(side, case, "ms", samples.to_vec());
        let all = vec![
            series("one", "1", &[1.0, 3.0, 2.0]),
            series("two", "1", &[0.0, 400.0]),
            series("two", "10", &[5.0]),
        ];
        for form in [Form::Lines, Form::Boxes, Form::Ecdf] {
            let svg = draw(&Exhibit::new("id", form, "", all.clone())).unwrap();
            assert!(svg.contains("one") && svg.contains("two"), "{form:?}");
        }
        let colours: std::collections::BTreeSet<_> =
            (0..30).map(colour).map(|it| (it.0, it.1, it.2)).collect();
        assert_eq!(colours.len(), 30, "sides share a colour");
        let exhibit = Exhibit::new("id", Form::Lines, "", all);
        assert_eq!(medians(&exhibit)[1].1, [(1.0, 0.0), (10.0, 5.0)]);
        assert_eq!(shares(&exhibit)[0].1.last(), Some(&(3.0, 1.0)));
    }

    #[test]
    fn a_logarithmic_axis_has_no_zero() {
        assert_eq!(range([0.0, 10.0].into_iter(), false), 0.0..10.5);
        let range = range([0.0, 10.0].into_iter(), true);
        assert!(range.start > 0.0 && range.end > 10.0, "{range:?}");
    }
}

//! Line charts on logarithmic axes, as inline SVG. The page has the legends, so that they do not overlap a chart.

use anyhow::{Result, anyhow};
use plotters::coord::combinators::BindKeyPoints as _;
use plotters::prelude::*;

/// Width and height in pixels at which a phone shows a chart; wider screens scale it.
const SIZE: (u32, u32) = (400, 300);
const FONT: u32 = 13;
/// Pixels of a line.
const STROKE: u32 = 2;

/// One line of a chart.
pub struct Line {
    /// Name in the legend.
    pub name: &'static str,
    /// Points; a line without any is left out.
    pub points: Vec<(f64, f64)>,
}

/// A chart of times in µs over something.
pub struct Chart {
    pub title: &'static str,
    /// Places on the horizontal axis with their labels.
    pub places: Vec<(f64, String)>,
    /// Lines, ours first.
    pub lines: Vec<Line>,
}

/// The colour of a system, the same in every chart.
#[must_use]
pub const fn colour(name: &str) -> RGBColor {
    match name.as_bytes() {
        b"ours" => RGBColor(0, 90, 160),
        b"uds-copy" => RGBColor(200, 80, 0),
        b"http-loopback" => RGBColor(0, 120, 70),
        b"redis" => RGBColor(160, 30, 60),
        _ => RGBColor(90, 90, 90),
    }
}

impl Chart {
    /// True when there is something to draw.
    #[must_use]
    pub fn has_points(&self) -> bool {
        self.lines.iter().any(|line| !line.points.is_empty())
    }

    /// As an SVG element.
    ///
    /// # Errors
    /// When it cannot be drawn.
    pub fn svg(&self) -> Result<String> {
        let mut svg = String::new();
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        self.draw(&root).map_err(|error| anyhow!("draw {}: {error}", self.title))?;
        drop(root);
        Ok(svg)
    }

    fn draw<B: DrawingBackend>(
        &self,
        root: &DrawingArea<B, plotters::coord::Shift>,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let places: Vec<f64> = self.places.iter().map(|(at, _)| *at).collect();
        let (left, right) = bounds(&places);
        let heights: Vec<f64> =
            self.lines.iter().flat_map(|line| line.points.iter().map(|point| point.1)).collect();
        let (bottom, top) = bounds(&heights);
        let across: LogCoord<f64> = (left..right).log_scale().into();
        let up: LogCoord<f64> = (bottom..top).log_scale().into();
        let mut chart = ChartBuilder::on(root)
            .margin(12)
            .x_label_area_size(26)
            .y_label_area_size(58)
            .build_cartesian_2d(
                across.with_key_points(places),
                up.with_key_points(decades(bottom, top)),
            )?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.15))
            .label_style(("sans-serif", FONT))
            .x_label_formatter(&|at| self.label(*at))
            .y_label_formatter(&|micros| time(*micros))
            .draw()?;
        for line in &self.lines {
            let style = colour(line.name).stroke_width(STROKE);
            chart.draw_series(LineSeries::new(line.points.iter().copied(), style))?;
            let dots = line.points.iter().map(|at| Circle::new(*at, 3, colour(line.name).filled()));
            chart.draw_series(dots)?;
        }
        root.present()
    }

    fn label(&self, at: f64) -> String {
        let near = |place: f64| (place / at - 1.0).abs() < 1e-6;
        let place = self.places.iter().find(|(place, _)| near(*place));
        place.map(|(_, label)| label.clone()).unwrap_or_default()
    }
}

/// Around all values, with room at the ends.
fn bounds(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    if least.is_finite() && least > 0.0 { (least * 0.7, most * 1.5) } else { (1.0, 10.0) }
}

/// Powers of ten between two values.
fn decades(from: f64, to: f64) -> Vec<f64> {
    (-3..=9).map(|power| 10f64.powi(power)).filter(|value| (from..=to).contains(value)).collect()
}

/// 1 µs, 10 ms, 1 s.
fn time(micros: f64) -> String {
    match micros {
        1e6.. => format!("{} s", micros / 1e6),
        1e3.. => format!("{} ms", micros / 1e3),
        _ => format!("{micros} µs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_shows_its_places_and_scales_with_its_box() {
        let chart = Chart {
            title: "t",
            places: vec![(64.0, "64 B".into()), (1e8, "100 MB".into())],
            lines: vec![Line { name: "ours", points: vec![(64.0, 12.0), (1e8, 3400.0)] }],
        };
        let svg = chart.svg().unwrap();
        assert!(svg.contains("viewBox") && svg.contains("64 B") && svg.contains("100 µs"), "{svg}");
    }

    #[test]
    fn labels_of_times_are_short() {
        assert_eq!([0.1, 10.0, 1e4, 1e6].map(time), ["0.1 µs", "10 µs", "10 ms", "1 s"]);
        assert_eq!(decades(5.0, 2000.0), [10.0, 100.0, 1000.0]);
    }
}

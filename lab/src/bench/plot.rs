//! Plots as SVG files, for people who look rather than read.

use std::{error::Error, path::Path};

use plotters::{
    chart::{ChartContext, SeriesLabelPosition},
    coord::CoordTranslate,
    coord::ranged1d::{IntoSegmentedCoord, SegmentValue},
    drawing::IntoDrawingArea,
    element::{ErrorBar, PathElement, Rectangle},
    prelude::{ChartBuilder, Color, RGBColor, SVGBackend},
    series::LineSeries,
    style::{BLACK, Palette, Palette99, WHITE},
};

use super::spread::Spread;
use crate::Fallible;

const SIZE: (u32, u32) = (720, 360);
const FONT: &str = "sans-serif";

/// One bar, of parts that stand on each other.
pub(super) struct Bar {
    pub(super) name: String,
    pub(super) parts: Vec<f64>,
    /// From where to where it was measured.
    pub(super) range: Option<Spread>,
}

/// One line.
pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// Draws bars; `parts` names what they are made of, if they are of several.
///
/// # Errors
///
/// When the file cannot be written.
pub(super) fn bars(
    path: &Path,
    title: &str,
    unit: &str,
    parts: &[&str],
    bars: &[Bar],
) -> Fallible<()> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE).map_err(drawn)?;
    let top = bars.iter().map(|bar| {
        let whole: f64 = bar.parts.iter().sum();
        bar.range.map_or(whole, |range| range.max.max(whole))
    });
    let top = top.fold(0.0, f64::max) * 1.1;
    let count = bars.len();
    let mut chart = ChartBuilder::on(&root)
        .caption(title, (FONT, 18))
        .margin(12)
        .x_label_area_size(28)
        .y_label_area_size(56)
        .build_cartesian_2d((0..count.saturating_sub(1)).into_segmented(), 0.0..top)
        .map_err(drawn)?;
    let name = |at: &SegmentValue<usize>| match at {
        SegmentValue::CenterOf(index) => bars.get(*index).map(|bar| bar.name.clone()),
        _ => None,
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(count)
        .x_label_formatter(&|at| name(at).unwrap_or_default())
        .y_desc(unit)
        .label_style((FONT, 13))
        // Whole numbers without light lines never end in plotters 0.3.7.
        .max_light_lines(1)
        .draw()
        .map_err(drawn)?;
    for (part, called) in parts.iter().enumerate() {
        let color = color(part);
        let drawn_bars = bars.iter().enumerate().map(|(index, bar)| {
            let below: f64 = bar.parts.iter().take(part).sum();
            let height = bar.parts.get(part).copied().unwrap_or_default();
            let from = (SegmentValue::Exact(index), below);
            let to = (SegmentValue::Exact(index + 1), below + height);
            let mut rectangle = Rectangle::new([from, to], color.filled());
            rectangle.set_margin(0, 0, 14, 14);
            rectangle
        });
        let series = chart.draw_series(drawn_bars).map_err(drawn)?;
        if parts.len() > 1 {
            series.label(*called).legend(move |(x, y)| {
                Rectangle::new([(x, y - 5), (x + 14, y + 5)], color.filled())
            });
        }
    }
    let ranges = bars.iter().enumerate().filter_map(|(index, bar)| {
        let Spread { min, median, max } = bar.range?;
        let at = SegmentValue::CenterOf(index);
        Some(ErrorBar::new_vertical(
            at,
            min,
            median,
            max,
            BLACK.filled(),
            9,
        ))
    });
    chart.draw_series(ranges).map_err(drawn)?;
    if parts.len() > 1 {
        legend(&mut chart, SeriesLabelPosition::UpperRight)?;
    }
    root.present().map_err(drawn)
}

/// Draws lines over a numeric axis.
///
/// # Errors
///
/// As [`bars`].
pub(super) fn lines(path: &Path, title: &str, units: (&str, &str), lines: &[Line]) -> Fallible<()> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE).map_err(drawn)?;
    let points = || lines.iter().flat_map(|line| &line.points);
    let right = points().map(|point| point.0).fold(0.0, f64::max);
    let top = points().map(|point| point.1).fold(0.0, f64::max) * 1.1;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, (FONT, 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..right, 0.0..top)
        .map_err(drawn)?;
    chart
        .configure_mesh()
        .x_desc(units.0)
        .y_desc(units.1)
        .label_style((FONT, 13))
        .max_light_lines(0)
        .draw()
        .map_err(drawn)?;
    for (index, line) in lines.iter().enumerate() {
        let color = color(index);
        let style = color.stroke_width(2);
        chart
            .draw_series(LineSeries::new(line.points.iter().copied(), style).point_size(3))
            .map_err(drawn)?
            .label(&line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], style));
    }
    legend(&mut chart, SeriesLabelPosition::LowerLeft)?;
    root.present().map_err(drawn)
}

fn legend<'a, C: CoordTranslate>(
    chart: &mut ChartContext<'a, SVGBackend<'a>, C>,
    position: SeriesLabelPosition,
) -> Fallible<()> {
    chart
        .configure_series_labels()
        .position(position)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .label_font((FONT, 13))
        .draw()
        .map_err(drawn)
}

fn color(index: usize) -> RGBColor {
    let (red, green, blue) = Palette99::pick(index).rgb();
    RGBColor(red, green, blue)
}

fn drawn(error: impl Error + Send + Sync + 'static) -> Box<dyn Error + Send + Sync> {
    format!("a plot cannot be drawn: {error}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plots_of_any_number_of_bars_and_lines_come_to_an_end() -> Fallible<()> {
        let folder = std::env::temp_dir().join(format!("idem-plots-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        for count in 1..12 {
            let all: Vec<_> = (0..count)
                .map(|number| Bar {
                    name: format!("bar {number}"),
                    parts: vec![1.0, 2.0],
                    range: None,
                })
                .collect();
            bars(&folder.join("bars.svg"), "bars", "µs", &["a", "b"], &all)?;
        }
        let line = Line {
            name: "line".to_owned(),
            points: vec![(0.0, 1.0), (10.0, 0.5)],
        };
        let file = folder.join("lines.svg");
        lines(&file, "lines", ("ms", "of bare"), &[line])?;
        assert!(std::fs::read_to_string(&file)?.contains("of bare"));
        std::fs::remove_dir_all(&folder)?;
        Ok(())
    }
}

//! Charts as SVG, with axis labels that are readable on narrow screens too.

use std::ops::Range;

use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Error of drawing a chart.
#[derive(Debug, thiserror::Error)]
#[error("a chart cannot be drawn: {0}")]
pub struct ChartError(String);

/// A named line of a chart: points (x, y).
pub type Series<'a> = (&'a str, Vec<(f64, f64)>);

/// Labels of a chart.
#[derive(Clone, Copy, Debug)]
pub struct Axes<'a> {
    /// Title above the chart.
    pub title: &'a str,
    /// Label of the x axis.
    pub x: &'a str,
    /// Label of the y axis.
    pub y: &'a str,
}

/// A chart as SVG, drawn for a wide and for a narrow screen: scaled down, its labels would be too
/// small to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chart {
    /// SVG of 900 pixels width.
    pub wide: String,
    /// SVG of 400 pixels width.
    pub narrow: String,
}

/// Size of a chart.
#[derive(Clone, Copy)]
struct Room {
    size: (u32, u32),
    /// Largest number of ticks on the x axis.
    ticks: usize,
}

const WIDE: Room = Room {
    size: (900, 360),
    ticks: 12,
};

const NARROW: Room = Room {
    size: (400, 320),
    ticks: 6,
};

/// Returns at most `most` tick values in a range: 1, 2 or 5 times a power of ten apart; whole
/// numbers only, if `whole`.
fn ticks(range: &Range<f64>, most: usize, whole: bool) -> Vec<f64> {
    let span = range.end - range.start;
    let least = span / most.max(1) as f64;
    let power = 10f64.powf(least.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .map(|n| n * power)
        .into_iter()
        .find(|step| *step >= least * (1.0 - 1e-9));
    let step = step
        .unwrap_or(span)
        .max(if whole { 1.0 } else { f64::MIN_POSITIVE });
    let (first, last) = (
        (range.start / step).ceil() as i64,
        (range.end / step).floor() as i64,
    );
    (first..=last).map(|n| n as f64 * step).collect()
}

/// Returns at most `most` powers of ten in a positive range and, if the range is short, also 2 and
/// 5 times those.
fn log_ticks(range: &Range<f64>, most: usize) -> Vec<f64> {
    let (first, last) = (
        range.start.log10().floor() as i32,
        range.end.log10().ceil() as i32,
    );
    let every = ((last - first) as usize).div_ceil(most.max(1)).max(1);
    let factors: &[f64] = if last - first <= 3 {
        &[1.0, 2.0, 5.0]
    } else {
        &[1.0]
    };
    let all = (first..=last)
        .step_by(every)
        .flat_map(|n| factors.iter().map(move |f| f * 10f64.powi(n)));
    all.filter(|y| range.contains(y)).collect()
}

/// A range with its ticks: plotters' own may be halves of a layer, or too many to read.
struct Axis {
    range: Range<f64>,
    ticks: Vec<f64>,
    /// Whether the axis is logarithmic.
    log: bool,
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (left, right): (i32, i32)) -> i32 {
        let Range { start, end } = self.range;
        let part = if self.log {
            (value / start).ln() / (end / start).ln()
        } else {
            (value - start) / (end - start)
        };
        left + (part * f64::from(right - left)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() {
            Vec::new()
        } else {
            self.ticks.clone()
        }
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

/// Decades shown below the largest value; zeros are drawn at the bottom.
const DECADES: i32 = 18;

/// Draws lines over a logarithmic y axis; x counts layers, positions or tensors. Values that are
/// not above zero are drawn at the bottom.
///
/// # Errors
/// If the drawing fails.
pub fn line_chart(axes: Axes<'_>, series: &[Series<'_>]) -> Result<Chart, ChartError> {
    let points = || series.iter().flat_map(|(_, points)| points.iter().copied());
    let finite = |y: f64| y.is_finite() && y > 0.0;
    let largest = points()
        .map(|(_, y)| y)
        .filter(|y| finite(*y))
        .fold(f64::MIN_POSITIVE, f64::max);
    let smallest = points()
        .map(|(_, y)| y)
        .filter(|y| finite(*y))
        .fold(largest, f64::min);
    let bottom = (smallest / 3.0)
        .max(largest * 10f64.powi(-DECADES))
        .max(f64::MIN_POSITIVE);
    let top = (largest * 3.0).max(bottom * 10.0);
    let (left, right) = points().fold((f64::MAX, f64::MIN), |(l, r), (x, _)| (l.min(x), r.max(x)));
    let (left, right) = if left < right {
        (left, right)
    } else {
        (left.min(0.0), left.max(0.0) + 1.0)
    };
    drawn(axes, (left..right, true), bottom..top, (series, &[]))
}

/// Contents of a chart: lines, and labelled points.
type Content<'a> = (&'a [Series<'a>], &'a [(f64, f64, &'a str)]);

/// Draws a chart for both widths; `whole`: x counts something.
fn drawn(
    axes: Axes<'_>,
    (x, whole): (Range<f64>, bool),
    y: Range<f64>,
    content: Content<'_>,
) -> Result<Chart, ChartError> {
    let one = |room: Room| {
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, room.size).into_drawing_area();
            let ticks = ticks(&x, room.ticks, whole);
            draw(&root, axes, (x.clone(), ticks, y.clone()), content)
                .map_err(|error| ChartError(error.to_string()))?;
        }
        Ok(svg)
    };
    Ok(Chart {
        wide: one(WIDE)?,
        narrow: one(NARROW)?,
    })
}

type Plane<'c, 'a> = ChartContext<'c, SVGBackend<'a>, Cartesian2d<Axis, Axis>>;

type Failed<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

fn draw<'a>(
    root: &DrawingArea<SVGBackend<'a>, plotters::coord::Shift>,
    axes: Axes<'_>,
    (x, ticks, y): (Range<f64>, Vec<f64>, Range<f64>),
    (series, names): Content<'_>,
) -> Result<(), Failed<'a>> {
    root.fill(&WHITE)?;
    let bottom = y.start;
    let mut chart = ChartBuilder::on(root)
        .caption(axes.title, ("sans-serif", 16))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(64)
        .build_cartesian_2d(
            Axis {
                range: x,
                ticks,
                log: false,
            },
            Axis {
                ticks: log_ticks(&y, 8),
                range: y,
                log: true,
            },
        )?;
    let exponent = |y: &f64| format!("{y:.0e}");
    let number = |x: &f64| {
        if x.fract() == 0.0 {
            format!("{x:.0}")
        } else {
            format!("{x:.1}")
        }
    };
    chart
        .configure_mesh()
        .x_desc(axes.x)
        .y_desc(axes.y)
        .y_label_formatter(&exponent)
        .x_label_formatter(&number)
        .label_style(("sans-serif", 14))
        .light_line_style(TRANSPARENT)
        .draw()?;
    draw_lines(&mut chart, series, bottom)?;
    draw_names(&mut chart, names)?;
    if series.len() > 1 {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .label_font(("sans-serif", 14))
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .draw()?;
    }
    root.present()
}

/// Draws each series as a line with dots. Points below `bottom`, the end of the axis, are drawn on
/// it.
fn draw_lines<'a>(
    chart: &mut Plane<'_, 'a>,
    series: &[Series<'_>],
    bottom: f64,
) -> Result<(), Failed<'a>> {
    for (index, (name, points)) in series.iter().enumerate() {
        let color = Palette99::pick(index).to_rgba();
        let shown: Vec<(f64, f64)> = points
            .iter()
            .map(|(x, y)| (*x, if *y > bottom { *y } else { bottom }))
            .collect();
        chart
            .draw_series(LineSeries::new(
                shown.iter().copied(),
                color.stroke_width(2),
            ))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        chart.draw_series(
            shown
                .iter()
                .map(|point| Circle::new(*point, 3, color.filled())),
        )?;
    }
    Ok(())
}

fn draw_names<'a>(chart: &mut Plane<'_, 'a>, names: &[(f64, f64, &str)]) -> Result<(), Failed<'a>> {
    // alternate labels above right and below left: neighbouring points may be closer than their
    // labels are long
    let names = names.iter().enumerate().map(|(i, (x, y, name))| {
        let (pos, at) = match i % 2 {
            0 => (Pos::new(HPos::Left, VPos::Bottom), (6, -3)),
            _ => (Pos::new(HPos::Right, VPos::Top), (-6, 3)),
        };
        EmptyElement::at((*x, *y))
            + Text::new(
                (*name).to_owned(),
                at,
                ("sans-serif", 14).into_font().color(&BLACK).pos(pos),
            )
    });
    chart.draw_series(names)?;
    Ok(())
}

/// A named line of labelled points (x, y, label).
pub type NamedSeries<'a> = (&'a str, Vec<(f64, f64, &'a str)>);

/// Draws labelled points, those of a series joined from left to right, over a logarithmic y axis.
///
/// # Errors
/// If the drawing fails.
pub fn named_points(axes: Axes<'_>, series: &[NamedSeries<'_>]) -> Result<Chart, ChartError> {
    let (mut lines, mut names) = (Vec::new(), Vec::new());
    for (name, points) in series {
        let mut sorted: Vec<(f64, f64, &str)> = points
            .iter()
            .copied()
            .filter(|p| p.1 > 0.0 && p.1.is_finite())
            .collect();
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
        lines.push((*name, sorted.iter().map(|p| (p.0, p.1)).collect()));
        names.extend(sorted);
    }
    let fold = |of: fn(&(f64, f64, &str)) -> f64| {
        names
            .iter()
            .map(of)
            .fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(v), h.max(v)))
    };
    let ((left, right), (bottom, top)) = if names.is_empty() {
        ((0.0, 1.0), (0.1, 1.0))
    } else {
        (fold(|p| p.0), fold(|p| p.1))
    };
    let space = ((right - left) * 0.1).max(0.1);
    let x = (left - 1.5 * space)..(right + 2.5 * space);
    drawn(
        axes,
        (x, false),
        (bottom / 2.0)..(top * 2.0),
        (&lines, &names),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_take_zeros_infinities_and_nothing() {
        let axes = Axes {
            title: "t",
            x: "x",
            y: "y",
        };
        for points in [
            vec![],
            vec![(0.0, 0.0)],
            vec![
                (0.0, 1e-12),
                (1.0, 0.0),
                (2.0, f64::INFINITY),
                (3.0, f64::NAN),
            ],
        ] {
            let Chart { wide, narrow } =
                line_chart(axes, &[("a", points.clone()), ("b", points)]).expect("it is drawn");
            for svg in [wide, narrow] {
                assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            }
        }
    }

    /// Returns the texts of a chart.
    fn texts(svg: &str) -> Vec<&str> {
        let ends = svg
            .split("<text")
            .skip(1)
            .filter_map(|rest| rest.split_once('>'));
        ends.filter_map(|(_, rest)| Some(rest.split_once("</text>")?.0.trim()))
            .collect()
    }

    #[test]
    fn layers_are_counted_in_whole_numbers() {
        let axes = Axes {
            title: "t",
            x: "layer",
            y: "y",
        };
        for n in [1, 2, 3, 4, 6, 11, 36, 80, 1000] {
            let points: Vec<(f64, f64)> = (0..n).map(|x| (f64::from(x), 1e-6)).collect();
            let Chart { wide, narrow } = line_chart(axes, &[("a", points)]).expect("it is drawn");
            for (svg, most) in [(wide, WIDE.ticks), (narrow, NARROW.ticks)] {
                let numbers: Vec<&str> = texts(&svg)
                    .into_iter()
                    .filter(|t| t.parse::<f64>().is_ok())
                    .collect();
                let at_x: Vec<&&str> = numbers.iter().filter(|t| !t.contains('e')).collect();
                assert!(
                    at_x.iter().all(|t| t.parse::<u32>().is_ok()),
                    "{n} layers: {numbers:?}"
                );
                assert!(
                    (1..=most + 1).contains(&at_x.len()),
                    "{n} layers: {numbers:?}"
                );
                let mut once = at_x.clone();
                once.dedup();
                assert_eq!(once, at_x, "{n} layers");
            }
        }
        assert_eq!(ticks(&(4.0..9.0), 6, false), [4.0, 5.0, 6.0, 7.0, 8.0, 9.0]);
        assert_eq!(ticks(&(4.3..5.2), 12, false).len(), 10);
        let near = |range: Range<f64>| {
            log_ticks(&range, 8)
                .iter()
                .map(|y| format!("{y:.0e}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(near(6e-3..3e-1), ["1e-2", "2e-2", "5e-2", "1e-1", "2e-1"]);
        assert!((4..=9).contains(&near(1e-17..3e-1).len()));
    }
}

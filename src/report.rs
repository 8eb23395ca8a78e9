//! Self-contained HTML pages: a few styles, tables, and charts as SVG. Nothing is loaded from anywhere.

use std::fmt::{Display, Write};

use plotters::prelude::*;

/// A chart that could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("a chart cannot be drawn: {0}")]
pub struct ChartError(String);

/// A page that grows section by section.
#[derive(Debug)]
pub struct Page {
    body: String,
    title: String,
}

const STYLE: &str = "\
:root{color-scheme:light dark;--line:#8884;--bad:#c0392b;--good:#1e8449}\
body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}\
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9rem}\
td{white-space:nowrap}th,td{padding:.2rem .7rem;border-bottom:1px solid var(--line);text-align:right}\
th:first-child,td:first-child{text-align:left}\
.scroll{overflow-x:auto}.bad{color:var(--bad);font-weight:600}.good{color:var(--good);font-weight:600}\
table.heat td{text-align:center;font-size:.75rem;padding:.2rem .35rem}svg{max-width:100%;height:auto;background:#fff;border-radius:6px}code{font-size:.9em}details{margin:.5rem 0}";

/// Text as HTML takes it.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() && c != '\n' => out.push('\u{FFFD}'),
            c => out.push(c),
        }
    }
    out
}

impl Page {
    /// An empty page.
    pub fn new(title: &str) -> Page {
        Page { body: String::new(), title: title.to_owned() }
    }

    /// How every page with this title begins, also those of earlier versions: they are known by it.
    pub fn beginning(title: &str) -> String {
        let title = escape(title);
        format!(
            "<!doctype html>\n<html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
             <title>{title}</title>"
        )
    }

    /// A heading of the second level.
    pub fn heading(&mut self, text: &str) {
        let _ = writeln!(self.body, "<h2>{}</h2>", escape(text));
    }

    /// A paragraph; `good` colours it.
    pub fn paragraph(&mut self, text: &str, good: Option<bool>) {
        let class = good.map_or("", |good| if good { " class=good" } else { " class=bad" });
        let _ = writeln!(self.body, "<p{class}>{}</p>", escape(text));
    }

    /// A table; the cells of marked rows stand out.
    pub fn table<C: Display>(&mut self, head: &[&str], rows: impl IntoIterator<Item = (bool, Vec<C>)>) {
        self.body.push_str("<div class=scroll><table><tr>");
        for cell in head {
            let _ = write!(self.body, "<th>{}</th>", escape(cell));
        }
        for (marked, cells) in rows {
            self.body.push_str(if marked { "</tr>\n<tr class=bad>" } else { "</tr>\n<tr>" });
            for cell in cells {
                let _ = write!(self.body, "<td>{}</td>", escape(&cell.to_string()));
            }
        }
        self.body.push_str("</tr></table></div>\n");
    }

    /// A chart, as [`line_chart`] drew it.
    pub fn chart(&mut self, svg: &str) {
        self.body.push_str(svg);
        self.body.push('\n');
    }

    /// What follows, up to [`Page::end_fold`], is hidden until it is clicked.
    pub fn fold(&mut self, summary: &str) {
        let _ = writeln!(self.body, "<details><summary>{}</summary>", escape(summary));
    }

    /// Ends a [`Page::fold`].
    pub fn end_fold(&mut self) {
        self.body.push_str("</details>\n");
    }

    /// The whole page.
    pub fn finish(self) -> String {
        let (beginning, title, body) = (Page::beginning(&self.title), escape(&self.title), self.body);
        format!("{beginning}<style>{STYLE}</style>\n<h1>{title}</h1>\n{body}</html>\n")
    }
}

impl Page {
    /// A table of colours: how dark a cell is follows the logarithm of its value; `None` is empty. Rows have a name
    /// each, columns a heading.
    pub fn heat_map(&mut self, head: &[String], rows: &[(String, Vec<Option<f64>>)]) {
        let values = || rows.iter().flat_map(|(_, row)| row.iter().flatten().copied()).filter(|v| *v > 0.0);
        let (low, high) = values().fold((f64::INFINITY, 0.0f64), |(l, h), v| (l.min(v), h.max(v)));
        let span = (high / low).ln().max(f64::MIN_POSITIVE);
        self.body.push_str("<div class=scroll><table class=heat><tr><th></th>");
        for cell in head {
            let _ = write!(self.body, "<th>{}</th>", escape(cell));
        }
        for (name, row) in rows {
            let _ = write!(self.body, "</tr>\n<tr><th>{}</th>", escape(name));
            for cell in row {
                let Some(value) = cell else {
                    self.body.push_str("<td></td>");
                    continue;
                };
                let part = if *value > 0.0 { ((value / low).ln() / span).clamp(0.0, 1.0) } else { 0.0 };
                let _ = write!(self.body, "<td style=\"background:rgba(192,57,43,{part:.2})\">{value:.1e}</td>");
            }
        }
        self.body.push_str("</tr></table></div>\n");
    }
}

/// A named line of a chart: points of x and y.
pub type Series<'a> = (&'a str, Vec<(f64, f64)>);

/// What stands at a chart's axes.
#[derive(Clone, Copy, Debug)]
pub struct Axes<'a> {
    /// Above the chart.
    pub title: &'a str,
    /// Below.
    pub x: &'a str,
    /// At the left.
    pub y: &'a str,
}

/// Decades shown below the largest value; zeros are drawn at the bottom.
const DECADES: i32 = 18;

/// Lines over a logarithmic y axis, as SVG. What is not above zero is drawn at the bottom.
///
/// # Errors
/// If the drawing fails.
pub fn line_chart(axes: Axes<'_>, series: &[Series<'_>]) -> Result<String, ChartError> {
    let points = || series.iter().flat_map(|(_, points)| points.iter().copied());
    let finite = |y: f64| y.is_finite() && y > 0.0;
    let largest = points().map(|(_, y)| y).filter(|y| finite(*y)).fold(f64::MIN_POSITIVE, f64::max);
    let smallest = points().map(|(_, y)| y).filter(|y| finite(*y)).fold(largest, f64::min);
    let bottom = (smallest / 3.0).max(largest * 10f64.powi(-DECADES)).max(f64::MIN_POSITIVE);
    let top = (largest * 3.0).max(bottom * 10.0);
    let (left, right) = points().fold((f64::MAX, f64::MIN), |(l, r), (x, _)| (l.min(x), r.max(x)));
    let (left, right) = if left < right { (left, right) } else { (left.min(0.0), left.max(0.0) + 1.0) };
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (900, 340)).into_drawing_area();
        draw(&root, axes, (left..right, bottom..top), (series, &[])).map_err(|error| ChartError(error.to_string()))?;
    }
    Ok(svg)
}

type Failed<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

fn draw<'a>(
    root: &DrawingArea<SVGBackend<'a>, plotters::coord::Shift>,
    axes: Axes<'_>,
    (x, y): (std::ops::Range<f64>, std::ops::Range<f64>),
    (series, names): (&[Series<'_>], &[(f64, f64, &str)]),
) -> Result<(), Failed<'a>> {
    root.fill(&WHITE)?;
    let bottom = y.start;
    let mut chart = ChartBuilder::on(root)
        .caption(axes.title, ("sans-serif", 18))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d(x, y.log_scale())?;
    let exponent = |y: &f64| format!("{y:.0e}");
    let number = |x: &f64| if x.fract() == 0.0 { format!("{x:.0}") } else { format!("{x:.1}") };
    chart
        .configure_mesh()
        .x_desc(axes.x)
        .y_desc(axes.y)
        .y_label_formatter(&exponent)
        .x_label_formatter(&number)
        .label_style(("sans-serif", 14))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (index, (name, points)) in series.iter().enumerate() {
        let color = Palette99::pick(index).to_rgba();
        let shown: Vec<(f64, f64)> = points.iter().map(|(x, y)| (*x, if *y > bottom { *y } else { bottom })).collect();
        chart
            .draw_series(LineSeries::new(shown.iter().copied(), color.stroke_width(2)))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        chart.draw_series(shown.iter().map(|point| Circle::new(*point, 3, color.filled())))?;
    }
    let font = || ("sans-serif", 14).into_font();
    chart.draw_series(
        names.iter().map(|(x, y, name)| EmptyElement::at((*x, *y)) + Text::new((*name).to_owned(), (7, -14), font())),
    )?;
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

/// Points with a name each, joined from left to right, over a logarithmic y axis, as SVG.
///
/// # Errors
/// If the drawing fails.
pub fn named_points(axes: Axes<'_>, points: &[(f64, f64, &str)]) -> Result<String, ChartError> {
    let mut sorted: Vec<(f64, f64, &str)> = points.iter().copied().filter(|p| p.1 > 0.0 && p.1.is_finite()).collect();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let fold = |of: fn(&(f64, f64, &str)) -> f64| {
        sorted.iter().map(of).fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(v), h.max(v)))
    };
    let ((left, right), (bottom, top)) =
        if sorted.is_empty() { ((0.0, 1.0), (0.1, 1.0)) } else { (fold(|p| p.0), fold(|p| p.1)) };
    let space = ((right - left) * 0.08).max(0.1);
    let line: Vec<(f64, f64)> = sorted.iter().map(|p| (p.0, p.1)).collect();
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (900, 380)).into_drawing_area();
        let area = ((left - space)..(right + 2.0 * space), (bottom / 2.0)..(top * 2.0));
        draw(&root, axes, area, (&[("", line)], &sorted)).map_err(|error| ChartError(error.to_string()))?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_everywhere() {
        let mut page = Page::new("<a> & b");
        page.heading("\"x\"");
        page.table(&["<"], [(false, vec!["<script>"])]);
        let html = page.finish();
        assert!(html.contains("<title>&lt;a&gt; &amp; b</title>") && html.contains("&quot;x&quot;"));
        assert!(!html.contains("<script"));
    }

    #[test]
    fn heat_maps_and_named_points_take_anything() {
        let mut page = Page::new("x");
        page.heat_map(&["0".into()], &[("<a>".into(), vec![Some(0.0)]), ("b".into(), vec![None, Some(1.0)])]);
        let html = page.finish();
        assert!(html.contains("&lt;a&gt;") && !html.contains("NaN"));
        let axes = Axes { title: "t", x: "x", y: "y" };
        for points in [&[][..], &[(1.0, 0.0, "zero")], &[(4.5, 1e-2, "Q4_K_M"), (8.5, 1e-4, "<Q8_0>")]] {
            let svg = named_points(axes, points).expect("it is drawn");
            assert!(svg.starts_with("<svg") && !svg.contains("NaN") && !svg.contains("<Q8"), "{svg}");
        }
    }

    #[test]
    fn charts_take_zeros_infinities_and_nothing() {
        let axes = Axes { title: "t", x: "x", y: "y" };
        for points in [vec![], vec![(0.0, 0.0)], vec![(0.0, 1e-12), (1.0, 0.0), (2.0, f64::INFINITY), (3.0, f64::NAN)]]
        {
            let svg = line_chart(axes, &[("a", points.clone()), ("b", points)]).expect("it is drawn");
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}

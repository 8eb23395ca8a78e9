//! Self-contained HTML pages: a few styles, tables, and SVG charts. Nothing is loaded from the
//! network.

mod chart;

use std::fmt::{Display, Write};

pub use chart::{Axes, Chart, ChartError, NamedSeries, Series, line_chart, named_points};

/// A page built section by section.
#[derive(Debug)]
pub struct Page {
    body: String,
    title: String,
}

const STYLE: &str = "\
:root{color-scheme:light dark;--line:#8884;--bad:#c0392b;--good:#1e8449}\
body{font:15px/1.5 system-ui,sans-serif;max-width:76rem;margin:2rem auto;padding:0 1rem;\
overflow-wrap:anywhere}\
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}\
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9rem}\
td{white-space:nowrap}th,td{\
padding:.2rem .6rem;border-bottom:1px solid var(--line);text-align:right}\
th{overflow-wrap:normal}th:first-child,td:first-child{text-align:left}\
.scroll{overflow-x:auto}.bad{color:var(--bad);font-weight:600}\
.good{color:var(--good);font-weight:600}\
table.heat{table-layout:fixed;width:100%;max-width:56rem}\
table.heat td{text-align:center;font-size:.75rem;padding:.2rem 0}\
table.heat th{padding:.2rem;width:2rem}\
table.heat th~th{width:auto;writing-mode:vertical-rl;text-align:left}\
svg{max-width:100%;height:auto;background:#fff;border-radius:6px}.narrow{display:none}\
code{font-size:.9em}details{margin:.5rem 0}\
@media(max-width:40rem){.wide{display:none}.narrow{display:block}\
table.heat td{font-size:.55rem}table.heat th{font-size:.7rem}\
table.stack tr:first-child{display:none}table.stack,table.stack tbody,table.stack tr{display:block}\
table.stack tr{padding:.4rem 0;border-bottom:1px solid var(--line)}\
table.stack td,table.stack td:first-child{display:flex;justify-content:space-between;gap:1rem;\
border:0;padding:0;\
white-space:normal;text-align:right}\
table.stack td::before{content:attr(data-of);opacity:.7;text-align:left}}";

/// Most columns that a table shows on a narrow screen; with more, each row becomes a list there.
const SIDE_BY_SIDE: usize = 5;

/// Escapes text for HTML.
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

/// Viewport that makes narrow screens show a page at their own width.
const VIEWPORT: &str = "width=device-width,initial-scale=1";

impl Page {
    /// Starts an empty page.
    pub fn new(title: &str) -> Page {
        Page {
            body: String::new(),
            title: title.to_owned(),
        }
    }

    /// Returns the first bytes of a page with this title.
    fn beginning(title: &str, viewport: &str) -> String {
        let title = escape(title);
        format!(
            "<!doctype html>\n<html lang=en><meta charset=utf-8><meta name=viewport \
             content=\"{viewport}\">\
             <title>{title}</title>"
        )
    }

    /// Returns whether `bytes` start like a page with this title, also one written by an earlier
    /// version.
    pub fn is_beginning(title: &str, bytes: &[u8]) -> bool {
        [VIEWPORT, "width=device-width"]
            .iter()
            .any(|v| bytes.starts_with(Page::beginning(title, v).as_bytes()))
    }

    /// Adds a level-two heading.
    pub fn heading(&mut self, text: &str) {
        let _ = writeln!(self.body, "<h2>{}</h2>", escape(text));
    }

    /// Adds a paragraph; `good` sets its colour.
    pub fn paragraph(&mut self, text: &str, good: Option<bool>) {
        let class = good.map_or("", |good| if good { " class=good" } else { " class=bad" });
        let _ = writeln!(self.body, "<p{class}>{}</p>", escape(text));
    }

    /// Adds a table; the cells of marked rows are highlighted. On narrow screens, each row of a
    /// wide table becomes a list of its cells with their headings.
    pub fn table<C: Display>(
        &mut self,
        head: &[&str],
        rows: impl IntoIterator<Item = (bool, Vec<C>)>,
    ) {
        let stack = head.len() > SIDE_BY_SIDE;
        let class = if stack { " class=stack" } else { "" };
        let _ = write!(self.body, "<div class=scroll><table{class}><tr>");
        for cell in head {
            let _ = write!(self.body, "<th>{}</th>", escape(cell));
        }
        for (marked, cells) in rows {
            self.body.push_str(if marked {
                "</tr>\n<tr class=bad>"
            } else {
                "</tr>\n<tr>"
            });
            for (i, cell) in cells.into_iter().enumerate() {
                let of = head
                    .get(i)
                    .filter(|_| stack)
                    .map(|of| format!(" data-of=\"{}\"", escape(of)));
                let _ = write!(
                    self.body,
                    "<td{}>{}</td>",
                    of.unwrap_or_default(),
                    escape(&cell.to_string())
                );
            }
        }
        self.body.push_str("</tr></table></div>\n");
    }

    /// Adds a chart from [`line_chart`] or [`named_points`]: the screen's width decides which of
    /// the two versions is visible.
    pub fn chart(&mut self, chart: &Chart) {
        let Chart { wide, narrow } = chart;
        let _ = writeln!(
            self.body,
            "<div class=wide>{wide}</div><div class=narrow>{narrow}</div>"
        );
    }

    /// Starts a section, up to [`Page::end_fold`], that is collapsed until clicked.
    pub fn fold(&mut self, summary: &str) {
        let _ = writeln!(self.body, "<details><summary>{}</summary>", escape(summary));
    }

    /// Ends a [`Page::fold`].
    pub fn end_fold(&mut self) {
        self.body.push_str("</details>\n");
    }

    /// Returns the whole page.
    pub fn finish(self) -> String {
        let (beginning, title, body) = (
            Page::beginning(&self.title, VIEWPORT),
            escape(&self.title),
            self.body,
        );
        format!("{beginning}<style>{STYLE}</style>\n<h1>{title}</h1>\n{body}</html>\n")
    }
}

impl Page {
    /// Adds a heat map: the darkness of a cell follows the logarithm of its value; `None` is empty.
    /// Each row has a name, each column a heading.
    pub fn heat_map(&mut self, head: &[String], rows: &[(String, Vec<Option<f64>>)]) {
        let values = || {
            rows.iter()
                .flat_map(|(_, row)| row.iter().flatten().copied())
                .filter(|v| *v > 0.0)
        };
        let (low, high) = values().fold((f64::INFINITY, 0.0f64), |(l, h), v| (l.min(v), h.max(v)));
        let span = (high / low).ln().max(f64::MIN_POSITIVE);
        self.body
            .push_str("<div class=scroll><table class=heat><tr><th></th>");
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
                let part = if *value > 0.0 {
                    ((value / low).ln() / span).clamp(0.0, 1.0)
                } else {
                    0.0
                };
                let _ = write!(
                    self.body,
                    "<td style=\"background:rgba(192,57,43,{part:.2})\">{value:.1e}</td>"
                );
            }
        }
        self.body.push_str("</tr></table></div>\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_known_by_their_beginning() {
        let page = Page::new("a & b").finish();
        let older = page.replace(",initial-scale=1", "");
        assert_ne!(page, older);
        for page in [&page, &older] {
            assert!(
                Page::is_beginning("a & b", page.as_bytes())
                    && !Page::is_beginning("b", page.as_bytes())
            );
        }
        assert!(!Page::is_beginning("a & b", b"<!doctype html>"));
    }

    #[test]
    fn text_is_escaped_everywhere() {
        let mut page = Page::new("<a> & b");
        page.heading("\"x\"");
        page.table(&["<"], [(false, vec!["<script>"])]);
        let html = page.finish();
        assert!(
            html.contains("<title>&lt;a&gt; &amp; b</title>") && html.contains("&quot;x&quot;")
        );
        assert!(!html.contains("<script"));
    }

    #[test]
    fn heat_maps_and_named_points_take_anything() {
        let mut page = Page::new("x");
        page.heat_map(
            &["0".into()],
            &[
                ("<a>".into(), vec![Some(0.0)]),
                ("b".into(), vec![None, Some(1.0)]),
            ],
        );
        let html = page.finish();
        assert!(html.contains("&lt;a&gt;") && !html.contains("NaN"));
        let axes = Axes {
            title: "t",
            x: "x",
            y: "y",
        };
        for points in [
            &[][..],
            &[(1.0, 0.0, "zero")],
            &[(4.5, 1e-2, "Q4_K_M"), (8.5, 1e-4, "<Q8_0>")],
        ] {
            let Chart { wide, narrow } =
                named_points(axes, &[("a", points.to_vec()), ("b", vec![])]).expect("it is drawn");
            for svg in [wide, narrow] {
                assert!(
                    svg.starts_with("<svg") && !svg.contains("NaN") && !svg.contains("<Q8"),
                    "{svg}"
                );
            }
        }
    }

    #[test]
    fn nothing_is_cut_off_on_a_narrow_screen() {
        let mut page = Page::new("x");
        let head = [
            "type",
            "MiB",
            "bits/weight",
            "PPL",
            "\"99 %\" KL",
            "same top",
        ];
        page.table(
            &head,
            [(false, vec!["Q4_0", "1", "4.5", "9", "0.1", "90 %"])],
        );
        page.table(&head[..3], [(false, vec!["Q4_0", "1", "4.5"])]);
        let axes = Axes {
            title: "t",
            x: "x",
            y: "y",
        };
        page.chart(&named_points(axes, &[("", vec![(4.5, 1e-2, "Q4_0")])]).expect("it is drawn"));
        let html = page.finish();
        assert!(html.contains("name=viewport content=\"width=device-width,initial-scale=1\""));
        assert_eq!(
            html.matches("<table").count(),
            html.matches("<div class=scroll><table").count()
        );
        // a row of many columns becomes a list, in which each cell has its heading
        assert!(
            html.contains("<td data-of=\"&quot;99 %&quot; KL\">0.1</td>")
                && html.contains("<td>4.5</td>")
        );
        assert!(
            html.contains("<div class=wide><svg width=\"900\"")
                && html.contains("<div class=narrow><svg width=\"400\"")
        );
    }
}

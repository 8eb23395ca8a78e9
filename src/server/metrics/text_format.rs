//! Prometheus' text format, 0.0.4, made from OpenMetrics.

/// Returns the same metrics in Prometheus' text format: there counters are called in HELP and TYPE
/// what they are called in their samples, and lines for units and for the end mean nothing.
pub(crate) fn in_text_format(open: &str) -> String {
    let mut text = String::with_capacity(open.len());
    // comes before the type, which says how its metric is called
    let mut help = None;
    for line in open.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap_or((rest, ""));
            let (end, kind) = match kind {
                "counter" => ("_total", kind),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                _ => ("", kind),
            };
            if let Some((name, help)) = help.take() {
                text.push_str(&format!("# HELP {name}{end} {help}\n"));
            }
            text.push_str(&format!("# TYPE {name}{end} {kind}\n"));
        } else if !line.starts_with("# ") {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_and_infos_have_the_names_of_their_samples() {
        let open = "\
# HELP a A.
# TYPE a counter
# UNIT a seconds
a_total{x=\"# EOF\"} 1
# HELP b B.
# TYPE b gauge
b 2
# HELP c C.
# TYPE c info
c_info{v=\"1\"} 1
# HELP d D.
# TYPE d histogram
d_bucket{le=\"+Inf\"} 3
# TYPE e unknown
e 4
# EOF
";
        let text = "\
# HELP a_total A.
# TYPE a_total counter
a_total{x=\"# EOF\"} 1
# HELP b B.
# TYPE b gauge
b 2
# HELP c_info C.
# TYPE c_info gauge
c_info{v=\"1\"} 1
# HELP d D.
# TYPE d histogram
d_bucket{le=\"+Inf\"} 3
# TYPE e untyped
e 4
";
        assert_eq!(in_text_format(open), text);
    }
}

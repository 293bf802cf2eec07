//! Responses of the command's own servers.

use std::collections::HashSet;

use cwasi_host::http::response_body::ResponseBody;
use cwasi_host::http::status::sentence;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method, Response, StatusCode};

/// Media types of metrics for Prometheus: OpenMetrics, and its older text format.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Metrics in the format that the scraper asks for: OpenMetrics, unless it takes plain text only.
pub fn metrics(request: &HeaderMap, open_metrics: String) -> Response<ResponseBody> {
    let accepts = |kind: &str| {
        let values = request.get_all(ACCEPT).iter();
        values.filter_map(|value| value.to_str().ok()).any(|value| value.contains(kind))
    };
    if accepts("text/plain") && !accepts("application/openmetrics-text") {
        return content(PROMETHEUS, plain_text(&open_metrics));
    }
    content(OPEN_METRICS, open_metrics)
}

/// OpenMetrics as the older text format: a counter's family is named as its samples are, and there are no units and no
/// end.
fn plain_text(open_metrics: &str) -> String {
    let counters: HashSet<&str> = open_metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let mut text = String::with_capacity(open_metrics.len());
    for line in open_metrics.lines() {
        if line == "# EOF" || line.starts_with("# UNIT ") {
            continue;
        }
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some(what), Some(name), Some(rest)) if counters.contains(name) => {
                text.push_str(&format!("# {what} {name}_total {rest}"));
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

pub fn reading(
    method: &Method,
    answer: impl FnOnce() -> Response<ResponseBody>,
) -> Response<ResponseBody> {
    if matches!(*method, Method::GET | Method::HEAD) {
        return answer();
    }
    sentence(StatusCode::METHOD_NOT_ALLOWED, "use GET")
}

/// A response of this media type.
#[must_use]
pub fn content(kind: &'static str, body: impl Into<Bytes>) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::Whole(Full::new(body.into())));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrapers_get_the_format_that_they_ask_for() {
        let text = "# HELP a_calls Calls.\n# TYPE a_calls counter\na_calls_total{x=\"1\"} 2\n# HELP b Now.\n# TYPE b gauge\n# UNIT b seconds\nb 3\n# EOF\n";
        let kind = |accept: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_str(accept).unwrap());
            metrics(&headers, text.to_owned()).headers()[CONTENT_TYPE].clone()
        };
        for accept in ["*/*", "application/openmetrics-text;q=0.9,text/plain;q=0.5"] {
            assert_eq!(kind(accept), OPEN_METRICS, "{accept}");
        }
        assert_eq!(kind("text/plain;version=0.0.4"), PROMETHEUS);
        assert_eq!(
            metrics(&HeaderMap::new(), text.to_owned()).headers()[CONTENT_TYPE],
            OPEN_METRICS
        );
        let plain = "# HELP a_calls_total Calls.\n# TYPE a_calls_total counter\na_calls_total{x=\"1\"} 2\n# HELP b Now.\n# TYPE b gauge\nb 3\n";
        assert_eq!(plain_text(text), plain);
    }
}

//! Lines of the text that `cwasi metrics` serves, in OpenMetrics' format: the three counters of an edge, and nothing else
//! of it (docs/metrics.md).

use std::borrow::Cow;

/// Last line of a whole text.
pub const END: &str = "# EOF";

/// The calls from one function to another one in one mode.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Series {
    /// Kubernetes namespace of the caller.
    pub namespace: String,
    pub workflow: String,
    /// With `:MODULE` behind it when an embedded module called.
    pub caller: String,
    /// In the caller's words: `function` or `namespace/function`.
    pub callee: String,
    pub mode: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    Calls,
    /// Of requests or of responses.
    Bytes,
}

/// One line's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    pub series: Series,
    pub counter: Counter,
    pub value: u64,
}

/// A line of one of the counters that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not a line of OpenMetrics")]
pub struct Malformed;

/// Reads a line; `None` = it has none of the counters.
///
/// # Errors
/// When it has one of them, and anything else than labels and a number behind it.
pub fn sample(line: &str) -> Result<Option<Sample>, Malformed> {
    let Some((name, rest)) = line.split_once('{') else { return Ok(None) };
    let counter = match name {
        "cwasi_calls_total" => Counter::Calls,
        "cwasi_sent_bytes_total" | "cwasi_received_bytes_total" => Counter::Bytes,
        _ => return Ok(None),
    };
    let (series, rest) = labels(rest)?;
    // A time, or an example behind `#`, may follow.
    let value = rest.split_ascii_whitespace().next().and_then(number).ok_or(Malformed)?;
    Ok(Some(Sample { series, counter, value }))
}

/// The labels up to the closing brace, and what follows it.
fn labels(mut rest: &str) -> Result<(Series, &str), Malformed> {
    let mut series = Series::default();
    loop {
        if let Some(after) = rest.strip_prefix('}') {
            return Ok((series, after));
        }
        let (name, quoted) = rest.split_once("=\"").ok_or(Malformed)?;
        let (value, after) = text(quoted)?;
        let field = match name {
            "pod_namespace" => Some(&mut series.namespace),
            "workflow" => Some(&mut series.workflow),
            "caller" => Some(&mut series.caller),
            "callee" => Some(&mut series.callee),
            "mode" => Some(&mut series.mode),
            _ => None,
        };
        if let Some(field) = field {
            *field = value.into_owned();
        }
        rest = after.strip_prefix(',').unwrap_or(after);
        if rest == after && !rest.starts_with('}') {
            return Err(Malformed);
        }
    }
}

/// A label's value up to its closing quote, and what follows.
fn text(quoted: &str) -> Result<(Cow<'_, str>, &str), Malformed> {
    let end = quoted.find(['"', '\\']).ok_or(Malformed)?;
    if quoted.as_bytes()[end] == b'"' {
        return Ok((Cow::Borrowed(&quoted[..end]), &quoted[end + 1..]));
    }
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Ok((Cow::Owned(value), &quoted[at + 1..])),
            '\\' => match characters.next() {
                Some((_, 'n')) => value.push('\n'),
                Some((_, escaped @ ('"' | '\\'))) => value.push(escaped),
                _ => return Err(Malformed),
            },
            other => value.push(other),
        }
    }
    Err(Malformed)
}

/// A counter's value: a whole number, or one with a fraction, which no counter of an edge has.
fn number(text: &str) -> Option<u64> {
    if let Ok(number) = text.parse::<u64>() {
        return Some(number);
    }
    let number = text.parse::<f64>().ok().filter(|it| it.is_finite() && *it >= 0.0)?;
    #[expect(clippy::cast_possible_truncation, reason = "beyond u64::MAX it is u64::MAX")]
    #[expect(clippy::cast_sign_loss, reason = "it is not negative")]
    let whole = number as u64;
    Some(whole)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LINE: &str = r#"cwasi_calls_total{namespace="k8s.io",pod_namespace="n",workflow="shop",caller="front",callee="prices",mode="local"} 17"#;

    fn series() -> Series {
        let [namespace, workflow, caller, callee, mode] =
            ["n", "shop", "front", "prices", "local"].map(str::to_owned);
        Series { namespace, workflow, caller, callee, mode }
    }

    #[test]
    fn a_line_is_a_series_and_its_value() {
        let expected = Sample { series: series(), counter: Counter::Calls, value: 17 };
        assert_eq!(sample(LINE), Ok(Some(expected)));
        for (name, counter) in [
            ("cwasi_sent_bytes_total", Some(Counter::Bytes)),
            ("cwasi_received_bytes_total", Some(Counter::Bytes)),
            ("cwasi_call_errors_total", None),
            ("cwasi_calls", None),
        ] {
            let read = sample(&LINE.replace("cwasi_calls_total", name)).unwrap();
            assert_eq!(read.map(|it| it.counter), counter, "{name}");
        }
        for (value, expected) in
            [("17.0", 17), ("1e3", 1000), ("3 1700000000", 3), ("1e300", u64::MAX)]
        {
            let read = sample(&LINE.replace(" 17", &format!(" {value}"))).unwrap();
            assert_eq!(read.map(|it| it.value), Some(expected), "{value}");
        }
        assert_eq!(sample("# HELP cwasi_calls Ended calls {"), Ok(None));
        assert_eq!(sample(END), Ok(None));
    }

    #[test]
    fn names_stay_in_their_quotes() {
        let line = r#"cwasi_calls_total{caller="a\"} 7\\\n",callee="é}"} 2"#;
        let read = sample(line).unwrap().unwrap();
        assert_eq!(
            (read.series.caller.as_str(), read.series.callee.as_str()),
            ("a\"} 7\\\n", "é}")
        );
        assert_eq!(read.value, 2);
    }

    #[test]
    fn a_broken_line_is_said() {
        for line in [
            "cwasi_calls_total{",
            "cwasi_calls_total{} ",
            "cwasi_calls_total{} many",
            "cwasi_calls_total{} -1",
            "cwasi_calls_total{} NaN",
            r#"cwasi_calls_total{caller="a} 1"#,
            r#"cwasi_calls_total{caller="a"callee="b"} 1"#,
            r#"cwasi_calls_total{caller="a\x"} 1"#,
            r#"cwasi_calls_total{caller} 1"#,
        ] {
            assert_eq!(sample(line), Err(Malformed), "{line}");
        }
    }

    fn escaped(text: &str) -> String {
        text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
    }

    proptest! {
        #[test]
        fn any_names_come_back(names in prop::array::uniform5(".{0,20}"), value: u64) {
            let [namespace, workflow, caller, callee, mode] = names;
            let line = format!(
                "cwasi_sent_bytes_total{{pod_namespace=\"{}\",workflow=\"{}\",caller=\"{}\",callee=\"{}\",mode=\"{}\"}} {value}",
                escaped(&namespace), escaped(&workflow), escaped(&caller), escaped(&callee), escaped(&mode),
            );
            let series = Series { namespace, workflow, caller, callee, mode };
            prop_assert_eq!(sample(&line), Ok(Some(Sample { series, counter: Counter::Bytes, value })));
        }

        /// Whatever a line has: no panic, and a cut line has no other value than the whole one.
        #[test]
        fn no_line_is_a_panic(line in ".{0,200}", cut in 0..LINE.len()) {
            let _any = sample(&line);
            let _any = sample(&format!("cwasi_calls_total{{{line}"));
            if let Ok(Some(read)) = sample(&LINE[..cut]) {
                prop_assert_eq!((read.series, read.value), (series(), 1));
            }
        }
    }
}

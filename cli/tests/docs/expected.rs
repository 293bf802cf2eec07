//! Compares what a page says with what a command printed.

/// Stands for any text in a line, or for any lines.
const ANY: char = '…';
const UNITS: [&str; 6] = ["ns", "us", "µs", "ms", "s", "min"];
/// What the first start of a module on a node prints in addition.
const COMPILING: [&str; 2] = ["cwasi: compil", "cwasi: waiting to compile"];

/// Whether the lines of a page describe what was printed.
pub fn matches(expected: &[String], printed: &str) -> bool {
    let shown = |line: &&str| !COMPILING.iter().any(|text| line.contains(text));
    let printed: Vec<String> = printed.trim_end().lines().filter(shown).map(plain).collect();
    let expected: Vec<String> = expected.iter().map(|line| plain(line)).collect();
    lines_match(&expected, &printed)
}

fn lines_match(expected: &[String], printed: &[String]) -> bool {
    match expected.split_first() {
        None => printed.is_empty(),
        Some((line, rest)) if line.chars().eq([ANY]) => {
            (0..=printed.len()).any(|skipped| lines_match(rest, &printed[skipped..]))
        }
        Some((line, rest)) => printed
            .split_first()
            .is_some_and(|(first, others)| line_matches(line, first) && lines_match(rest, others)),
    }
}

fn line_matches(expected: &str, printed: &str) -> bool {
    let Some((start, rest)) = expected.split_once(ANY) else { return expected == printed };
    let Some(printed) = printed.strip_prefix(start) else { return false };
    let (middle, end) = rest.rsplit_once(ANY).unwrap_or(("", rest));
    let Some(mut printed) = printed.strip_suffix(end) else { return false };
    middle.split(ANY).filter(|part| !part.is_empty()).all(|part| match printed.split_once(part) {
        Some((_, after)) => {
            printed = after;
            true
        }
        None => false,
    })
}

/// A line with single spaces, and with one word for all times.
fn plain(line: &str) -> String {
    let words: Vec<String> = line.split_whitespace().map(without_time).collect();
    words.join(" ")
}

fn without_time(word: &str) -> String {
    let around = |c: char| "(),;:".contains(c);
    let time = word.trim_matches(around);
    let number = time.trim_end_matches(|c: char| c.is_alphabetic());
    let unit = &time[number.len()..];
    let is_number = number.chars().all(|c| c.is_ascii_digit() || c == '.');
    if !number.is_empty() && is_number && UNITS.contains(&unit) {
        word.replacen(time, "TIME", 1)
    } else {
        word.to_owned()
    }
}

#[cfg(test)]
mod tests {
    fn matches(expected: &str, printed: &str) -> bool {
        let lines: Vec<_> = expected.lines().map(str::to_owned).collect();
        super::matches(&lines, printed)
    }

    #[test]
    fn times_and_columns_may_differ_and_nothing_else() {
        assert!(matches("a  2  741us (2.3ms)", "a 2    1.2s   (80us)\n"));
        assert!(!matches("a 2 741us", "a 3 741us"));
        assert!(!matches("a 2 741us", "a 2 741"));
        assert!(!matches("a", "a\nb"));
        assert!(!matches("a\nb", "a"));
    }

    #[test]
    fn dots_stand_for_text_and_for_lines() {
        assert!(matches("sha256:… is it", "sha256:ab12 is it"));
        assert!(!matches("sha256:… is it", "sha256:ab12 is not"));
        assert!(matches("a … c … e", "a b c d e"));
        assert!(!matches("a … c … e", "a b d e"));
        assert!(!matches("ab…ba", "aba"));
        assert!(matches("a\n…\nd", "a\nb\nc\nd") && matches("a\n…", "a"));
        assert!(!matches("a\n…\nd", "a\nb\nc"));
    }

    #[test]
    fn lines_about_compiling_are_not_compared() {
        assert!(matches("Hello", "cwasi: compiling /greeter.wasm\nHello"));
        assert!(matches("Hello", "cwasi: waiting to compile /greeter.wasm: no turn\nHello"));
    }
}

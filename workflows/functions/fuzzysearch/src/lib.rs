//! Finds the lines of a text on a web server that are similar to a phrase: their numbers, sorted.

use function::{Query, client, failed, variable};
use simsearch::SimSearch;

/// Largest text in bytes.
const TEXT_MAX: u64 = 16 << 20;

/// The function: `search` is the phrase, the environment variable `TEXT_URL` the text's address.
///
/// # Errors
/// When one of them is missing, or the server does not answer with a text.
pub fn answer(query: &Query) -> Result<String, String> {
    let phrase = query.text("search")?;
    let url = variable("TEXT_URL")?;
    let mut response = client().get(&url).call().map_err(failed(&url))?;
    let text = response.body_mut().with_config().limit(TEXT_MAX).read_to_string();
    Ok(similar(&text.map_err(failed(&url))?, phrase))
}

fn similar(text: &str, phrase: &str) -> String {
    let mut engine = SimSearch::new();
    for (number, line) in (1_usize..).zip(text.lines()) {
        engine.insert(number, line);
    }
    let mut lines: Vec<usize> = engine.search(phrase);
    lines.sort_unstable();
    format!("{lines:?}")
}

function::export!(answer);

#[cfg(test)]
mod tests {
    #[test]
    fn lines_with_the_phrase_are_found_in_their_order() {
        let text = "Enter Hamlet\nThe rest is silence\nExeunt\nGood night, sweet prince Hamlet";
        assert_eq!(super::similar(text, "Hamlet"), "[1, 4]");
    }
}

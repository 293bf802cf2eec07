//! Recognizes the language of a text.

use function::Query;

/// The function: `text` is the text.
///
/// # Errors
/// When it is missing, or no language is recognized.
pub fn answer(query: &Query) -> Result<String, String> {
    let text = query.text("text")?;
    let language = whatlang::detect_lang(text);
    let language = language.ok_or_else(|| format!("the language of `{text}` is unknown"))?;
    Ok(format!("<i>{text}</i> = <b>{}</b>", language.eng_name()))
}

function::export!(answer);

#[cfg(test)]
mod tests {
    use function::Query;

    #[test]
    fn english_is_recognized_and_digits_are_not() {
        let answer = |query: &str| super::answer(&Query::read(query));
        let text = "The quick brown fox jumps over the lazy dog";
        assert_eq!(answer(&format!("text={text}")), Ok(format!("<i>{text}</i> = <b>English</b>")));
        assert!(answer("text=123").is_err());
        assert!(answer("").is_err());
    }
}

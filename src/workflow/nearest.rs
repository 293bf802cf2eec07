//! The known word that a user may have meant.

/// Likeness (Jaro and Winkler's, from 0 to 1) above which a word is worth to be named.
const LIKENESS_MIN: f64 = 0.8;

/// The known word that is most like `word`, whatever its case; `None` if none is like it.
pub fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let likeness = |known: &str| strsim::jaro_winkler(&known.to_lowercase(), &word.to_lowercase());
    let all = known.into_iter().map(|known| (likeness(known), known));
    let best = all.max_by(|(a, _), (b, _)| a.total_cmp(b));
    best.filter(|(likeness, _)| *likeness > LIKENESS_MIN).map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_like_none_has_no_nearest() {
        let known = ["timeout", "trace", "trust"];
        assert_eq!(nearest("Timout", known), Some("timeout"));
        assert_eq!(nearest("<<", known), None);
        assert_eq!(nearest("", known), None);
        assert_eq!(nearest("a", []), None);
        assert_eq!(nearest("nobody", ["shop.front", "front"]), None);
        assert_eq!(nearest("frnt", ["shop.front", "front"]), Some("front"));
    }
}

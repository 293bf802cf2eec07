//! The text of an error with everything that caused it.

use std::error::Error;

/// An error and its sources as one sentence; a source that its wrapper repeats is said once.
#[must_use]
pub fn cause_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let part = source.to_string();
        if !text.contains(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        next = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: &'static str,
        source: Option<Box<Layer>>,
    }

    #[test]
    fn a_chain_names_each_cause_once() {
        let layers = ["no such thing", "wrapped: no such thing", "container a cannot be started"];
        let error =
            layers.into_iter().fold(None, |source, text| Some(Box::new(Layer { text, source })));
        assert_eq!(
            cause_chain(&*error.unwrap()),
            "container a cannot be started: wrapped: no such thing"
        );
    }
}

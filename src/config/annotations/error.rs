//! Errors of annotations. Runs in processes of the host.

use std::fmt;

/// Most problems in one message.
const PROBLEMS_MAX: usize = 32;

/// All problems of a container's annotations.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct AnnotationError {
    /// One text for each problem.
    pub problems: Vec<String>,
}

impl fmt::Display for AnnotationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.problems[..self.problems.len().min(PROBLEMS_MAX)];
        write!(f, "bad annotations: {}", shown.join("; "))?;
        match self.problems.len() - shown.len() {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

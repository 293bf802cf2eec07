//! Groups that a run has measured, in files, so that a later run of the same revision goes on after them.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::exhibit::Exhibit;

/// The measured groups of one revision, engine build and effort.
pub struct Kept {
    folder: PathBuf,
    /// What has to be the same: revision, effort, sides.
    of: String,
}

/// A measured group.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// What else used the machine, in a sentence.
    pub machine: String,
    pub exhibits: Vec<Exhibit>,
}

#[derive(Serialize, Deserialize)]
struct Record {
    of: String,
    group: Measured,
}

impl Kept {
    #[must_use]
    pub fn new(folder: PathBuf, of: String) -> Self {
        Self { folder, of }
    }

    /// What was measured of a group before, if it was of the same.
    ///
    /// # Errors
    /// When its file is there and cannot be read.
    pub fn read(&self, group: &str) -> Result<Option<Measured>> {
        let file = self.file(group);
        let bytes = match fs::read(&file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            read => read.with_context(|| file.display().to_string())?,
        };
        let record: Record = serde_json::from_slice(&bytes)
            .with_context(|| format!("{}: delete it to measure again", file.display()))?;
        Ok((record.of == self.of).then_some(record.group))
    }

    /// Keeps a group, in the place of an earlier one. A run that ends in the middle leaves a whole file or none.
    ///
    /// # Errors
    /// When the folder cannot be written to.
    pub fn write(&self, group: &str, measured: Measured) -> Result<()> {
        let (file, record) = (self.file(group), Record { of: self.of.clone(), group: measured });
        let part = file.with_extension("part");
        fs::create_dir_all(&self.folder).with_context(|| self.folder.display().to_string())?;
        fs::write(&part, serde_json::to_vec(&record)?)
            .with_context(|| part.display().to_string())?;
        fs::rename(&part, &file).with_context(|| file.display().to_string())
    }

    fn file(&self, group: &str) -> PathBuf {
        self.folder.join(format!("{}.json", group.replace([' ', '/'], "-")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exhibit::Form;
    use crate::series::Series;

    #[test]
    fn a_group_comes_back_as_it_was_if_it_is_of_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let kept = |of: &str| Kept::new(folder.path().join("kept"), of.to_owned());
        assert_eq!(kept("a").read("cold starts").unwrap(), None);
        let samples = vec![0.1 + 0.2, 1e-9, 3.0];
        let exhibit =
            Exhibit::new("wow-io", Form::Lines, "how", vec![Series::new("a", 1, "ms", samples)])
                .published(&[("Docker", "1", 869.0)])
                .tested("a")
                .bounded(&["a".to_owned()]);
        let measured = || Measured { machine: "quiet".to_owned(), exhibits: vec![exhibit.clone()] };
        kept("a").write("cold starts", measured()).unwrap();
        assert_eq!(kept("a").read("cold starts").unwrap(), Some(measured()));
        assert_eq!(kept("b").read("cold starts").unwrap(), None);
        fs::write(folder.path().join("kept/cold-starts.json"), "{").unwrap();
        let error = format!("{:#}", kept("a").read("cold starts").unwrap_err());
        assert!(error.contains("cold-starts.json: delete it"), "{error}");
    }
}

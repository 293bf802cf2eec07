//! The folder with the first inputs of all targets.

use std::error::Error;
use std::fs;
use std::path::PathBuf;

pub type Outcomes<T> = Result<T, Box<dyn Error>>;

/// The folder with the inputs of all targets.
pub struct Corpus(pub PathBuf);

impl Corpus {
    pub fn add(&self, target: &str, name: &str, bytes: impl AsRef<[u8]>) -> Outcomes<()> {
        let folder = self.0.join(target);
        fs::create_dir_all(&folder)?;
        Ok(fs::write(folder.join(name), bytes)?)
    }
}

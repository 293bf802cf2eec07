//! Settings of functions' logs: the table `[logs]` of the node's configuration, and the log URIs that say the same to
//! the shim: `file:///PATH?max-size=BYTES&max-files=N`. A file that would grow over its bound becomes `PATH.1`, as a
//! kubelet rotates the logs of pods.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use url::Url;

use super::{compile, values};

/// Most files of one log, so that readers find them by their names.
pub const FILES_MAX: u32 = 32;
/// Smallest bound of a file in bytes: a pipe's content fits.
const SIZE_MIN: u64 = 64 << 10;
/// Largest bound of a file in bytes.
const SIZE_MAX: u64 = 1 << 40;
/// Keys of a log URI.
const SIZE_KEY: &str = "max-size";
const FILES_KEY: &str = "max-files";

/// Settings of functions' logs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct LogsConfig {
    /// Folder of the logs that `cwasi` makes; `None` = [`NodeConfig::logs_dir`](super::NodeConfig::logs_dir) chooses.
    pub dir: Option<PathBuf>,
    /// Largest file in bytes.
    #[serde(deserialize_with = "compile::size")]
    pub max_size: u64,
    /// Most files of one log.
    pub max_files: u32,
}

impl Default for LogsConfig {
    fn default() -> Self {
        Self { dir: None, max_size: 10 << 20, max_files: 3 }
    }
}

impl LogsConfig {
    /// Checks the values.
    ///
    /// # Errors
    /// The fault, for the user.
    pub(super) fn validate(&self) -> Result<(), String> {
        if let Some(dir) = self.dir.as_ref().filter(|dir| !dir.is_absolute()) {
            return Err(format!("logs.dir = {dir:?} must be an absolute path"));
        }
        self.rotation().validate().map_err(|problem| format!("logs: {problem}"))
    }

    const fn rotation(&self) -> Rotation {
        Rotation { max_size: self.max_size, max_files: self.max_files }
    }

    /// The URI of a log at this absolute path.
    #[must_use]
    pub fn uri(&self, path: &Path) -> String {
        let Ok(mut url) = Url::from_file_path(path) else {
            return format!("file://{}", path.display());
        };
        url.query_pairs_mut()
            .append_pair(SIZE_KEY, &self.max_size.to_string())
            .append_pair(FILES_KEY, &self.max_files.to_string());
        url.into()
    }
}

/// Bounds of one log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// Largest file in bytes.
    pub max_size: u64,
    /// Most files, that which is written included.
    pub max_files: u32,
}

impl Rotation {
    /// What a log URI's query asks for; `None` if it does not speak of rotation.
    ///
    /// # Errors
    /// The fault, for the user.
    pub fn of_query(query: &[(String, String)]) -> Result<Option<Self>, String> {
        let value = |wanted| query.iter().rfind(|(key, _)| key == wanted).map(|(_, value)| value);
        let (size, files) = (value(SIZE_KEY), value(FILES_KEY));
        if size.is_none() && files.is_none() {
            return Ok(None);
        }
        let mut rotation = LogsConfig::default().rotation();
        if let Some(size) = size {
            rotation.max_size = values::size(size, SIZE_MAX)
                .map_err(|problem| format!("{SIZE_KEY}={size} {problem}"))?;
        }
        if let Some(files) = files {
            rotation.max_files =
                files.parse().map_err(|_| format!("{FILES_KEY}={files} is no number"))?;
        }
        rotation.validate()?;
        Ok(Some(rotation))
    }

    fn validate(self) -> Result<(), String> {
        let Self { max_size, max_files } = self;
        if !(SIZE_MIN..=SIZE_MAX).contains(&max_size) {
            return Err(format!(
                "the largest size of a file, {max_size}, must be at least {SIZE_MIN} bytes"
            ));
        }
        if !(1..=FILES_MAX).contains(&max_files) {
            return Err(format!(
                "the number of files, {max_files}, must be between 1 and {FILES_MAX}"
            ));
        }
        Ok(())
    }
}

/// A log's file with this number: 0 is that which is written, larger ones are older.
#[must_use]
pub fn numbered(path: &Path, number: u32) -> PathBuf {
    if number == 0 {
        return path.to_owned();
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str) -> Result<Option<Rotation>, String> {
        let url = Url::parse(&format!("file:///l?{text}")).unwrap();
        let pairs: Vec<_> =
            url.query_pairs().map(|(key, value)| (key.into_owned(), value.into_owned())).collect();
        Rotation::of_query(&pairs)
    }

    #[test]
    fn a_uri_says_what_the_settings_say() {
        let logs = LogsConfig { max_size: 1 << 20, max_files: 2, dir: None };
        let uri = logs.uri(Path::new("/var/log/a b?c"));
        assert_eq!(uri, "file:///var/log/a%20b%3Fc?max-size=1048576&max-files=2");
        let url = Url::parse(&uri).unwrap();
        assert_eq!(url.to_file_path(), Ok(PathBuf::from("/var/log/a b?c")));
        assert_eq!(query(url.query().unwrap()), Ok(Some(logs.rotation())));
    }

    #[test]
    fn queries_are_checked() {
        assert_eq!(query("id=web"), Ok(None));
        let size = |max_size| Ok(Some(Rotation { max_size, max_files: 3 }));
        assert_eq!(query("max-size=1MiB"), size(1 << 20));
        assert_eq!(query("max-files=3"), size(10 << 20));
        for wrong in ["max-size=1", "max-size=much", "max-files=0", "max-files=33", "max-files=-1"]
        {
            assert!(query(wrong).is_err(), "{wrong}");
        }
    }
}

//! Settings of the node: where state and cache live, its name.
//!
//! One TOML document, from the first of: the runtime options' `config_body`, their `config_path`, the file
//! that `CWASI_CONFIG` names, `/etc/cwasi/config.toml`, defaults.

use std::env;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::compile::CompileConfig;

/// Variable that names a configuration file.
pub const CONFIG_VARIABLE: &str = "CWASI_CONFIG";
/// Configuration file of a node that says nothing else.
pub const CONFIG_FILE: &str = "/etc/cwasi/config.toml";
/// Longest state directory in bytes: a receiver's socket below it must fit into `sun_path` (108 bytes).
pub const STATE_DIR_MAX: usize = 64;

/// The configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NodeConfigError {
    /// The file cannot be read.
    #[error("configuration file {path} cannot be read: {source}", path = path.display())]
    Read {
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is not what it should be.
    #[error("configuration from {origin} is not valid: {message}")]
    Invalid {
        /// Where it came from.
        origin: String,
        /// What is wrong.
        message: String,
    },
}

/// `redis://[user:password@]host[:port][/db]` or `rediss://…`. It may hold a password, so it prints as nothing
/// and is written only into the group's own state, which root alone can read.
#[derive(Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct RedisUrl(String);

impl RedisUrl {
    /// The URL itself, for the connection and for nothing else.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RedisUrl(…)")
    }
}

/// Settings of the node.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct NodeConfig {
    /// Sockets, registry and records; on a tmpfs, absolute, at most [`STATE_DIR_MAX`] bytes.
    pub state_dir: PathBuf,
    /// Compiled modules; survives a reboot, absolute.
    pub cache_dir: PathBuf,
    /// Name of this node; empty = its host name.
    pub node: String,
    /// Trust groups (`cwasi.trust`) that may span Kubernetes namespaces.
    pub trust_groups: Vec<String>,
    /// Filter of the shim's log, as `tracing` spells it.
    pub log: String,
    /// Where nodes meet for the networked buffer; `None` = this node has neighbours of its own only.
    pub redis_url: Option<RedisUrl>,
    /// Certificates that a `rediss://` server may be signed by, as a PEM file; `None` = the system's.
    pub redis_ca: Option<PathBuf>,
    /// Limits of compiling modules.
    pub compile: CompileConfig,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            state_dir: PathBuf::from("/run/cwasi"),
            cache_dir: PathBuf::from("/var/lib/cwasi"),
            node: String::new(),
            trust_groups: Vec::new(),
            log: "info".to_owned(),
            redis_url: None,
            redis_ca: None,
            compile: CompileConfig::default(),
        }
    }
}

impl NodeConfig {
    /// The node's configuration; `body` and `path` are those of the runtime options.
    ///
    /// # Errors
    /// When the source that counts cannot be read or is not valid.
    pub fn load(body: Option<&str>, path: Option<&Path>) -> Result<Self, NodeConfigError> {
        if let Some(body) = body.filter(|body| !body.trim().is_empty()) {
            return Self::parse(body, "the runtime options");
        }
        if let Some(path) = path.filter(|path| !path.as_os_str().is_empty()) {
            return Self::read(path);
        }
        if let Some(path) = env::var_os(CONFIG_VARIABLE).filter(|path| !path.is_empty()) {
            return Self::read(Path::new(&path));
        }
        match Self::read(Path::new(CONFIG_FILE)) {
            Err(NodeConfigError::Read { source, .. })
                if source.kind() == io::ErrorKind::NotFound =>
            {
                Ok(Self::default())
            }
            other => other,
        }
    }

    fn read(path: &Path) -> Result<Self, NodeConfigError> {
        let text = fs::read_to_string(path)
            .map_err(|source| NodeConfigError::Read { path: path.to_owned(), source })?;
        Self::parse(&text, &path.display().to_string())
    }

    fn parse(text: &str, origin: &str) -> Result<Self, NodeConfigError> {
        let invalid =
            |message: String| NodeConfigError::Invalid { origin: origin.to_owned(), message };
        // Without the parser's quotation of the line, which may be the one with the password.
        let config: Self = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| text[..span.start].lines().count().max(1));
            invalid(format!("line {line}: {}", error.message()))
        })?;
        for (key, dir) in [("state_dir", &config.state_dir), ("cache_dir", &config.cache_dir)] {
            if !dir.is_absolute() {
                return Err(invalid(format!("{key} = {dir:?} must be an absolute path")));
            }
        }
        config.compile.validate().map_err(invalid)?;
        if config.state_dir.as_os_str().len() > STATE_DIR_MAX {
            return Err(invalid(format!(
                "state_dir = {:?} is longer than {STATE_DIR_MAX} bytes; socket paths below it would not fit",
                config.state_dir
            )));
        }
        let schemes = ["redis://", "rediss://"];
        if let Some(url) = &config.redis_url
            && !schemes.iter().any(|scheme| url.reveal().starts_with(scheme))
        {
            return Err(invalid("redis_url must begin with redis:// or rediss://".to_owned()));
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_counts_and_defaults_fill_it() {
        let config = NodeConfig::load(Some("state_dir = \"/run/x\""), None).unwrap();
        assert_eq!(config.state_dir, Path::new("/run/x"));
        assert_eq!(config.cache_dir, NodeConfig::default().cache_dir);
    }

    #[test]
    fn sizes_are_words_or_numbers_and_survive_the_groups_copy() {
        let body = "[compile]\njobs = 3\nmemory = \"1GiB\"\nfunction_size = 4096";
        let config = NodeConfig::load(Some(body), None).unwrap();
        let compile = &config.compile;
        assert_eq!((compile.jobs, compile.memory, compile.function_size), (3, 1 << 30, 4096));
        let copy = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<NodeConfig>(&copy).unwrap(), config);
    }

    #[test]
    fn bad_documents_say_what_to_do() {
        for (body, part) in [
            ("stat_dir = \"/x\"", "state_dir"),
            ("state_dir = \"x\"", "absolute"),
            ("redis_url = \"h:6379\"", "redis://"),
            ("[compile]\ncpus = 1", "unknown field `cpus`"),
            ("[compile]\nmemory = \"much\"", "`much` is no size such as"),
            ("[compile]\nmemory = 0", "larger than zero"),
            ("[compile]\nlocals = 0", "compile.locals must be larger than zero"),
            ("[compile]\ncgroup = \"../x\"", "compile.cgroup"),
        ] {
            let error = NodeConfig::load(Some(body), None).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        for body in
            ["redis_url = redis://u:secret@h", "redis_url = [\"secret\"]", "redis_url = \"secret\""]
        {
            let error = NodeConfig::load(Some(body), None).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
        }
        let config = NodeConfig::load(Some("redis_url = \"redis://u:secret@h\""), None).unwrap();
        assert!(!format!("{config:?}").contains("secret"));
        let long = format!("state_dir = \"/{}\"", "x".repeat(80));
        assert!(NodeConfig::load(Some(&long), None).unwrap_err().to_string().contains("64 bytes"));
        assert!(NodeConfig::load(None, Some(Path::new("/does/not/exist"))).is_err());
    }
}

//! The node's settings. Runs in launcher and shim daemon.
//!
//! One TOML document, from the first of: the runtime options' `config_body`, their `config_path`, the file that
//! `CWASI_CONFIG` names, `/etc/cwasi/config.toml`, defaults. runc's options (`SystemdCgroup`, `ShimCgroup`) in the body
//! override the document. A body with only these is no document: the next source counts.

use std::env;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::cgroup::{self, CgroupDriver, RuncOptions};
use super::compile::CompileConfig;
use super::engine::{DEFAULT_ENGINE, Engine};
use super::http::HttpConfig;
use super::link::{self, LINK_LISTEN, LinkMode, LinkPeer};
use super::logs::LogsConfig;
use super::messages::MessagesConfig;
use super::regular_file;
use super::traces::TracesConfig;
use super::triggers::TriggersConfig;
use super::workers::{WORKERS_MAX_DEFAULT, Workers};

/// Environment variable with the path of a configuration file.
pub const CONFIG_VARIABLE: &str = "CWASI_CONFIG";
/// Default configuration file.
pub const CONFIG_FILE: &str = "/etc/cwasi/config.toml";

/// The configuration file of this process: the one that `CWASI_CONFIG` names, or else [`CONFIG_FILE`].
#[must_use]
pub fn config_file() -> PathBuf {
    named_file().unwrap_or_else(|| PathBuf::from(CONFIG_FILE))
}

/// The file that `CWASI_CONFIG` names. It must exist; the default one need not.
#[must_use]
pub fn named_file() -> Option<PathBuf> {
    env::var_os(CONFIG_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Default state directory, which a restart of the machine empties.
const STATE_DIR: &str = "/run/cwasi";
/// Default folder of logs: on a disk, so that no log takes the memory in which the state lives.
const LOGS_DIR: &str = "/var/log/cwasi";
/// Folder of logs in a state directory that is not the default one.
const LOGS: &str = "logs";

/// Origin of a body, for errors.
const OPTIONS: &str = "the runtime options";
/// Longest state directory in bytes: a receiver's socket below it must fit into `sun_path` (108 bytes).
pub const STATE_DIR_MAX: usize = 64;

/// The node's configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NodeConfigError {
    /// The file is unreadable.
    #[error("configuration file {path} cannot be read: {source}", path = path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("configuration from {origin} is not valid: {message}")]
    Invalid {
        /// Origin of the document.
        origin: String,
        message: String,
    },
}

/// `redis://[user:password@]host[:port][/db]` or `rediss://…`. It may hold a password, so `Debug` hides it, and only
/// files that root alone can read contain it.
#[derive(Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct RedisUrl(String);

impl RedisUrl {
    /// The URL, only for the connection.
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
    /// Engine of functions without `cwasi.engine`.
    pub engine: Engine,
    /// Most workers of a function without `cwasi.concurrency`.
    pub workers_max: u32,
    /// Trust groups (`cwasi.trust`) that may span Kubernetes namespaces.
    pub trust_groups: Vec<String>,
    /// Filter of the shim's log, in the syntax of `tracing`.
    pub log: String,
    /// Server of the networked buffer; `None` = calls stay on this host.
    pub redis_url: Option<RedisUrl>,
    /// PEM file of certificates that may sign the server's; `None` = the system's.
    pub redis_ca: Option<PathBuf>,
    /// Path of calls to other hosts.
    pub link: LinkMode,
    /// Where the node takes direct connections.
    pub link_listen: SocketAddr,
    /// `host:port` at which others reach that; `None` = the address from which the node reaches Redis.
    pub link_advertise: Option<String>,
    /// File of the node's key, absolute; `None` = one in `state_dir`, which a reboot removes.
    pub link_key: Option<PathBuf>,
    /// PEM files of an operator's PKI: the authorities of all nodes, and the node's certificate.
    pub link_ca: Option<PathBuf>,
    pub link_cert: Option<PathBuf>,
    /// Nodes that are reached without Redis.
    pub link_peers: Vec<LinkPeer>,
    /// Creator of containers' cgroups. runc's option `SystemdCgroup` overrides it.
    pub cgroup_driver: CgroupDriver,
    /// Cgroup of shim daemons and zygotes, below the root of each hierarchy; empty = containerd's. runc's option
    /// `ShimCgroup` overrides it.
    pub shim_cgroup: String,
    /// Limits of compiling modules.
    pub compile: CompileConfig,
    /// Heads and idle connections.
    pub http: HttpConfig,
    pub logs: LogsConfig,
    /// Limits of one-way messages.
    pub messages: MessagesConfig,
    /// Recording and export of traces.
    pub traces: TracesConfig,
    /// Streams and channels of Redis that functions may have as triggers.
    pub triggers: TriggersConfig,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            state_dir: PathBuf::from(STATE_DIR),
            cache_dir: PathBuf::from("/var/lib/cwasi"),
            node: String::new(),
            engine: DEFAULT_ENGINE,
            workers_max: WORKERS_MAX_DEFAULT,
            trust_groups: Vec::new(),
            log: "info".to_owned(),
            redis_url: None,
            redis_ca: None,
            link: LinkMode::default(),
            link_listen: LINK_LISTEN,
            link_advertise: None,
            link_key: None,
            link_ca: None,
            link_cert: None,
            link_peers: Vec::new(),
            cgroup_driver: CgroupDriver::default(),
            shim_cgroup: String::new(),
            compile: CompileConfig::default(),
            http: HttpConfig::default(),
            logs: LogsConfig::default(),
            messages: MessagesConfig::default(),
            traces: TracesConfig::default(),
            triggers: TriggersConfig::default(),
        }
    }
}

impl NodeConfig {
    /// Loads the node's configuration. `body` and `path` come from the runtime options.
    ///
    /// # Errors
    /// When the chosen source cannot be read or is invalid.
    pub fn load(body: Option<&str>, path: Option<&Path>) -> Result<Self, NodeConfigError> {
        let (runc, body) = match body.map(RuncOptions::take_from).transpose().map_err(in_options)? {
            Some((runc, rest)) => (runc, rest),
            None => (RuncOptions::default(), None),
        };
        Self::from_first(body.as_deref(), path)?.with(&runc)
    }

    /// Overrides settings by runc's options.
    ///
    /// # Errors
    /// When an option's value is invalid.
    pub fn with(mut self, runc: &RuncOptions) -> Result<Self, NodeConfigError> {
        match runc.systemd_cgroup {
            Some(true) => self.cgroup_driver = CgroupDriver::Systemd,
            Some(false) => self.cgroup_driver = CgroupDriver::Cgroupfs,
            None => {}
        }
        if let Some(path) = &runc.shim_cgroup {
            cgroup::check_shim_cgroup(path).map_err(in_options)?;
            self.shim_cgroup.clone_from(path);
        }
        Ok(self)
    }

    /// Folder of functions' logs: that of `[logs]`, or else `/var/log/cwasi`, and for a state directory of one's own a
    /// folder in it.
    #[must_use]
    pub fn logs_dir(&self) -> PathBuf {
        match &self.logs.dir {
            Some(dir) => dir.clone(),
            None if self.state_dir == Path::new(STATE_DIR) => PathBuf::from(LOGS_DIR),
            None => self.state_dir.join(LOGS),
        }
    }

    fn from_first(body: Option<&str>, path: Option<&Path>) -> Result<Self, NodeConfigError> {
        if let Some(body) = body.filter(|body| !body.trim().is_empty()) {
            return Self::parse(body, OPTIONS);
        }
        if let Some(path) = path.filter(|path| !path.as_os_str().is_empty()) {
            return Self::read(path);
        }
        if let Some(path) = named_file() {
            return Self::read(&path);
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
        let text = regular_file::read_to_string(path)
            .map_err(|source| NodeConfigError::Read { path: path.to_owned(), source })?;
        Self::parse(&text, &path.display().to_string())
    }

    fn parse(text: &str, origin: &str) -> Result<Self, NodeConfigError> {
        let invalid =
            |message: String| NodeConfigError::Invalid { origin: origin.to_owned(), message };
        // The parser's own message would quote the line, which may contain the password.
        let config: Self = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
            invalid(format!("line {line}: {}", error.message()))
        })?;
        for (key, dir) in [("state_dir", &config.state_dir), ("cache_dir", &config.cache_dir)] {
            if !dir.is_absolute() {
                return Err(invalid(format!("{key} = {dir:?} must be an absolute path")));
            }
        }
        Workers::check_max(config.workers_max).map_err(invalid)?;
        config.compile.validate().map_err(invalid)?;
        config.http.validate().map_err(invalid)?;
        config.logs.validate().map_err(invalid)?;
        config.messages.validate().map_err(invalid)?;
        config.triggers.validate().map_err(invalid)?;
        cgroup::check_shim_cgroup(&config.shim_cgroup).map_err(invalid)?;
        link::check(&config).map_err(invalid)?;
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

fn in_options(message: String) -> NodeConfigError {
    NodeConfigError::Invalid { origin: OPTIONS.to_owned(), message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runcs_options_count_beside_the_document() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("n.toml");
        std::fs::write(&file, "node = \"edge\"\nshim_cgroup = \"/a\"").unwrap();
        let alone = NodeConfig::load(Some("SystemdCgroup = true\n"), Some(&file)).unwrap();
        assert_eq!(alone.cgroup_driver, CgroupDriver::Systemd);
        assert_eq!((alone.node.as_str(), alone.shim_cgroup.as_str()), ("edge", "/a"));
        let body = "SystemdCgroup = false\nShimCgroup = \"/b\"\ncgroup_driver = \"systemd\"";
        let beside = NodeConfig::load(Some(body), Some(&file)).unwrap();
        assert_eq!(beside.cgroup_driver, CgroupDriver::Cgroupfs);
        assert_eq!((beside.node.as_str(), beside.shim_cgroup.as_str()), ("", "/b"));
        let own = NodeConfig::load(Some("cgroup_driver = \"systemd\""), None).unwrap();
        assert_eq!(own.cgroup_driver, CgroupDriver::Systemd);
    }

    #[test]
    fn a_body_counts_and_defaults_fill_it() {
        let config = NodeConfig::load(Some("state_dir = \"/run/x\""), None).unwrap();
        assert_eq!(config.state_dir, Path::new("/run/x"));
        assert_eq!(config.cache_dir, NodeConfig::default().cache_dir);
    }

    #[test]
    fn a_node_names_its_engine() {
        for engine in Engine::ALL {
            let body = format!("engine = \"{engine}\"");
            assert_eq!(NodeConfig::load(Some(&body), None).unwrap().engine, engine);
        }
    }

    #[test]
    fn sizes_survive_the_groups_copy() {
        let body = "[compile]\njobs = 3\nmemory = \"1GiB\"\nfunction_size = 4096\n[traces]\nsample = 1\n\
                    otlp = \"http://c\"";
        let config = NodeConfig::load(Some(body), None).unwrap();
        let compile = &config.compile;
        assert_eq!((compile.jobs, compile.memory, compile.function_size), (3, 1 << 30, 4096));
        let copy = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<NodeConfig>(&copy).unwrap(), config);
    }

    #[test]
    fn the_documentation_has_every_key() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let page = std::fs::read_to_string(docs.join("operating.md")).unwrap();
        let section = page.split("\n## ").find(|part| part.starts_with("The node's configuration"));
        // The first column of all tables: keys, and tables of keys in brackets.
        let rows: Vec<&str> = section
            .unwrap()
            .lines()
            .filter_map(|line| line.strip_prefix("| ")?.split_once(" |"))
            .flat_map(|(keys, _)| keys.split(", "))
            .filter_map(|key| key.strip_prefix('`')?.strip_suffix('`'))
            .collect();
        let config = serde_json::to_value(NodeConfig::default()).unwrap();
        let mut known = Vec::new();
        for (key, value) in config.as_object().unwrap() {
            known.push(key.clone());
            let Some(table) = value.as_object() else {
                assert!(rows.contains(&key.as_str()), "docs/operating.md lacks {key}");
                continue;
            };
            assert!(rows.contains(&format!("[{key}]").as_str()), "docs/operating.md lacks [{key}]");
            known.extend(table.keys().cloned());
            // A page of its own may have the table's keys.
            let own = std::fs::read_to_string(docs.join("tracing.md")).unwrap_or_default();
            for key in table.keys() {
                let row = format!("| `{key}`");
                let is_documented = rows.contains(&key.as_str()) || own.contains(&row);
                assert!(is_documented, "no table of the documentation has {key}");
            }
        }
        // The drivers of cgroups have a table of their own.
        let keys = rows.iter().filter(|key| !["cgroupfs", "systemd"].contains(*key));
        for key in keys.filter(|key| key.chars().all(|c| c.is_ascii_lowercase() || c == '_')) {
            assert!(known.iter().any(|known| known == key), "there is no key {key}");
        }
    }

    #[test]
    fn bad_documents_say_what_to_do() {
        for (body, part) in [
            ("stat_dir = \"/x\"", "state_dir"),
            ("state_dir = \"x\"", "absolute"),
            ("redis_url = \"h:6379\"", "redis://"),
            ("[traces]\nsample = 1.5", "between 0.0 and 1.0"),
            ("[traces]\notlp = \"https://c\"", "must begin with http://"),
            ("[compile]\ncpus = 1", "unknown field `cpus`"),
            ("[compile]\nmemory = \"much\"", "`much` is not a size such as"),
            ("[compile]\nmemory = 0", "larger than zero"),
            ("[compile]\nlocals = 0", "compile.locals must be larger than zero"),
            ("[http]\nmax_head = 1000", "http.max_head must be from 1024 to 65536"),
            ("[http]\nmax_head = \"65KiB\"", "http.max_head must be from 1024 to 65536"),
            ("[http]\nidle_seconds = 0", "http.idle_seconds must be from 1 to 3600"),
            ("[messages]\nwaiting_max = \"1MiB\"", "messages.waiting_max"),
            ("[messages]\nkept_days = 0", "messages.kept_days"),
            ("[triggers]\nredis = [\"orders\"]", "triggers.redis: `orders` is not NAMESPACE/NAME"),
            ("[compile]\ncgroup = \"../x\"", "compile.cgroup"),
            ("[compile]\ntrusted_keys = [\"a.pem\"]", "compile.trusted_keys has \"a.pem\""),
            ("cgroup_driver = \"cgroup\"", "systemd"),
            ("link = \"tcp\"", "expected one of `auto`, `direct`, `redis`"),
            ("link_listen = \"9470\"", "invalid socket address"),
            ("link_advertise = \"edge\"", "must be HOST:PORT"),
            ("link_key = \"link.key\"", "must be an absolute path"),
            ("link_peers = [\"edge:9470\"]", "must be HOST:PORT#KEY"),
            ("link_peers = [\"edge:9470#0123\"]", "must be HOST:PORT#KEY"),
            ("link_ca = \"ca.pem\"", "link_ca = ca.pem must be an absolute path"),
            ("engine = \"wasmer\"", "expected `wasmtime` or `wasmedge`"),
            ("shim_cgroup = \"/a/../b\"", "ShimCgroup"),
            ("ShimCgroup = \"x.slice:a:b\"", "ShimCgroup"),
            ("SystemdCgroup = \"yes\"", "true or false"),
            ("SystemdCgroup = true\nBinaryName = \"runc\"", "unknown field `BinaryName`"),
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

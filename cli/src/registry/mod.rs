//! Pushes images into registries, with the credentials that `docker login` stores.
//!
//! The layers and the configuration go first, then the manifest, byte for byte as it was built: so its digest is the one
//! that [`Image`] has, and a reader never finds a manifest without its parts.
//!
//! - `token_server`: where a registry has its tokens from, and a password goes.

mod token_server;

use std::fs::File;
use std::io::{self, BufReader};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use docker_credential::{CredentialRetrievalError, DockerCredential, get_credential_from_reader};
use oci_client::client::{ClientConfig, ClientProtocol};
use oci_client::errors::{OciDistributionError, OciEnvelope};
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, Reference, RegistryOperation};

use self::token_server::{PasswordWay, password_way};
use crate::cause;
use crate::image::{Blob, Image};

/// Longest wait for a registry's connection.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Longest wait for the next bytes of an answer.
const READ_MAX: Duration = Duration::from_secs(60);
/// Characters of a registry's answer that an error quotes.
const QUOTED_MAX: usize = 300;
/// Docker Hub's name in images, and the one under which `docker login` stores its credentials.
const DOCKER_HUB: (&str, &str) = ("docker.io", "https://index.docker.io/v1/");

/// An image is not pushed.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// A tag that only this machine understands.
    #[error("`{tag}` names no registry: use REGISTRY/NAME:TAG, such as registry.example.org/{tag}")]
    NoRegistry { tag: String },
    /// A tag that no registry understands.
    #[error("`{tag}` is no name of an image: {problem}; use REGISTRY/NAME:TAG")]
    Tag {
        tag: String,
        /// What is wrong with it.
        problem: String,
    },
    #[error("the credentials of {registry} cannot be read from {path}: {problem}", path = path.display())]
    Credentials { registry: String, path: PathBuf, problem: String },
    #[error("registry {registry} does not answer: {cause}{hint}")]
    Away {
        registry: String,
        /// What the system says.
        cause: String,
        hint: &'static str,
    },
    /// Wrong credentials, or none.
    #[error(
        "registry {registry} refuses {who}: {message}. `docker login {registry}` stores credentials in {path}",
        path = path.display()
    )]
    Denied {
        registry: String,
        /// The user, or that there is none.
        who: String,
        message: String,
        path: PathBuf,
    },
    /// A token server without TLS.
    #[error(
        "registry {registry} wants the password sent to {realm}, where others can read it on the way: not sent"
    )]
    Readable {
        registry: String,
        /// The token server's URL.
        realm: String,
    },
    #[error("registry {registry} does not take the image: {message}")]
    Refused { registry: String, message: String },
}

/// A place for one image in a registry.
pub struct Repository {
    reference: Reference,
    client: Client,
    plain_http: bool,
    auth: RegistryAuth,
    docker_config: PathBuf,
}

impl Repository {
    /// The place that `tag` (`REGISTRY/NAME:TAG`) names. `plain_http` = `None` speaks HTTP to registries on this
    /// machine and HTTPS to all others, as Docker and containerd do. May run a credential helper, and waits for it.
    ///
    /// # Errors
    /// When `tag` names no registry, or stored credentials cannot be read.
    pub fn open(tag: &str, plain_http: Option<bool>) -> Result<Self, RegistryError> {
        let reference = reference(tag)?;
        let registry = reference.registry();
        let docker_config = docker_config();
        let auth = credentials(registry, &docker_config)?;
        let plain_http = plain_http.unwrap_or_else(|| is_on_this_machine(registry));
        // Fails when another part of this process was first, which is as good.
        let _first = rustls::crypto::ring::default_provider().install_default();
        let config = ClientConfig {
            protocol: if plain_http { ClientProtocol::Http } else { ClientProtocol::Https },
            connect_timeout: Some(CONNECT_MAX),
            read_timeout: Some(READ_MAX),
            user_agent: concat!("cwasi/", env!("CARGO_PKG_VERSION")),
            ..ClientConfig::default()
        };
        let client = Client::try_from(config).map_err(|error| RegistryError::Away {
            registry: registry.to_owned(),
            cause: cause::root(&error),
            hint: "",
        })?;
        Ok(Self { reference, client, plain_http, auth, docker_config })
    }

    /// Uploads what the registry does not have of an image, and gives it its name. `warn` gets a text for the user if
    /// the password goes to another host than the registry's.
    ///
    /// # Errors
    /// When the registry does not answer, or refuses it.
    pub async fn push(
        &self,
        image: &Image,
        warn: impl FnOnce(String),
    ) -> Result<(), RegistryError> {
        let denied = |error| self.failure(error);
        self.check_password_way(warn).await?;
        self.client
            .auth(&self.reference, &self.auth, RegistryOperation::Push)
            .await
            .map_err(denied)?;
        for blob in image.layers.iter().chain([&image.config]) {
            self.upload(blob).await.map_err(denied)?;
        }
        let Blob { media_type, bytes, .. } = image.manifest.clone();
        let media_type = media_type.parse().map_err(|_| RegistryError::Refused {
            registry: self.reference.registry().to_owned(),
            message: format!("`{media_type}` is no media type"),
        })?;
        let pushed = self.client.push_manifest_raw(&self.reference, bytes, media_type).await;
        pushed.map(drop).map_err(denied)
    }

    /// A registry names the server that gets the password. It must not be readable on the way there.
    async fn check_password_way(&self, warn: impl FnOnce(String)) -> Result<(), RegistryError> {
        if !matches!(self.auth, RegistryAuth::Basic(..)) {
            return Ok(());
        }
        let registry = self.reference.registry().to_owned();
        match password_way(&self.reference, self.plain_http).await {
            Some(PasswordWay::Readable(realm)) => {
                Err(RegistryError::Readable { registry, realm: printable(&realm) })
            }
            Some(PasswordWay::To(host)) => {
                let host = printable(&host);
                warn(format!(
                    "cwasi: the password for {registry} goes to {host}, where it has its tokens from"
                ));
                Ok(())
            }
            Some(PasswordWay::Own) | None => Ok(()),
        }
    }

    async fn upload(&self, blob: &Blob) -> Result<(), OciDistributionError> {
        let digest = blob.digest();
        // A registry that does not say is asked to take it.
        if matches!(self.client.blob_exists(&self.reference, &digest).await, Ok(true)) {
            return Ok(());
        }
        self.client.push_blob(&self.reference, blob.bytes.clone(), &digest).await.map(drop)
    }

    fn failure(&self, error: OciDistributionError) -> RegistryError {
        use OciDistributionError as E;
        let registry = self.reference.registry().to_owned();
        let message = match error {
            E::RequestError(error) => {
                // TLS that the other side does not speak looks like an unreadable message.
                let hint = match (self.plain_http, error.is_connect()) {
                    (false, true) => "; for a registry without TLS, use --plain-http",
                    _ => "",
                };
                return RegistryError::Away { registry, cause: cause::root(&error), hint };
            }
            E::ServerError { code: 401 | 403, message, .. } => {
                return self.denied(&quoted(&message));
            }
            E::UnauthorizedError { .. } => return self.denied("authentication required"),
            E::AuthenticationFailure(message) => return self.denied(&quoted(&message)),
            E::ServerError { code, message, .. } => {
                let hint = match (self.plain_http, code) {
                    (true, 400) => "; for a registry with TLS, use --plain-http=false",
                    _ => "",
                };
                format!("status {code}: {}{hint}", quoted(&message))
            }
            other => other.to_string(),
        };
        RegistryError::Refused { registry, message }
    }

    fn denied(&self, message: &str) -> RegistryError {
        let who = match &self.auth {
            RegistryAuth::Basic(user, _) => format!("user {user}"),
            RegistryAuth::Bearer(_) => "the stored token".to_owned(),
            RegistryAuth::Anonymous => "a user without credentials".to_owned(),
        };
        let registry = self.reference.registry().to_owned();
        let path = self.docker_config.clone();
        RegistryError::Denied { registry, who, message: message.to_owned(), path }
    }
}

/// What a registry said: the messages of its errors, or the beginning of any other text.
fn quoted(body: &str) -> String {
    let text = match serde_json::from_str::<OciEnvelope>(body) {
        Ok(envelope) => {
            let messages = envelope.errors.into_iter().map(|error| error.message);
            messages.collect::<Vec<_>>().join(", ")
        }
        Err(_) => body.trim().to_owned(),
    };
    let text = printable(&text);
    if text.is_empty() { "it says no reason".to_owned() } else { text }
}

/// A registry's words as a terminal may have them.
fn printable(text: &str) -> String {
    text.chars().filter(|char| !char.is_control()).take(QUOTED_MAX).collect()
}

/// The tag as a registry's client reads it. Docker's rule tells a registry from a folder: a dot, a port, or
/// `localhost`.
fn reference(tag: &str) -> Result<Reference, RegistryError> {
    let wrong =
        |problem: &str| RegistryError::Tag { tag: tag.to_owned(), problem: problem.to_owned() };
    let reference = tag.parse::<Reference>().map_err(|error| wrong(&error.to_string()))?;
    let first = tag.split_once('/').map_or("", |(first, _)| first);
    if !(first.contains(['.', ':']) || first == "localhost") {
        return Err(RegistryError::NoRegistry { tag: tag.to_owned() });
    }
    if reference.digest().is_some() {
        return Err(wrong("an image that is built has no digest before"));
    }
    Ok(reference)
}

fn is_on_this_machine(registry: &str) -> bool {
    let host = registry.rsplit_once(':').map_or(registry, |(host, _port)| host);
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

fn docker_config() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".docker");
    let folder = std::env::var_os("DOCKER_CONFIG").map_or_else(home, PathBuf::from);
    folder.join("config.json")
}

/// The stored credentials of a registry; none when `docker login` stored none.
fn credentials(registry: &str, path: &std::path::Path) -> Result<RegistryAuth, RegistryError> {
    let fail = |problem: String| RegistryError::Credentials {
        registry: registry.to_owned(),
        path: path.to_owned(),
        problem,
    };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(RegistryAuth::Anonymous);
        }
        Err(error) => return Err(fail(error.to_string())),
    };
    let server = if registry == DOCKER_HUB.0 { DOCKER_HUB.1 } else { registry };
    match get_credential_from_reader(BufReader::new(file), server) {
        Ok(DockerCredential::UsernamePassword(user, password)) => {
            Ok(RegistryAuth::Basic(user, password))
        }
        // It has to be exchanged for a token, in a way that each registry defines for itself.
        Ok(DockerCredential::IdentityToken(_)) => {
            Err(fail(
                "it has an identity token; let DOCKER_CONFIG name a folder whose config.json has a `username` and a \
                 `password` or access token for this registry"
                    .to_owned(),
            ))
        }
        Err(CredentialRetrievalError::NoCredentialConfigured) => Ok(RegistryAuth::Anonymous),
        Err(CredentialRetrievalError::ConfigReadError) => {
            Err(fail("it is not Docker's configuration in JSON".to_owned()))
        }
        Err(error) => Err(fail(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_names_its_registry() {
        for (tag, registry) in [
            ("localhost/a:1", "localhost"),
            ("localhost:5000/team/a:1", "localhost:5000"),
            ("registry.example.org/a", "registry.example.org"),
            ("docker.io/team/a:1", "docker.io"),
        ] {
            assert_eq!(reference(tag).unwrap().registry(), registry, "{tag}");
        }
        for (tag, part) in [
            ("a:1", "such as registry.example.org/a:1"),
            ("team/a:1", "names no registry"),
            ("registry.example.org/A:1", "no name of an image"),
            ("", "no name of an image"),
            (&format!("example.org/a@sha256:{}", "0".repeat(64)), "no digest"),
        ] {
            let error = reference(tag).unwrap_err().to_string();
            assert!(error.contains(part), "{tag}: {error}");
        }
    }

    #[test]
    fn registries_on_this_machine_need_no_tls() {
        for registry in ["localhost", "localhost:5000", "127.0.0.1:5000", "127.1.2.3"] {
            assert!(is_on_this_machine(registry), "{registry}");
        }
        for registry in ["localhost.example.org", "10.0.0.1:5000", "registry:5000"] {
            assert!(!is_on_this_machine(registry), "{registry}");
        }
    }

    #[test]
    fn an_answer_is_quoted_without_what_a_terminal_obeys() {
        let body = r#"{"errors":[{"code":"DENIED","message":"not \u001b[2Jyours"}]}"#;
        assert_eq!(quoted(body), "not [2Jyours");
        assert_eq!(quoted(&"x".repeat(QUOTED_MAX + 1)).len(), QUOTED_MAX);
        assert_eq!(quoted(" \n"), "it says no reason");
    }

    #[test]
    fn stored_credentials_are_read_and_a_wrong_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        assert_eq!(credentials("r.io", &path).unwrap(), RegistryAuth::Anonymous);
        let write = |text: &str| std::fs::write(&path, text).unwrap();
        let hub = DOCKER_HUB.1;
        write(&format!(
            r#"{{"auths": {{"r.io": {{"auth": "YWRhOnB3"}}, "{hub}": {{"auth": "aHViOnB3"}}}}}}"#
        ));
        let basic = |user: &str| RegistryAuth::Basic(user.to_owned(), "pw".to_owned());
        assert_eq!(credentials("r.io", &path).unwrap(), basic("ada"));
        assert_eq!(credentials("docker.io", &path).unwrap(), basic("hub"));
        assert_eq!(credentials("other.io", &path).unwrap(), RegistryAuth::Anonymous);
        for (text, part) in [
            ("auths:", "not Docker's configuration"),
            (r#"{"auths": {"r.io": {"identitytoken": "t"}}}"#, "identity token; let DOCKER_CONFIG"),
            (r#"{"auths": {"r.io": {"auth": "!"}}}"#, "decode"),
            (r#"{"credHelpers": {"r.io": "of-nobody"}}"#, "helper"),
        ] {
            write(text);
            let error = credentials("r.io", &path).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("config.json"), "{text}: {error}");
        }
    }
}

//! Why signed code is not used, and why a key cannot be.

use std::path::PathBuf;

use cwasi_config::Engine;
use cwasi_config::node::config_file;
use cwasi_sys::owned_path::OwnedPathError;

/// Why a node does not use precompiled code. Each text ends a sentence of the log.
#[derive(Debug, thiserror::Error)]
pub enum PrecompiledError {
    #[error(
        "this node trusts no key: name the public key of its signer in `trusted_keys` under [compile] in the node's configuration ({file}){unusable}",
        file = config_file().display()
    )]
    NoKey {
        /// Keys that the configuration names and that cannot be used; empty for none.
        unusable: String,
    },
    #[error("its signature cannot be read: {problem}")]
    Envelope { problem: String },
    #[error(
        "none of this node's trusted keys has signed it, or its signature is damaged{unusable}"
    )]
    Signer {
        /// As in [`Self::NoKey`].
        unusable: String,
    },
    #[error("its signature was made by another version of `cwasi compile`: {problem}")]
    Statement { problem: String },
    #[error("it is of another module, sha256:{module}")]
    Module { module: String },
    #[error("it is for the engine {engine}, and this function has {wanted}")]
    Engine { engine: Engine, wanted: Engine },
    #[error("it is for {engine} {version}, and this node has {own}: compile it again")]
    Version { engine: Engine, version: String, own: String },
    #[error(
        "it was compiled with `{options}`, and this node compiles with `{own}`: compile it again"
    )]
    Options { options: String, own: String },
    #[error("it is for processors of {architecture}, and this one is {own}")]
    Architecture { architecture: String, own: String },
    #[error("it needs features that this node's processor lacks: {missing}")]
    Features { missing: String },
    #[error("it has {length} bytes, and code of more than {most} bytes is not taken")]
    TooLarge { length: u64, most: u64 },
    #[error("its code cannot be read: {problem}")]
    Code { problem: String },
    #[error("it is damaged: its bytes are not those that were signed")]
    Damaged,
}

/// A key's file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("key {path} cannot be read: {source}", path = path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// Another user may change it, or put another one in its place.
    #[error("key {path} is not used: {source}", path = path.display())]
    Owner {
        path: PathBuf,
        #[source]
        source: OwnedPathError,
    },
    #[error(
        "{path} is no public Ed25519 key in PEM: `openssl pkey -in KEY -pubout` writes that of a private key",
        path = path.display()
    )]
    Public { path: PathBuf },
    #[error(
        "an entry of trusted_keys is no public Ed25519 key in PEM, as `openssl pkey -pubout` writes it"
    )]
    Inline,
    #[error(
        "{path} is no private Ed25519 key in PEM: `openssl genpkey -algorithm ed25519 -out {path}` makes one",
        path = path.display()
    )]
    Private { path: PathBuf },
}

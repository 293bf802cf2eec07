//! `cwasi compile MODULE…`: fills the node's cache of native code, so that the first start need not; with `--sign` it
//! makes signed code for other nodes instead.
//!
//! - `native`: one module, compiled in a process of its own; `signed`: code that leaves the node.

mod native;
mod signed;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use cwasi_config::{Engine, NodeConfig, regular_file};
use cwasi_coordinator::AotCache;
use cwasi_coordinator::fingerprint::fingerprint;
use cwasi_coordinator::processor::NATIVE;
use serde_json::json;

use self::native::{Compilers, Module};
use self::signed::Signing;
use crate::arguments::{Global, SchemeArguments};
use crate::failure::{Exit, Failure};
use crate::output;

/// Arguments of the verb.
#[derive(Debug, Args)]
pub struct Compile {
    /// Engine that will run the modules; the node's if none is given
    #[arg(long, value_name = "ENGINE", value_parser = engines())]
    engine: Option<Engine>,
    /// Make files for other nodes instead of filling the cache: native code, signed with this private key (Ed25519, PEM);
    /// a node takes it if its configuration names the public key (trusted_keys)
    #[arg(long, value_name = "KEY")]
    sign: Option<PathBuf>,
    /// Processor that signed code is for: native (this machine's), or a level that other machines have, too, such as
    /// x86-64-v3; repeatable
    #[arg(long, value_name = "NAME", requires = "sign", default_value = NATIVE)]
    processor: Vec<String>,
    /// Folder for signed code; that of the module if none is given
    #[arg(short, long, value_name = "FOLDER", requires = "sign", conflicts_with = "image")]
    output: Option<PathBuf>,
    /// Compile the module of this image in containerd, and write the signed code there as an artifact that refers to the
    /// image
    #[arg(long, value_name = "IMAGE", requires = "sign", conflicts_with = "modules")]
    image: Option<String>,
    /// Push the artifact to the image's registry instead, with the credentials of `docker login`
    #[arg(long, requires = "image")]
    push: bool,
    #[command(flatten)]
    scheme: SchemeArguments,
    /// Modules
    #[arg(required_unless_present = "image", value_name = "MODULE")]
    modules: Vec<PathBuf>,
}

/// Names of engines on the command line.
fn engines() -> impl TypedValueParser<Value = Engine> {
    PossibleValuesParser::new(Engine::ALL.map(Engine::name)).try_map(|name| name.parse::<Engine>())
}

impl Compile {
    /// Compiles what is not in the cache, one module after the other.
    pub async fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        let config = NodeConfig::load(None, None)?;
        let mut compilers = Compilers::new(config, self.engine, &global.namespace)?;
        if let Some(key) = &self.sign {
            let signing = Signing::new(key, &self.processor)?;
            return match &self.image {
                Some(image) => {
                    let to = self.push.then_some(self.scheme.plain_http);
                    signing.image(image, to, &mut compilers, global).await
                }
                None => {
                    let folder = self.output.as_deref();
                    signing.files(&self.modules, folder, &mut compilers, global).await
                }
            };
        }
        let config = &compilers.config;
        let cache = AotCache::new(&config.cache_dir, fingerprint, &config.compile);
        let mut printed = Ok(());
        for path in &self.modules {
            let module = compilers.check(&read(path)?, &path.display().to_string())?;
            let Module { origin, engine, .. } = &module;
            let artifact = compilers.compile(&cache, &module, None).await?;
            let state = if artifact.compiled.is_some() { "compiled" } else { "cached" };
            let text = if global.json {
                let seconds = artifact.compiled.map(|took| took.as_secs_f64());
                let file = artifact.path;
                json!({
                    "module": origin, "engine": engine, "state": state, "seconds": seconds, "file": file,
                })
                .to_string()
            } else {
                format!("{origin} {state}")
            };
            printed = printed.and(output::line(text));
        }
        printed.map(|()| ExitCode::SUCCESS)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    regular_file::read(path)
        .with_context(|| format!("module {} cannot be read", path.display()))
        .map_err(|error| Failure::new(Exit::Missing, error))
}

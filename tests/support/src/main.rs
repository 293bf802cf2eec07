//! `cwasi-testbed`: image archives and private containerds for the tests and the demo.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use cwasi_testbed::containerd::Containerd;
use cwasi_testbed::image::{MODULE_MEDIA_TYPES, Rootfs, Start, write_module_image};
use cwasi_testbed::{guard, image_index, nodes, paths::ContainerdVersion};
use oci_spec::image::Arch;

#[derive(Parser)]
#[command(about = "Image archives and private containerds for CWASI's tests and demo")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Write an image archive with files in a root file system.
    Image {
        /// Archive to write.
        out: PathBuf,
        /// Image name.
        reference: String,
        /// A file as HOST:INSIDE.
        #[arg(long = "file", required = true)]
        files: Vec<String>,
        /// A symbolic link as TARGET:INSIDE.
        #[arg(long = "link")]
        links: Vec<String>,
        /// Architecture of the programs in it, as images name it (amd64, arm64); by default this machine's.
        #[arg(long)]
        architecture: Option<String>,
        #[command(flatten)]
        start: StartArguments,
    },
    /// Join image archives of several architectures into one with an index.
    ImageIndex {
        /// Archive to write.
        out: PathBuf,
        /// Image name.
        reference: String,
        /// The archives, one for each architecture.
        #[arg(required = true)]
        archives: Vec<PathBuf>,
    },
    /// Write an image archive whose layer is a WebAssembly module.
    ModuleImage {
        /// Archive to write.
        out: PathBuf,
        /// Image name.
        reference: String,
        /// The module.
        wasm: PathBuf,
        /// Media type of the layer.
        #[arg(long, default_value = MODULE_MEDIA_TYPES[0])]
        media_type: String,
        #[command(flatten)]
        start: StartArguments,
    },
    /// Write a module from its text (WAT).
    Assemble {
        /// The text.
        text: PathBuf,
        /// The module.
        out: PathBuf,
    },
    /// Run a command with a private containerd: CONTAINERD_ADDRESS and CWASI_CONFIG are set, its ctr is first on PATH.
    With {
        #[command(flatten)]
        fixture: BedArguments,
        /// The command.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Run a command with two nodes: the edge's containerd as for `with`, the cloud's in CWASI_CLOUD_ADDRESS and
    /// CWASI_CLOUD_BED, and a Redis that both know. Each lives in a network of its own.
    TwoNodes {
        #[command(flatten)]
        fixture: BedArguments,
        /// The nodes do not reach each other: their calls go over Redis.
        #[arg(long)]
        apart: bool,
        /// The command.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Guard a private containerd until stdin ends; what `with` and the tests start.
    #[command(hide = true)]
    Guard {
        #[command(flatten)]
        fixture: BedArguments,
        #[command(flatten)]
        extras: guard::Extras,
    },
}

#[derive(clap::Args)]
struct StartArguments {
    /// One word of the entrypoint.
    #[arg(long)]
    entrypoint: Vec<String>,
    /// One word of the default command.
    #[arg(long)]
    cmd: Vec<String>,
    /// One variable as KEY=value.
    #[arg(long)]
    env: Vec<String>,
}

#[derive(clap::Args)]
struct BedArguments {
    /// Which containerd: containerd-1.6, containerd-1.7 or containerd-2.
    #[arg(long, default_value_t = ContainerdVersion::V1_6.name().to_owned())]
    containerd: String,
    /// Folder with the runtime's programs; by default the one with this program.
    #[arg(long)]
    programs: Option<PathBuf>,
}

impl BedArguments {
    fn resolve(self) -> Result<(ContainerdVersion, PathBuf)> {
        let own = std::env::current_exe()?.parent().context("a program has a folder")?.to_owned();
        Ok((self.containerd.parse()?, self.programs.unwrap_or(own)))
    }
}

impl From<StartArguments> for Start {
    fn from(arguments: StartArguments) -> Self {
        Self { entrypoint: arguments.entrypoint, cmd: arguments.cmd, env: arguments.env }
    }
}

fn main() -> Result<ExitCode> {
    match Arguments::parse().verb {
        Verb::Image { out, reference, files, links, architecture, start } => {
            let mut rootfs = Rootfs::default();
            for file in files {
                let (host, inside) = file.split_once(':').context("--file wants HOST:INSIDE")?;
                rootfs.file(host.as_ref(), inside)?;
            }
            for link in links {
                let (target, inside) =
                    link.split_once(':').context("--link wants TARGET:INSIDE")?;
                rootfs.link(target, inside)?;
            }
            let architecture =
                architecture.map_or_else(Arch::default, |name| Arch::from(name.as_str()));
            rootfs.write_for(architecture, &reference, &start.into(), &out)?;
        }
        Verb::ImageIndex { out, reference, archives } => {
            image_index::join(&archives, &reference, &out)?;
        }
        Verb::ModuleImage { out, reference, wasm, media_type, start } => {
            write_module_image(&wasm, &media_type, &reference, &start.into(), &out)?;
        }
        Verb::Assemble { text, out } => {
            let module = wat::parse_file(&text)?;
            fs::write(&out, module).with_context(|| format!("cannot write {}", out.display()))?;
        }
        Verb::With { fixture, command } => return with(fixture, &command),
        Verb::TwoNodes { fixture, apart, command } => return two_nodes(fixture, apart, &command),
        Verb::Guard { fixture, extras } => {
            let (version, programs) = fixture.resolve()?;
            guard::serve(version, &programs, extras)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn with(fixture: BedArguments, command: &[String]) -> Result<ExitCode> {
    let (version, programs) = fixture.resolve()?;
    // Ctrl-C reaches the command too; we end after it, and the guard after us.
    guard::outlive_terminal_signals()?;
    let containerd = Containerd::start(version, &programs)?;
    let code = run(prepared(&containerd, programs, command)?);
    containerd.stop()?;
    code
}

fn two_nodes(fixture: BedArguments, apart: bool, command: &[String]) -> Result<ExitCode> {
    let (version, programs) = fixture.resolve()?;
    guard::outlive_terminal_signals()?;
    let edge = Containerd::start_linked(version, &programs)?;
    let cloud = Containerd::start_linked(version, &programs)?;
    if !apart {
        nodes::join([&edge, &cloud]);
    }
    let redis = nodes::server(&[&edge, &cloud]);
    for (node, name) in [(&edge, "edge"), (&cloud, "cloud")] {
        nodes::configure(node.ready(), name, &redis, "info");
    }
    let mut child = prepared(&edge, programs, command)?;
    child
        .env("CWASI_CLOUD_ADDRESS", cloud.ready().address())
        .env("CWASI_CLOUD_BED", &cloud.ready().dir);
    let code = run(child);
    edge.stop()?;
    cloud.stop()?;
    code
}

/// The command in the environment of a fixture.
fn prepared(containerd: &Containerd, programs: PathBuf, command: &[String]) -> Result<Command> {
    let ready = containerd.ready();
    let mut path = vec![ready.bin_dir.clone(), programs];
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    let mut child = Command::new(&command[0]);
    child
        .args(&command[1..])
        .env("PATH", std::env::join_paths(path)?)
        .env("CONTAINERD_ADDRESS", ready.address())
        .env("CWASI_CONFIG", ready.node().config())
        .env("CWASI_BED", &ready.dir);
    Ok(child)
}

fn run(mut child: Command) -> Result<ExitCode> {
    let status = child.status().with_context(|| format!("run {child:?}"))?;
    // Without a code it was killed, as by Ctrl-C.
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(130)))
}

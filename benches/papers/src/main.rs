//! `cwasi-papers`: the tables and figures of the four papers that CWASI follows, measured here (`make papers`).
//!
//! Each paper has a module with groups of measurements. A group makes [`exhibit`]s of [`series`]; the [`report`] shows
//! all of them beside the papers' numbers, in the order of the [`contents`]. Functions run in containers of a private
//! containerd, as in `cwasi-bench`, whose drivers, baselines and turns are used here. Never part of the product.

mod claims;
mod contents;
mod cwasi;
mod exhibit;
mod kept;
mod openwhisk;
mod operator;
mod overview;
mod peers;
mod quote;
mod report;
mod run;
mod series;
mod sides;
mod thesis;
mod wow;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Args, Parser, Subcommand};
use cwasi_bench::peers::{Peer, run_client, run_handler, run_server};
use cwasi_bench::plan::Effort;

use openwhisk::native::{Mode, serve};
use run::Run;

#[derive(Parser)]
#[command(about = "The tables and figures of the four papers, with our numbers")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// As much as the papers: hours.
    Full(Selection),
    /// Less of everything, in about half an hour.
    Quick(Selection),
    /// Each case once: shows that it works, says nothing about time.
    Smoke(Selection),
    /// Puts the numbers of a record into the tables of a page, whose verdicts stay.
    Quote { record: PathBuf, page: PathBuf },
    /// The client of a baseline.
    #[command(hide = true)]
    Peer(Peer),
    /// A server of a baseline.
    #[command(hide = true)]
    PeerServer(Peer),
    /// The function of a server that starts a process for each request.
    #[command(hide = true)]
    Handler,
    /// A server of one native action of OpenWhisk, at the port in PORT.
    #[command(hide = true)]
    ActionServer,
    /// The same, which starts a program for each activation.
    #[command(hide = true)]
    ActionProxy,
}

#[derive(Args)]
struct Selection {
    /// Only tables and figures whose id contains this, such as `wow` or `cwasi-figure-7`.
    #[arg(long, default_value = "")]
    exhibit: String,
    /// Folder of the report; by default papers/ beside the build's profile.
    #[arg(long)]
    out: Option<PathBuf>,
    /// The revision that is measured, for the record.
    #[arg(long, default_value = "unknown")]
    revision: String,
    /// Go on after the groups that an earlier run of the same revision, programs and effort has measured.
    #[arg(long)]
    resume: bool,
}

fn main() -> Result<ExitCode> {
    match Arguments::parse().verb {
        Verb::Full(selection) => run(Effort::Full, selection),
        Verb::Quick(selection) => run(Effort::Quick, selection),
        Verb::Smoke(selection) => run(Effort::Smoke, selection),
        Verb::Quote { record, page } => quote_in(&record, &page).map(|()| ExitCode::SUCCESS),
        Verb::Peer(peer) => run_client(&peer).map(|()| ExitCode::SUCCESS),
        Verb::PeerServer(peer) => run_server(&peer).map(|()| ExitCode::SUCCESS),
        Verb::Handler => run_handler().map(|()| ExitCode::SUCCESS),
        Verb::ActionServer => serve(Mode::Server).map(|()| ExitCode::SUCCESS),
        Verb::ActionProxy => serve(Mode::Proxy).map(|()| ExitCode::SUCCESS),
    }
}

/// Quotes the record in the folder `record` in a page.
fn quote_in(record: &Path, page: &Path) -> Result<()> {
    let read =
        |file: &Path| std::fs::read_to_string(file).with_context(|| file.display().to_string());
    let (claims, exhibits) = (read(&record.join("claims.md"))?, read(&record.join("exhibits.md"))?);
    let quoted = quote::quote(&read(page)?, &claims, &exhibits);
    std::fs::write(page, quoted).with_context(|| page.display().to_string())
}

/// Fails when a table or figure could not be measured.
fn run(effort: Effort, selection: Selection) -> Result<ExitCode> {
    let programs = std::env::current_exe()?.parent().context("a program has a folder")?.to_owned();
    let out =
        selection.out.unwrap_or_else(|| programs.parent().unwrap_or(&programs).join("papers"));
    let mut run = Run::new(effort, programs, &selection.exhibit);
    run.report.revision.clone_from(&selection.revision);
    if selection.resume {
        run.resume(out.join("kept"), &selection.revision);
    }
    let papers = [cwasi::GROUPS, wow::GROUPS, thesis::GROUPS, operator::GROUPS];
    for group in papers.into_iter().flatten() {
        run.measure(group);
    }
    run.report.machine.finish();
    run.report.write(&out)?;
    let claims = claims::table(&run.report)?;
    std::fs::write(out.join("claims.md"), &claims)?;
    std::fs::write(out.join("exhibits.md"), overview::table(&run.report)?)?;
    print!("{}\n{claims}", run.report.text()?);
    let mut problems = run.problems();
    problems.extend(claims::problems(&run.report));
    for problem in &problems {
        eprintln!("FAILED {problem}");
    }
    eprintln!("{0}/index.html, {0}/claims.md, {0}/report.json, {0}/samples.csv", out.display());
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

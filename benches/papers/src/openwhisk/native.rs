//! The servers of native actions: hyper on all processors, a thread of its own for each running action.
//!
//! A proxy writes the program of `/init` to a file and starts it for each `/run`, as OpenWhisk's dockerskeleton does. A
//! server has all actions, and `/init` chooses one. Both serve one action. Runs in a container of runc.

use std::convert::Infallible;
use std::fs::{self, Permissions};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, OnceLock};

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::spawn_blocking;

/// Most actions that run at a time: more than the capacity test has.
const THREADS_MAX: usize = 8192;
/// Folder of the program that `/init` delivers.
const FOLDER: &str = "/action";

/// How an action runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A process for each activation.
    Proxy,
    /// A thread of the server.
    Server,
}

/// What `/init` has made.
enum Code {
    Program(PathBuf),
    Function(bench_actions::Action),
}

/// Serves one action at the port in PORT until the process ends.
///
/// # Errors
/// When the variable PORT names no free port.
pub fn serve(mode: Mode) -> Result<()> {
    let port = std::env::var("PORT").context("PORT")?.parse::<u16>().context("PORT")?;
    let code = Arc::new(OnceLock::new());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(THREADS_MAX)
        .build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await?;
        loop {
            let (connection, _client) = listener.accept().await?;
            connection.set_nodelay(true)?;
            let code = code.clone();
            let answer = service_fn(move |request| answer(mode, request, code.clone()));
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(connection), answer));
        }
    })
}

async fn answer(
    mode: Mode,
    request: Request<Incoming>,
    code: Arc<OnceLock<Code>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let answered = async {
        let body = request.into_body().collect().await?.to_bytes();
        spawn_blocking(move || act(mode, &path, &body, &code)).await?
    };
    let (status, body) = match answered.await {
        Ok(body) => (StatusCode::OK, body),
        Err(error) => {
            let body = json!({ "error": format!("{error:#}") }).to_string();
            (StatusCode::BAD_GATEWAY, body)
        }
    };
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    Ok(response)
}

fn act(mode: Mode, path: &str, body: &[u8], code: &OnceLock<Code>) -> Result<String> {
    let body: Value = serde_json::from_slice(body).context("the body is no JSON")?;
    match path {
        "/init" => {
            let is_first = code.set(init(mode, &body["value"])?).is_ok();
            ensure!(is_first, "Cannot initialize the action more than once.");
            Ok(json!({ "ok": true }).to_string())
        }
        "/run" => run(code.get().context("there was no /init")?, &body["value"]),
        _ => anyhow::bail!("{path} is no path of OpenWhisk's protocol"),
    }
}

fn init(mode: Mode, value: &Value) -> Result<Code> {
    if mode == Mode::Server {
        let name = value["name"].as_str().unwrap_or_default();
        let action = bench_actions::named(name);
        return Ok(Code::Function(action.with_context(|| format!("no action is `{name}`"))?));
    }
    let bytes = BASE64_STANDARD.decode(value["code"].as_str().unwrap_or_default())?;
    let program = PathBuf::from(FOLDER).join("exec");
    fs::create_dir_all(FOLDER).context(FOLDER)?;
    fs::write(&program, bytes).with_context(|| program.display().to_string())?;
    fs::set_permissions(&program, Permissions::from_mode(0o755))?;
    Ok(Code::Program(program))
}

fn run(code: &Code, parameters: &Value) -> Result<String> {
    match code {
        Code::Function(action) => Ok(action(parameters).map_err(anyhow::Error::msg)?.to_string()),
        Code::Program(program) => {
            let output = Command::new(program).arg(parameters.to_string()).output()?;
            ensure!(output.status.success(), "the action ended with {}", output.status);
            let text = String::from_utf8(output.stdout).context("the action's stdout")?;
            let last = text.lines().last().unwrap_or_default();
            let result: Value = serde_json::from_str(last).context("the action's last line")?;
            ensure!(result.is_object(), "The action did not return a dictionary.");
            Ok(last.to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_runs_the_action_that_init_names_once() {
        let (code, hello) = (OnceLock::new(), json!({ "value": { "name": "Ada" } }).to_string());
        let act = |path: &str, body: &str| act(Mode::Server, path, body.as_bytes(), &code);
        assert!(act("/run", &hello).is_err());
        let init = json!({ "value": { "name": "hello" } }).to_string();
        assert_eq!(act("/init", &init).unwrap(), r#"{"ok":true}"#);
        assert_eq!(act("/run", &hello).unwrap(), r#"{"greeting":"Hello, Ada"}"#);
        assert!(act("/init", &init).is_err());
        assert!(act("/stop", "{}").is_err());
    }

    #[test]
    fn a_program_gets_its_parameters_and_its_last_line_is_the_result() {
        let echo = Code::Program(PathBuf::from("/bin/echo"));
        assert_eq!(run(&echo, &json!({ "n": 1 })).unwrap(), r#"{"n":1}"#);
        assert!(run(&echo, &json!("text")).is_err());
    }
}

use std::convert::Infallible;
use std::io;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::task::spawn_blocking;

use crate::{Function, Query};

/// Port, unless `PORT` says another one; 0 is one that is free.
const PORT: u16 = 8080;

/// Serves a function until the process ends. The first line on stdout is the port.
///
/// # Errors
/// When the port is taken, or `PORT` is none.
pub fn serve(function: Function) -> io::Result<()> {
    let port = match std::env::var("PORT") {
        Ok(port) => port.parse::<u16>().map_err(io::Error::other)?,
        Err(_unset) => PORT,
    };
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let listener = TcpListener::bind(("0.0.0.0", port)).await?;
        println!("{}", listener.local_addr()?.port());
        loop {
            let (connection, _client) = listener.accept().await?;
            connection.set_nodelay(true)?;
            let service = service_fn(move |request| answer(function, request));
            tokio::spawn(
                http1::Builder::new()
                    .timer(TokioTimer::new())
                    .serve_connection(TokioIo::new(connection), service),
            );
        }
    })
}

async fn answer(
    function: Function,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let query = Query::read(request.uri().query().unwrap_or_default());
    let ended = spawn_blocking(move || function(&query)).await;
    let (status, text) = match ended {
        Ok(Ok(text)) => (200, text),
        Ok(Err(text)) => (500, text),
        Err(panic) => (500, panic.to_string()),
    };
    let mut response = Response::new(Full::new(text.into()));
    if let Ok(status) = hyper::StatusCode::from_u16(status) {
        *response.status_mut() = status;
    }
    Ok(response)
}

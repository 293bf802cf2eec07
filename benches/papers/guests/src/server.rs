//! Answers POSTed payloads with `hyper_wasi`; prints its address. Runs inside a guest under `wasmedge`.

use std::error::Error;
use std::io::Write as _;

use bench_clock::monotonic_ns;
use cwasi_bench_protocol::payload::{Seen, Sum};
use hyper::server::conn::Http;
use hyper::service::service_fn;
use hyper::{Body, Request, Response};
use tokio::net::TcpListener;

/// Path at which a payload is read.
const TOUCH: &str = "/touch";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    writeln!(std::io::stdout(), "127.0.0.1:{}", listener.local_addr()?.port())?;
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            if let Err(error) = Http::new().serve_connection(stream, service_fn(answer)).await {
                eprintln!("a connection failed: {error}");
            }
        });
    }
}

async fn answer(request: Request<Body>) -> Result<Response<Body>, hyper::Error> {
    let touch = request.uri().path() == TOUCH;
    let body = hyper::body::to_bytes(request.into_body()).await?;
    let at = monotonic_ns();
    let sum = if touch { Sum::of(&body) } else { body.len() as u64 };
    Ok(Response::new(Body::from(Seen { at, sum }.to_bytes().to_vec())))
}

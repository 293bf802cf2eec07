//! Answers POSTed payloads, one connection after another; prints its address. Runs inside a guest under `wasmedge`.

use std::io::{Result, Write as _};

use bench_clock::monotonic_ns;
use bench_http::{TOUCH, receive, send};
use cwasi_bench_protocol::payload::{Seen, Sum};
use wasmedge_wasi_socket::{TcpListener, TcpStream};

fn main() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0", false)?;
    writeln!(std::io::stdout(), "127.0.0.1:{}", listener.local_addr()?.port())?;
    loop {
        let (stream, _) = listener.accept(false)?;
        serve(stream)?;
    }
}

fn serve(mut stream: TcpStream) -> Result<()> {
    while let Some(request) = receive(&mut stream)? {
        let at = monotonic_ns();
        let touch = request.path == TOUCH;
        let sum = if touch { Sum::of(&request.body) } else { request.body.len() as u64 };
        send(&stream, "HTTP/1.1 200 OK", &Seen { at, sum }.to_bytes())?;
    }
    Ok(())
}

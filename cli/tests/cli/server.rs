//! Servers of the command, and requests to them.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::scene::Stage;

/// A verb that serves; dropped, it is killed.
pub struct Server {
    process: Child,
    /// Where it says that it listens.
    pub address: String,
    /// Headers with the token of its address, if that has one.
    authorization: String,
}

impl Server {
    /// Starts it and waits for its address.
    pub fn start(stage: &Stage, arguments: &[&str]) -> Self {
        let mut process = stage.cwasi().args(arguments).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit(' ').next().unwrap().trim_start_matches("http://");
        let (address, token) = address.split_once('#').unwrap_or((address, ""));
        let authorization = match token {
            "" => String::new(),
            token => format!("authorization: Bearer {token}\r\n"),
        };
        let address = address.trim_end_matches('/').to_owned();
        Self { process, address, authorization }
    }

    /// One request on a connection of its own, with the token; the whole response.
    pub fn ask(&self, request: &str, host: &str) -> String {
        let stream = TcpStream::connect(&self.address).unwrap();
        exchange(stream, request, &format!("host: {host}\r\n{}", self.authorization))
    }

    /// Ends it as an operator does.
    pub fn stop(&mut self) {
        let pid = Pid::from_raw(self.process.id().try_into().unwrap());
        kill(pid, Signal::SIGTERM).unwrap();
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Has ended already, if the test stopped it.
        let _gone = self.process.kill();
        let _reaped = self.process.wait();
    }
}

/// One request on a connection of its own; the whole response.
pub fn ask(stream: impl Read + Write, request: &str, host: &str) -> String {
    exchange(stream, request, &format!("host: {host}\r\n"))
}

fn exchange(mut stream: impl Read + Write, request: &str, headers: &str) -> String {
    write!(stream, "{request} HTTP/1.1\r\n{headers}connection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

//! Errors of connections, as the error codes of `wasi:http`. Runs in a worker.

use std::error::Error as _;
use std::io::{self, ErrorKind};

use nix::errno::Errno;
use wasmtime_wasi_http::Error;

/// An address that could not be connected to.
pub(super) fn connecting(error: &io::Error) -> Error {
    if error.raw_os_error() == Some(Errno::EMFILE as i32) {
        return Error::ConnectionLimitReached;
    }
    match error.kind() {
        ErrorKind::ConnectionRefused => Error::ConnectionRefused,
        ErrorKind::TimedOut => Error::ConnectionTimeout,
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => {
            Error::DestinationIpUnroutable
        }
        _ => Error::DestinationUnavailable,
    }
}

/// A connection that could not be encrypted.
pub(super) fn tls(error: &io::Error) -> Error {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    match cause {
        Some(rustls::Error::InvalidCertificate(_)) => Error::TlsCertificateError,
        Some(rustls::Error::AlertReceived(alert)) => Error::TlsAlertReceived {
            alert_id: Some(u8::from(*alert)),
            alert_message: Some(format!("{alert:?}")),
        },
        None => broken(error),
        Some(_) => Error::TlsProtocolError,
    }
}

/// A request that could not be sent, or a response that could not be read.
pub(super) fn exchange(error: &hyper::Error) -> Error {
    if error.is_parse_too_large() {
        return Error::HttpResponseHeaderSectionSize(None);
    }
    if error.is_incomplete_message() {
        return Error::HttpResponseIncomplete;
    }
    let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
    cause.map_or(Error::HttpProtocolError, broken)
}

fn broken(error: &io::Error) -> Error {
    match error.kind() {
        ErrorKind::TimedOut => Error::ConnectionTimeout,
        _ => Error::ConnectionTerminated,
    }
}

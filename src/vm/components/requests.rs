//! Outgoing requests of `wasi:http` are refused: a component opens sockets, for which there are rules. Runs in a
//! worker.

use http::{Request, Response};
use wasmtime_wasi_http::{Error, RequestOptions, WasiBody, WasiHttpHooks};

/// Refuses all outgoing requests.
#[derive(Debug, Default)]
pub(super) struct NoRequests;

type Ended = Box<dyn Future<Output = Result<(), Error>> + Send>;
type Sent = Result<(Response<WasiBody>, Ended), Error>;

impl WasiHttpHooks for NoRequests {
    fn send_request(
        &mut self,
        _request: Request<WasiBody>,
        _options: Option<RequestOptions>,
        _processed: Ended,
    ) -> Box<dyn Future<Output = Sent> + Send> {
        Box::new(std::future::ready(Err(Error::HttpRequestDenied)))
    }
}

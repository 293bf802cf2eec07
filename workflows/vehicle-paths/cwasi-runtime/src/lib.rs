//! The workflow's calls, as CWASI makes them: requests are written into regions, and answers read where they arrive.

use vision::functions::{CallFailed, Join, Runtime};

/// The runtime that the functions run in.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cwasi;

/// A call under way, and whom it is to.
#[derive(Debug)]
pub struct Pending {
    target: String,
    call: cwasi::Pending,
}

impl Runtime for Cwasi {
    type Buffer = cwasi::Region;
    type Pending = Pending;
    type Answer = cwasi::Response;

    fn buffer(&self, len: usize) -> cwasi::Region {
        cwasi::Region::with_capacity(len)
    }

    fn start(&self, target: &str, payload: cwasi::Region, join: Option<Join<'_>>) -> Pending {
        let options = cwasi::CallOptions::new();
        let options = match join {
            Some(Join { key, parts, part }) => options.join(key, parts, part),
            None => options,
        };
        Pending { target: target.to_owned(), call: options.start(target, &payload.seal()) }
    }

    fn wait(&self, call: Pending) -> Result<cwasi::Response, CallFailed> {
        let Pending { target, call } = call;
        call.wait().map_err(|error| CallFailed { target, reason: error.to_string() })
    }
}

//! The worker's side of the broker: asks the shim for routes. Runs in a worker.
//!
//! All processes of the sandbox share one socketpair, so every request carries a reply socket of its own.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use protobuf::EnumOrUnknown;
use serde::de::DeserializeOwned;

use cwasi_modes::CallError;
use cwasi_modes::causes::{Break, Unreached};
use cwasi_modes::local::LocalRoute;
use cwasi_sys::clock::{Deadline, monotonic_ns};
use cwasi_sys::page_buffer::PageBuffer;
use cwasi_sys::segment::Segment;
use cwasi_sys::seqpacket::{self, SocketError};
use cwasi_wire::control::{
    self, CONTROL_MESSAGE_MAX, EdgeReport, EmitReply, EmitRequest, ResolveReply, ResolveRequest,
    SandboxMessage,
};
use cwasi_wire::envelope::{CallStatus, Detail};
use cwasi_wire::remaining;
use cwasi_wire::trace::SpanReport;
use cwasi_wire::trace_headers::TraceHeaders;

use super::links::Route;
use super::resolve::{Resolve, ResolvedRoute, RouteQuery};

/// Most reports in one message; a worker with more edges sends several messages.
const REPORTS_PER_MESSAGE: usize = 16;

/// Sandbox end of the broker.
#[derive(Debug)]
pub struct BrokerClient {
    broker: OwnedFd,
    /// Spans that the shim did not take.
    lost_spans: u64,
}

impl BrokerClient {
    /// A client on the inherited socket.
    #[must_use]
    pub fn new(broker: OwnedFd) -> Self {
        Self { broker, lost_spans: 0 }
    }

    /// Sends a report, which never delays a call; false if the shim does not take it at once.
    fn try_send(&self, report: &SandboxMessage) -> bool {
        let bytes = control::encode(report);
        seqpacket::send(self.broker.as_fd(), &[&bytes], &[], Some(Deadline::PASSED)).is_ok()
    }

    /// Sends a request with a reply socket and `descriptors`, and waits for the answer.
    fn exchange<T: DeserializeOwned>(
        &self,
        query: &SandboxMessage,
        descriptors: &[BorrowedFd<'_>],
        deadline: Option<Deadline>,
    ) -> Result<(T, Vec<OwnedFd>), SocketError> {
        let (ours, theirs) = seqpacket::pair()?;
        let mut all = vec![theirs.as_fd()];
        all.extend(descriptors);
        seqpacket::send(self.broker.as_fd(), &[&control::encode(query)], &all, deadline)?;
        drop(theirs);
        let mut buffer = PageBuffer::new(CONTROL_MESSAGE_MAX);
        let received = seqpacket::receive(ours.as_fd(), &mut buffer, deadline)?;
        let reply = control::decode(&buffer[..received.len]).map_err(|error| SocketError::Os {
            operation: "broker's answer",
            source: std::io::Error::other(error),
        })?;
        Ok((reply, received.descriptors))
    }
}

impl Resolve for BrokerClient {
    fn resolve(
        &mut self,
        query: &RouteQuery<'_>,
        deadline: Option<Deadline>,
    ) -> Result<ResolvedRoute, CallError> {
        let target = query.target;
        let request = ResolveRequest {
            target: target.to_owned(),
            avoid: query.avoid.to_vec(),
            held: query.held.to_vec(),
            nearer: query.nearer,
        };
        let (reply, mut descriptors) = self
            .exchange(&SandboxMessage::Resolve(request), &[], deadline)
            .map_err(|error| match error {
                SocketError::Deadline => CallError::Timeout { target: target.to_owned() },
                error => CallError::Unreachable {
                    target: target.to_owned(),
                    cause: Unreached::Shim { error: error.to_string() },
                },
            })?;
        let mut connection = || {
            descriptors.pop().ok_or_else(|| CallError::Internal {
                message: format!("the route to {target} came without its connection"),
            })
        };
        match reply {
            ResolveReply::Local {
                instance,
                reason,
                max_payload,
                instances,
                nearest,
                lends,
                ..
            } => {
                let connection = connection()?;
                let local = LocalRoute { instance, connection, max_request: max_payload, lends };
                let route = Route::Local { local, reason, nearest };
                Ok(ResolvedRoute { route: Some(route), instances })
            }
            ResolveReply::Networked { reason, max_payload, .. } => {
                // The shim chooses the instance, so the caller cannot avoid one by name.
                let instance = String::new();
                let connection = connection()?;
                // The other end is the shim, which keeps no segments.
                let lends = true;
                let bridge = LocalRoute { instance, connection, max_request: max_payload, lends };
                Ok(ResolvedRoute { route: Some(Route::Networked { bridge, reason }), instances: 1 })
            }
            ResolveReply::NoOther { instances } => Ok(ResolvedRoute { route: None, instances }),
            ResolveReply::Unroutable { errno, message } => {
                // A missing route is never a matter of time.
                let outcome = CallStatus::of(errno, Detail::DETAIL_NONE);
                Err(CallError::from_wire(outcome, message, target))
            }
        }
    }

    fn emit(
        &mut self,
        target: &str,
        payload: &[u8],
        trace: TraceHeaders<'_>,
        deadline: Option<Deadline>,
    ) -> Result<(), CallError> {
        let internal = |message: String| CallError::Internal { message };
        let segment = Segment::copy_of(payload).map_err(|error| internal(error.to_string()))?;
        let request = EmitRequest {
            target: target.to_owned(),
            length: segment.len(),
            traceparent: trace.traceparent.to_owned(),
            tracestate: trace.tracestate.to_owned(),
            remaining_us: remaining::encode(deadline.map(|deadline| deadline.left(monotonic_ns()))),
        };
        let query = SandboxMessage::Emit(request);
        let answered = self.exchange::<EmitReply>(&query, &[segment.as_fd()], deadline);
        let (reply, _) = answered.map_err(|error| match error {
            SocketError::Deadline => CallError::Timeout { target: target.to_owned() },
            error => CallError::Broken {
                target: target.to_owned(),
                cause: Break::Shim { error: error.to_string() },
            },
        })?;
        match reply.errno {
            0 => Ok(()),
            errno => {
                let outcome = CallStatus::read(errno, EnumOrUnknown::from_i32(reply.detail), &[]);
                Err(CallError::from_wire(outcome, reply.message, target))
            }
        }
    }

    fn report(&mut self, reports: Vec<EdgeReport>) {
        for chunk in reports.chunks(REPORTS_PER_MESSAGE) {
            if !self.try_send(&SandboxMessage::Edges(chunk.to_vec())) {
                tracing::debug!("edge report lost");
            }
        }
    }

    fn report_spans(&mut self, reports: Vec<SpanReport>) {
        for report in reports {
            let lost = report.dropped.saturating_add(report.spans.len() as u64);
            let report = SpanReport { dropped: self.lost_spans + report.dropped, ..report };
            self.lost_spans = match self.try_send(&SandboxMessage::Spans(report)) {
                true => 0,
                false => self.lost_spans.saturating_add(lost),
            };
        }
    }
}

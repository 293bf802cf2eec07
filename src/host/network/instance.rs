//! Sends one request to one of this daemon's instances. Runs in the shim daemon.

use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use tokio::io::unix::AsyncFd;

use super::outgoing::CallResponse;
use crate::readiness;
use cwasi_coordinator::registry::Record;
use cwasi_modes::causes::{Break, Unreached};
use cwasi_modes::local::{LocalError, ReceivedFrame, open_frame, send_as_is};
use cwasi_modes::{CallError, OutgoingPayload, Overload, Payload};
use cwasi_sys::clock::Deadline;
use cwasi_sys::seqpacket::{self, SocketError};
use cwasi_wire::envelope::{Hello, Request, Response};
use cwasi_wire::frame::FRAME_MAX;
use cwasi_wire::network::Caller;

/// Longest wait for room in a receiver: a new connection has room.
const HAND_OVER_MAX: Duration = Duration::from_millis(100);

thread_local! {
    /// The message that is being opened. A buffer for each would be cleared for each.
    static MESSAGE: RefCell<Vec<u8>> = RefCell::new(vec![0; FRAME_MAX]);
}

/// A connection to an instance, in the caller's name.
#[derive(Debug)]
pub struct Connection(AsyncFd<OwnedFd>);

impl Connection {
    /// Connects and sends the hello.
    ///
    /// # Errors
    /// [`CallError::Overloaded`] or [`CallError::Unreachable`]: the call does not run.
    pub fn open(record: &Record, caller: &Caller, target: &str) -> Result<Self, CallError> {
        let unreachable = |error: &dyn std::error::Error| CallError::Unreachable {
            target: target.to_owned(),
            cause: Unreached::Instance {
                instance: record.instance.clone(),
                error: error.to_string(),
            },
        };
        let connection = connect(record, caller).map_err(|error| match error {
            LocalError::Socket(SocketError::Deadline) => {
                Overload::Callers { callee: record.identity.to_string() }.into()
            }
            error => unreachable(&error),
        })?;
        readiness::watch_reads(connection).map(Self).map_err(|error| unreachable(&error))
    }

    /// True if the instance has neither ended the connection nor sent anything that nobody has read.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        matches!(seqpacket::try_receive(self.0.get_ref().as_fd(), &mut [0]), Ok(None))
    }

    /// Sends one request and waits for its end, without a limit of its own.
    ///
    /// # Errors
    /// The instance's error. [`CallError::Unreachable`] if it did not get the request, [`CallError::Broken`] if it
    /// was lost with it.
    pub async fn run(
        &self,
        record: &Record,
        request: &Request,
        payload: Payload,
    ) -> Result<CallResponse, CallError> {
        let target = request.target.as_str();
        let deadline = Some(Deadline::after(HAND_OVER_MAX));
        send_as_is(self.0.get_ref().as_fd(), request, payload.outgoing(), &[], deadline).map_err(
            |error| CallError::Unreachable {
                target: target.to_owned(),
                cause: Unreached::Instance {
                    instance: record.instance.clone(),
                    error: error.to_string(),
                },
            },
        )?;
        drop(payload);
        let answer = self.receive(record.max_payload).await.map_err(|error| match error {
            LocalError::TooLarge { length, limit } => {
                CallError::too_large(&format!("response of {target}"), length, limit)
            }
            error => CallError::Broken {
                target: target.to_owned(),
                cause: Break::Instance {
                    instance: record.instance.clone(),
                    error: error.to_string(),
                },
            },
        })?;
        if answer.envelope.errno == 0 {
            let ReceivedFrame { envelope, payload, .. } = answer;
            return Ok(CallResponse { payload, metadata: envelope.metadata });
        }
        let message = answer.payload.into_vec().unwrap_or_default();
        let message = String::from_utf8_lossy(&message).into_owned();
        Err(CallError::from_wire(answer.envelope.outcome(), message, target))
    }

    async fn receive(&self, max_payload: u64) -> Result<ReceivedFrame<Response>, LocalError> {
        loop {
            let mut ready = self.0.readable().await.map_err(|source| SocketError::Os {
                operation: "waiting for a response",
                source,
            })?;
            match self.try_receive(max_payload)? {
                None => ready.clear_ready(),
                Some(response) => return Ok(response),
            }
        }
    }

    fn try_receive(&self, max_payload: u64) -> Result<Option<ReceivedFrame<Response>>, LocalError> {
        MESSAGE.with_borrow_mut(|message| {
            let received = seqpacket::try_receive(self.0.get_ref().as_fd(), message)?;
            let opened =
                received.map(|it| open_frame(&message[..it.len], it.descriptors, 0, max_payload));
            opened.transpose()
        })
    }
}

fn connect(record: &Record, caller: &Caller) -> Result<OwnedFd, LocalError> {
    let connection = seqpacket::connect_to(&record.socket)?;
    // The other side of this connection is a shim, which keeps no segments.
    let hello = Hello::of(&caller.identity(), &caller.workflow, &caller.instance).lending(true);
    let deadline = Some(Deadline::after(HAND_OVER_MAX));
    send_as_is(connection.as_fd(), &hello, OutgoingPayload::EMPTY, &[], deadline)?;
    Ok(connection)
}

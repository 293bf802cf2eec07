//! The messages of one sandbox: route requests, reports, and the state of its workload. Runs in the shim daemon.
//!
//! Invariant: messages of a sandbox are untrusted input. They are bounded, and never decide an identity.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use tokio::io::unix::AsyncFd;
use tokio::sync::{Semaphore, watch};

use super::{Broker, BrokerPeer, DecodedMessage, REPLY_MAX, emit};
use crate::readiness;
use cwasi_sys::clock::Deadline;
use cwasi_sys::seqpacket::{self, SocketError};
use cwasi_wire::control::{self, ResolveRequest, SandboxMessage};

/// Most route requests of one sandbox at a time.
const QUESTIONS_MAX: usize = 32;
/// After this many malformed messages, a sandbox's messages are ignored.
const MALFORMED_MAX: u32 = 16;

/// State of a sandbox's workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    Waiting,
    /// It runs; a secondary takes requests.
    Ready,
    Failed(String),
    /// The sandbox ended without a report.
    Ended,
}

pub(super) struct Session {
    broker: Broker,
    peer: Arc<BrokerPeer>,
    questions: Arc<Semaphore>,
    readiness: watch::Sender<Readiness>,
}

impl Session {
    /// Reads a sandbox's messages until all its processes have ended. Returns its state.
    ///
    /// # Errors
    /// When the socket cannot be watched.
    pub(super) fn start(
        broker: Broker,
        socket: OwnedFd,
        peer: BrokerPeer,
    ) -> std::io::Result<watch::Receiver<Readiness>> {
        let socket = readiness::watch_reads(socket)?;
        let (readiness, watched) = watch::channel(Readiness::Waiting);
        let (peer, questions) = (Arc::new(peer), Arc::new(Semaphore::new(QUESTIONS_MAX)));
        tokio::spawn(Self { broker, peer, questions, readiness }.run(socket));
        Ok(watched)
    }

    async fn run(self, socket: AsyncFd<OwnedFd>) {
        let mut malformed = 0;
        while malformed < MALFORMED_MAX {
            let Ok(mut ready) = socket.readable().await else { break };
            match self.broker.receive(socket.get_ref().as_fd()) {
                Ok(None) => ready.clear_ready(),
                Ok(Some((message, descriptors))) => {
                    if !self.take(message, descriptors).await {
                        malformed += 1;
                    }
                }
                Err(SocketError::Truncated { .. }) => malformed += 1,
                Err(_) => break,
            }
        }
        if malformed >= MALFORMED_MAX {
            tracing::error!(function = %self.peer.identity, "sandbox sends malformed messages; ignoring it");
        }
        self.broker.metrics.end(&self.peer.function_key(), &self.peer.instance);
        self.readiness.send_if_modified(|readiness| {
            let waiting = *readiness == Readiness::Waiting;
            if waiting {
                *readiness = Readiness::Ended;
            }
            waiting
        });
    }

    /// Acts on one message; false if it is malformed.
    async fn take(&self, message: DecodedMessage, mut descriptors: Vec<OwnedFd>) -> bool {
        match message {
            Ok(SandboxMessage::Ready) => self.set_readiness(Readiness::Ready),
            Ok(SandboxMessage::StartFailed { message }) => {
                self.set_readiness(Readiness::Failed(message))
            }
            Ok(SandboxMessage::Edges(reports)) => {
                self.broker.metrics.add(&self.peer.function_key(), reports);
            }
            Ok(SandboxMessage::Function(report)) => {
                let function = self.peer.function_key();
                self.broker.metrics.set(&function, &self.peer.instance, report);
                if let Some(network) = self.broker.network() {
                    network.observe(&self.peer.instance, report);
                }
            }
            Ok(SandboxMessage::Spans(report)) => {
                self.broker.spans.add(self.peer.span_source(), report);
            }
            Ok(SandboxMessage::Resolve(request)) => {
                let Some(reply) = descriptors.pop() else { return false };
                self.answer(request, reply).await;
            }
            Ok(SandboxMessage::Emit(request)) => {
                let Some((reply, payload)) = emit::descriptors(descriptors) else {
                    return false;
                };
                let Ok(permit) = Arc::clone(&self.questions).acquire_owned().await else {
                    return true;
                };
                let network = self.broker.network().cloned();
                let peer = Arc::clone(&self.peer);
                tokio::spawn(async move {
                    emit::answer(network, &peer, request, payload, reply).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(function = %self.peer.identity, %error, "unreadable message");
                return false;
            }
        }
        true
    }

    /// The first report counts.
    fn set_readiness(&self, report: Readiness) {
        self.readiness.send_if_modified(|readiness| {
            let first = *readiness == Readiness::Waiting;
            if first {
                *readiness = report;
            }
            first
        });
    }

    /// Answers on a thread of its own, because the registry's files and the connection block.
    async fn answer(&self, request: ResolveRequest, reply: OwnedFd) {
        let Ok(permit) = Arc::clone(&self.questions).acquire_owned().await else { return };
        let (broker, peer) = (self.broker.clone(), Arc::clone(&self.peer));
        tokio::task::spawn_blocking(move || {
            let (answer, connection) = broker.resolver.resolve(&peer, &request);
            let (caller, target) = (&peer.identity, &request.target);
            tracing::debug!(%caller, target, ?answer, "resolved");
            let descriptors: Vec<_> = connection.iter().map(AsFd::as_fd).collect();
            let deadline = Some(Deadline::after(REPLY_MAX));
            let bytes = control::encode(&answer);
            if let Err(error) = seqpacket::send(reply.as_fd(), &[&bytes], &descriptors, deadline) {
                tracing::debug!(%caller, target, %error, "the caller no longer waits for the route");
            }
            drop(permit);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::tests::fixture;

    #[tokio::test]
    async fn the_first_readiness_report_counts() {
        let mut fixture = fixture();
        for message in [SandboxMessage::Ready, SandboxMessage::StartFailed { message: "x".into() }]
        {
            let bytes = control::encode(&message);
            seqpacket::send(fixture.sandbox.as_fd(), &[&bytes], &[], None).unwrap();
        }
        let readiness =
            fixture.readiness.wait_for(|readiness| *readiness != Readiness::Waiting).await;
        assert_eq!(*readiness.unwrap(), Readiness::Ready);
        let mut silent = self::fixture();
        drop(silent.sandbox);
        let readiness =
            silent.readiness.wait_for(|readiness| *readiness != Readiness::Waiting).await;
        assert_eq!(*readiness.unwrap(), Readiness::Ended);
    }

    #[tokio::test]
    async fn malformed_messages_end_the_session() {
        let mut fixture = fixture();
        for _ in 0..MALFORMED_MAX {
            seqpacket::send(fixture.sandbox.as_fd(), &[b"{}"], &[], None).unwrap();
        }
        let readiness =
            fixture.readiness.wait_for(|readiness| *readiness != Readiness::Waiting).await;
        assert_eq!(*readiness.unwrap(), Readiness::Ended);
    }
}

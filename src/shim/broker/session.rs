//! The conversation with one sandbox: its questions, its reports, and whether its workload runs.
//!
//! What a sandbox sends is input like any other: bounded, and never trusted with an identity.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use tokio::io::unix::AsyncFd;
use tokio::sync::{Semaphore, watch};

use super::{Broker, REPLY_MAX_NS, Speaker, emit};
use crate::sys::clock::monotonic_ns;
use crate::sys::readiness;
use crate::sys::seqpacket::{self, Received, SocketError};
use crate::wire::control::{self, CONTROL_MESSAGE_MAX, ResolveRequest, SandboxMessage};

/// Questions of one sandbox that are answered at the same time.
const QUESTIONS_MAX: usize = 32;
/// Messages that make no sense before a sandbox is not listened to any more.
const MALFORMED_MAX: u32 = 16;

/// Whether a sandbox's workload runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Not said yet.
    Waiting,
    /// It runs; a secondary takes requests.
    Ready,
    /// It cannot run.
    Failed(String),
    /// The sandbox ended without a word.
    Ended,
}

/// One sandbox's conversation.
pub(super) struct Session {
    broker: Broker,
    speaker: Arc<Speaker>,
    questions: Arc<Semaphore>,
    readiness: watch::Sender<Readiness>,
}

impl Session {
    /// Listens to a sandbox until all its processes are gone; what it says about itself.
    ///
    /// # Errors
    /// When the socket cannot be watched.
    pub(super) fn start(
        broker: Broker,
        socket: OwnedFd,
        speaker: Speaker,
    ) -> std::io::Result<watch::Receiver<Readiness>> {
        let socket = readiness::watch(socket)?;
        let (readiness, told) = watch::channel(Readiness::Waiting);
        let (speaker, questions) = (Arc::new(speaker), Arc::new(Semaphore::new(QUESTIONS_MAX)));
        tokio::spawn(Self { broker, speaker, questions, readiness }.run(socket));
        Ok(told)
    }

    async fn run(self, socket: AsyncFd<OwnedFd>) {
        let mut buffer = vec![0; CONTROL_MESSAGE_MAX];
        let mut malformed = 0;
        while malformed < MALFORMED_MAX {
            let Ok(mut ready) = socket.readable().await else { break };
            match seqpacket::try_receive(socket.get_ref().as_fd(), &mut buffer) {
                Ok(None) => ready.clear_ready(),
                Ok(Some(received)) => {
                    if !self.take(&buffer[..received.len], received).await {
                        malformed += 1;
                    }
                }
                Err(SocketError::Truncated { .. }) => malformed += 1,
                Err(_) => break,
            }
        }
        if malformed >= MALFORMED_MAX {
            tracing::error!(function = %self.speaker.identity, "sandbox sends nonsense; its questions stay unanswered");
        }
        self.readiness.send_if_modified(|readiness| {
            let waiting = *readiness == Readiness::Waiting;
            if waiting {
                *readiness = Readiness::Ended;
            }
            waiting
        });
    }

    /// Acts on one message; false when it makes no sense.
    async fn take(&self, bytes: &[u8], mut received: Received) -> bool {
        match control::decode::<SandboxMessage>(bytes) {
            Ok(SandboxMessage::Ready) => self.tell(Readiness::Ready),
            Ok(SandboxMessage::StartFailed { message }) => self.tell(Readiness::Failed(message)),
            Ok(SandboxMessage::Edges(reports)) => {
                self.broker.edges.add(&self.speaker.identity.function, reports);
            }
            Ok(SandboxMessage::Resolve(request)) => {
                let Some(reply) = received.descriptors.pop() else { return false };
                self.answer(request, reply).await;
            }
            Ok(SandboxMessage::Emit(request)) => {
                let Some((reply, payload)) = emit::descriptors(received.descriptors) else {
                    return false;
                };
                let Ok(permit) = Arc::clone(&self.questions).acquire_owned().await else {
                    return true;
                };
                let (network, speaker) = (self.broker.network.clone(), Arc::clone(&self.speaker));
                tokio::spawn(async move {
                    emit::answer(network, &speaker, request, payload, reply).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(function = %self.speaker.identity, %error, "unreadable message");
                return false;
            }
        }
        true
    }

    fn tell(&self, verdict: Readiness) {
        self.readiness.send_if_modified(|readiness| {
            let first = *readiness == Readiness::Waiting;
            if first {
                *readiness = verdict;
            }
            first
        });
    }

    /// Answers on a thread of its own: the registry is files and the connection a system call.
    async fn answer(&self, request: ResolveRequest, reply: OwnedFd) {
        let Ok(permit) = Arc::clone(&self.questions).acquire_owned().await else { return };
        let (broker, speaker) = (self.broker.clone(), Arc::clone(&self.speaker));
        tokio::task::spawn_blocking(move || {
            let (answer, connection) = broker.resolve(&speaker, &request);
            let (caller, target) = (&speaker.identity, &request.target);
            tracing::debug!(%caller, target, ?answer, "resolved");
            let descriptors: Vec<_> = connection.iter().map(AsFd::as_fd).collect();
            let deadline = Some(monotonic_ns() + REPLY_MAX_NS);
            let bytes = control::encode(&answer);
            if let Err(error) = seqpacket::send(reply.as_fd(), &[&bytes], &descriptors, deadline) {
                tracing::debug!(%caller, target, %error, "nobody waits for the route any more");
            }
            drop(permit);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shim::broker::tests::bed;

    #[tokio::test]
    async fn the_first_word_about_readiness_counts_and_silence_is_an_end() {
        let mut bed = bed();
        for message in [SandboxMessage::Ready, SandboxMessage::StartFailed { message: "x".into() }]
        {
            let bytes = control::encode(&message);
            seqpacket::send(bed.sandbox.as_fd(), &[&bytes], &[], None).unwrap();
        }
        let told = bed.readiness.wait_for(|readiness| *readiness != Readiness::Waiting).await;
        assert_eq!(*told.unwrap(), Readiness::Ready);
        let mut silent = self::bed();
        drop(silent.sandbox);
        let told = silent.readiness.wait_for(|readiness| *readiness != Readiness::Waiting).await;
        assert_eq!(*told.unwrap(), Readiness::Ended);
    }

    #[tokio::test]
    async fn nonsense_ends_the_conversation_after_a_few_messages() {
        let mut bed = bed();
        for _ in 0..MALFORMED_MAX {
            seqpacket::send(bed.sandbox.as_fd(), &[b"{}"], &[], None).unwrap();
        }
        let told = bed.readiness.wait_for(|readiness| *readiness != Readiness::Waiting).await;
        assert_eq!(*told.unwrap(), Readiness::Ended);
    }
}

//! Callers of the modes that reach their callee over connections: a real dispatcher on a thread of its own, which gets
//! connections from the fixture as it would from its shim.

use std::sync::mpsc::{Sender, channel};

use cwasi_dispatcher::{Dispatcher, Resolve, Settings};
use cwasi_modes::pool::SegmentPool;
use cwasi_modes::{CallError, OutgoingPayload, Payload};
use cwasi_sys::clock::Deadline;

use crate::{Apart, Caller, Fixture, MAX_PAYLOAD};

/// A callee that dispatchers reach.
pub trait Reachable: Sized {
    /// Gives connections to it.
    type Resolver: Resolve + Send + 'static;
    /// Most descriptors that it may keep for later calls beyond those that a hundred rounds of calls have left.
    const KEPT: usize = 0;

    fn start() -> Self;
    /// The connections of a new caller.
    fn resolver(&self) -> Self::Resolver;
    /// Kills it at once, as `kill -9` would.
    fn kill(&mut self);
    /// What a caller lends segments of, if it does.
    fn pool() -> Option<SegmentPool> {
        None
    }
}

/// The suite's calls, each waited for where it is made.
pub struct Waiting<B>(B);

/// The suite's calls, each started, and waited for later.
pub struct Started<B>(B);

/// A dispatcher that gets its connections from `resolver`.
pub fn dispatcher<R: Resolve>(resolver: R) -> Dispatcher<R> {
    let settings =
        Settings { caller: "caller".into(), max_payload: MAX_PAYLOAD, timeout_ms: 60_000 };
    Dispatcher::new(settings, resolver)
}

impl<B: Reachable> Fixture for Waiting<B> {
    type Caller = Dispatched<B::Resolver>;

    fn start() -> Self {
        Self(B::start())
    }

    fn caller(&self) -> Self::Caller {
        let call: Way<_> =
            |dispatcher, payload, deadline| dispatcher.call("callee", payload, deadline);
        Dispatched::start(self.0.resolver(), B::pool, call)
    }
}

impl<B: Reachable> Fixture for Started<B> {
    type Caller = Dispatched<B::Resolver>;

    fn start() -> Self {
        Self(B::start())
    }

    fn caller(&self) -> Self::Caller {
        let call: Way<_> = |dispatcher, payload, deadline| {
            let ticket = dispatcher.start("callee", payload, None, deadline).unwrap();
            dispatcher.wait(&[ticket], None).unwrap().1
        };
        Dispatched::start(self.0.resolver(), B::pool, call)
    }
}

impl<B: Reachable> Apart for Waiting<B> {
    fn kill(&mut self) {
        self.0.kill();
    }
}

impl<B: Reachable> Apart for Started<B> {
    fn kill(&mut self) {
        self.0.kill();
    }
}

/// How a call is made.
type Way<R> =
    fn(&mut Dispatcher<R>, OutgoingPayload<'_>, Option<Deadline>) -> Result<Payload, CallError>;

type Job<R> = Box<dyn FnOnce(&mut Dispatcher<R>) + Send>;

/// A dispatcher on a thread of its own.
pub struct Dispatched<R> {
    jobs: Sender<Job<R>>,
    call: Way<R>,
}

impl<R: Resolve + Send + 'static> Dispatched<R> {
    fn start(resolver: R, pool: fn() -> Option<SegmentPool>, call: Way<R>) -> Self {
        let (jobs, taken) = channel::<Job<R>>();
        std::thread::spawn(move || {
            let mut dispatcher = dispatcher(resolver).lending(pool());
            for job in taken {
                job(&mut dispatcher);
            }
        });
        Self { jobs, call }
    }
}

impl<R: Resolve + Send + 'static> Caller for Dispatched<R> {
    fn call(
        &mut self,
        payload: OutgoingPayload<'_>,
        deadline: Option<Deadline>,
    ) -> Result<Vec<u8>, CallError> {
        let sent = match payload {
            OutgoingPayload::Bytes(bytes) => Payload::Inline(bytes.to_vec()),
            OutgoingPayload::Segment(segment) => Payload::Segment(segment.clone()),
        };
        let call = self.call;
        let (answer, answered) = channel();
        let job: Job<R> = Box::new(move |dispatcher| {
            let ended = call(dispatcher, sent.outgoing(), deadline);
            answer.send(ended.map(|payload| payload.into_vec().unwrap())).unwrap();
        });
        self.jobs.send(job).unwrap();
        answered.recv().unwrap()
    }
}

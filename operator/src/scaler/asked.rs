//! What KEDA asks about: a function, and the streams of Redis that run it besides its calls.

use std::time::Instant;

use cwasi_config::triggers::{TRIGGERS_MAX, Trigger};
use cwasi_networked::streams::StreamReader;
use cwasi_networked::streams::waiting::Waiting;
use cwasi_networked::{NetworkError, RedisSession};
use cwasi_wire::ids::Identity;
use tonic::Status;

use super::messages::ScaledObjectRef;
use super::{CHECK_EVERY, FUNCTION, STREAMS};
use crate::plan::CONTAINERD_NAMESPACE;

/// A function, as a trigger of a ScaledObject names it.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) identity: Identity,
    readers: Vec<StreamReader>,
}

impl Asked {
    /// Reads the trigger's metadata. A ScaledObject asks for functions of its own namespace only, and of others'
    /// streams for the groups of these functions only.
    pub(super) fn read(object: &ScaledObjectRef) -> Result<Self, Status> {
        let trigger = format!("the trigger of ScaledObject {}/{}", object.namespace, object.name);
        let text = |key: &str| object.scaler_metadata.get(key).filter(|text| !text.is_empty());
        let function = text(FUNCTION).ok_or_else(|| {
            Status::invalid_argument(format!("{trigger} has no `{FUNCTION}` in its metadata"))
        })?;
        let identity = Identity {
            namespace: CONTAINERD_NAMESPACE.to_owned(),
            pod_namespace: object.namespace.clone(),
            function: function.clone(),
        };
        let mut readers = vec![StreamReader::of_messages(&identity)];
        for name in text(STREAMS).into_iter().flat_map(|names| names.split(',')) {
            let stream = Trigger::RedisStream(name.to_owned());
            stream.check().map_err(|problem| {
                Status::invalid_argument(format!(
                    "{trigger} has `{name}` in `{STREAMS}`, which {problem}"
                ))
            })?;
            readers.push(StreamReader::of_trigger(&identity, name));
        }
        if readers.len() > TRIGGERS_MAX + 1 {
            let text = format!("{trigger} has more than {TRIGGERS_MAX} names in `{STREAMS}`");
            return Err(Status::invalid_argument(text));
        }
        Ok(Self { identity, readers })
    }

    /// Messages that wait for the function now.
    pub(super) async fn waiting(&self, session: &RedisSession) -> Result<Waiting, NetworkError> {
        let mut sum = Waiting::default();
        for reader in &self.readers {
            let waiting = reader.waiting(session).await?;
            sum.undelivered = sum.undelivered.saturating_add(waiting.undelivered);
            sum.pending = sum.pending.saturating_add(waiting.pending);
        }
        Ok(sum)
    }
}

/// A look at the streams, and when it was. Messages about calls come faster than streams are looked at.
#[derive(Debug, Default)]
pub(super) struct Look(Option<(Instant, bool)>);

impl Look {
    /// The last answer, if it is not too old.
    pub(super) fn valid(&self, now: Instant) -> Option<bool> {
        self.0.filter(|(at, _)| now < *at + CHECK_EVERY).map(|(_, waits)| waits)
    }

    pub(super) fn record(&mut self, waits: bool, now: Instant) {
        self.0 = Some((now, waits));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn streams_are_looked_at_once_in_a_while() {
        let (mut look, now) = (Look::default(), Instant::now());
        assert_eq!(look.valid(now), None);
        look.record(true, now);
        assert_eq!(look.valid(now + CHECK_EVERY - Duration::from_millis(1)), Some(true));
        assert_eq!(look.valid(now + CHECK_EVERY), None);
        look.record(false, now + CHECK_EVERY);
        assert_eq!(look.valid(now + CHECK_EVERY), Some(false));
    }
}

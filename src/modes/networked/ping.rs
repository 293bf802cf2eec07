//! Whether Redis still answers: a network that is cut says nothing.

use std::time::Duration;

use redis::aio::PubSubSink;
use tokio::time::{sleep, timeout};

use super::error::NetworkError;
use super::session::RedisSession;

/// How often the connections are pinged.
const PING_EVERY: Duration = Duration::from_secs(1);
/// Longest time for an answer.
const ANSWERED_MAX: Duration = Duration::from_secs(4);

/// Pings both connections until one does not answer; why.
pub(crate) async fn ping(session: RedisSession, mut sink: PubSubSink) -> String {
    loop {
        sleep(PING_EVERY).await;
        let both = async {
            session.ping().await?;
            sink.ping::<redis::Value>().await.map_err(NetworkError::of("PING"))?;
            Ok(())
        };
        if let Err(reason) = answered(both).await {
            return reason;
        }
    }
}

/// `asking`, if its answer comes in time.
///
/// # Errors
/// Why there is none.
pub(crate) async fn answered(
    asking: impl Future<Output = Result<(), NetworkError>>,
) -> Result<(), String> {
    match timeout(ANSWERED_MAX, asking).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_elapsed) => Err(format!("no answer within {ANSWERED_MAX:?}")),
    }
}

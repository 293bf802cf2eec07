//! Watches of all kinds. A kind that a cluster may be without, such as KEDA's, is looked for again and again.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::{BoxStream, SelectAll, select_all, unfold};
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use tracing::{info, warn};

use super::{Cache, Touched};
use crate::objects::{self, names};

/// How often a kind that is missing is looked for.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Fills the cache, and says which Workflows changed. Without a namespace: of all.
pub fn all(
    client: &Client,
    namespace: Option<&str>,
    cache: &Arc<Cache>,
) -> SelectAll<BoxStream<'static, Touched>> {
    let watches = cache.kinds().iter().enumerate().map(|(index, kind)| {
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, kind),
            None => Api::all_with(client.clone(), kind),
        };
        let selected = watcher::Config::default().labels(names::WORKFLOW);
        let events = watcher(api, selected).default_backoff().boxed();
        let (cache, kind) = (Arc::clone(cache), kind.clone());
        let watch = Watch { cache, index, kind, events, pause: None, error: String::new() };
        unfold(watch, |mut watch| async move { Some((watch.next().await?, watch)) }).boxed()
    });
    select_all(watches)
}

/// The watch of a kind.
struct Watch {
    cache: Arc<Cache>,
    index: usize,
    kind: ApiResource,
    events: BoxStream<'static, watcher::Result<Event<DynamicObject>>>,
    /// Before the next try: the watcher's own back-off begins anew with each list.
    pause: Option<Duration>,
    /// The last error, which is logged once.
    error: String,
}

impl Watch {
    async fn next(&mut self) -> Option<Touched> {
        loop {
            if let Some(pause) = self.pause.take() {
                tokio::time::sleep(pause).await;
            }
            match self.events.next().await? {
                Ok(event) => {
                    if !matches!(event, Event::Init) {
                        self.error.clear();
                    }
                    return Some(self.cache.handle(self.index, event));
                }
                Err(error) => {
                    let text = error.to_string();
                    let (is_new, kind) = (text != self.error, &self.kind.plural);
                    self.error = text;
                    if objects::is_optional(&self.kind)
                        && let Some(why) = self.why_missing(&error)
                    {
                        if is_new {
                            info!(kind, "is not used: {why}");
                        }
                        self.pause = Some(LOOK_EVERY);
                        return Some(self.cache.lack(self.index));
                    }
                    if is_new {
                        warn!(kind, %error, "cannot be watched; trying again");
                    }
                }
            }
        }
    }

    /// Why a kind cannot be used at all.
    fn why_missing(&self, error: &watcher::Error) -> Option<&'static str> {
        use watcher::Error::{InitialListFailed, WatchStartFailed};
        let (InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))) = error
        else {
            return None;
        };
        match status.code {
            404 => Some("the cluster does not have it"),
            // A right that is taken away removes no object.
            403 if !self.cache.has_kind(&self.kind) => Some("the operator may not list it"),
            _ => None,
        }
    }
}

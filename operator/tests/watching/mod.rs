//! Shows a cache what an API in memory has, as the watches would: it has none.

use cwasi_operator::cache::Cache;
use cwasi_operator::objects::names;
use kube::api::{DynamicObject, ListParams};
use kube::runtime::watcher::Event;
use kube::{Api, Client};

pub async fn watch(cache: &Cache, client: &Client) {
    for (index, kind) in cache.kinds().iter().enumerate() {
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), "n", kind);
        let Ok(found) = api.list(&ListParams::default().labels(names::WORKFLOW)).await else {
            cache.lack(index);
            continue;
        };
        cache.handle(index, Event::Init);
        for object in found.items {
            cache.handle(index, Event::InitApply(object));
        }
        cache.handle(index, Event::InitDone);
    }
    assert!(cache.is_ready());
}

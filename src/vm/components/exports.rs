//! The exports by which a component is called. Runs in builder and workers.

use cwasi_abi::interfaces::{
    GROUP_HANDLER, HANDLE_FUNCTION, HANDLER, HTTP_HANDLER, INCOMING_HANDLER, Interface,
    PAYLOAD_HANDLER, RUN, RUN_FUNCTION, is_wasi_3,
};
use wasmtime::Engine;
use wasmtime::component::{Component, ComponentExportIndex, types};

/// Places of a component's entries; `None` where it has none.
#[derive(Debug, Default)]
pub(super) struct Exports {
    pub(super) handler: Option<ComponentExportIndex>,
    pub(super) payload_handler: Option<ComponentExportIndex>,
    pub(super) group_handler: Option<ComponentExportIndex>,
    pub(super) http: Option<HttpExport>,
    pub(super) run: Option<ComponentExportIndex>,
    /// All exports, for messages.
    pub(super) names: Vec<String>,
}

/// By which HTTP requests come.
#[derive(Debug)]
pub(super) enum HttpExport {
    /// `wasi:http/incoming-handler` of WASI 0.2.
    Incoming(ComponentExportIndex),
    /// `wasi:http/handler` of WASI 0.3.
    Handler(ComponentExportIndex),
}

impl Exports {
    pub(super) fn of(engine: &Engine, component: &Component) -> Self {
        let names: Vec<String> = component
            .component_type()
            .exports(engine)
            .map(|(name, _item)| name.to_owned())
            .collect();
        let find = |interface: Interface, function: &str| {
            let version = |wanted: fn(&str) -> bool| {
                names.iter().find(|name| interface.is(name) && wanted(name))
            };
            // A Rust program with `run` of WASI 0.3 also has that of 0.2: its `main`, a stub.
            let name = version(is_wasi_3).or_else(|| version(|_any| true))?;
            let instance = component.get_export_index(None, name)?;
            let (item, index) = component.get_export(Some(&instance), function)?;
            matches!(item, types::ComponentItem::ComponentFunc(_)).then_some(index)
        };
        Self {
            handler: find(HANDLER, HANDLE_FUNCTION),
            payload_handler: find(PAYLOAD_HANDLER, HANDLE_FUNCTION),
            group_handler: find(GROUP_HANDLER, HANDLE_FUNCTION),
            http: find(HTTP_HANDLER, HANDLE_FUNCTION)
                .map(HttpExport::Handler)
                .or_else(|| find(INCOMING_HANDLER, HANDLE_FUNCTION).map(HttpExport::Incoming)),
            run: find(RUN, RUN_FUNCTION),
            names,
        }
    }

    /// True if requests can come.
    pub(super) const fn handles(&self) -> bool {
        self.handler.is_some()
            || self.payload_handler.is_some()
            || self.group_handler.is_some()
            || self.http.is_some()
    }
}

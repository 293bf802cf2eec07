//! An instance of a core module or of a component. Runs in a worker.

use cwasi_components::ComponentInstance;
use cwasi_host_functions::{Host, PagesError};
use cwasi_sys::segment::Segment;
use cwasi_vm::engine::{CommandEnd, GuestStop, Instance, NotRenewed, Start, Trap};
use cwasi_vm::reactor::PayloadHandler;

use super::instance::CoreInstance;

/// A component has neither linear memory of its own nor exports of the guest ABI: it takes and returns payloads.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "the large one is the usual one, and needs no box")]
pub enum WasmtimeInstance {
    Core(CoreInstance),
    Component(ComponentInstance),
}

impl Instance for WasmtimeInstance {
    fn call(
        &mut self,
        export: &str,
        params: &[i32],
        host: &mut Host,
    ) -> Result<Option<i32>, GuestStop> {
        match self {
            Self::Core(core) => core.call(export, params, host),
            Self::Component(_) => {
                let reason = "a component has no such export".to_owned();
                Err(GuestStop::Trapped(Trap { export: export.to_owned(), reason }))
            }
        }
    }

    fn exports(&self, function: &str) -> bool {
        self.core().is_some_and(|core| core.exports(function))
    }

    fn address(&self, global: &str) -> Option<u32> {
        self.core()?.address(global)
    }

    fn is_nearly_full(&self) -> bool {
        match self {
            Self::Core(core) => core.is_nearly_full(),
            Self::Component(component) => component.is_nearly_full(),
        }
    }

    fn memory(&self) -> &[u8] {
        self.core().map_or(&[], Instance::memory)
    }

    fn memory_max(&self) -> Option<u64> {
        self.core()?.memory_max()
    }

    fn memory_mut(&mut self) -> &mut [u8] {
        self.core_mut().map_or(&mut [], Instance::memory_mut)
    }

    fn aligns_huge_pages(&self) -> bool {
        self.core().is_some_and(Instance::aligns_huge_pages)
    }

    fn map(&mut self, at: (u32, u32), segment: &Segment) -> bool {
        self.core_mut().is_some_and(|core| core.map(at, segment))
    }

    fn map_parts(&mut self, block: (u32, u32), parts: &[(u32, &Segment)]) -> usize {
        self.core_mut().map_or(0, |core| core.map_parts(block, parts))
    }

    fn unmap(&mut self) {
        if let Some(core) = self.core_mut() {
            core.unmap();
        }
    }

    fn answer(&mut self, at: (u32, u32)) -> Result<Option<Segment>, PagesError> {
        self.core_mut().map_or(Ok(None), |core| core.answer(at))
    }

    fn remember(&mut self, start: Start) {
        if let Some(core) = self.core_mut() {
            core.remember(start);
        }
    }

    fn renew(&mut self) -> bool {
        self.core_mut().is_some_and(Instance::renew)
    }

    fn not_renewed(&self) -> Option<NotRenewed> {
        self.core()?.not_renewed()
    }

    fn keep_stderr(&mut self) {
        match self {
            Self::Core(core) => core.keep_stderr(),
            Self::Component(component) => component.keep_stderr(),
        }
    }

    fn stderr_tail(&mut self) -> Vec<u8> {
        match self {
            Self::Core(core) => core.stderr_tail(),
            Self::Component(component) => component.stderr_tail(),
        }
    }

    fn payload_handler(&mut self) -> Option<&mut dyn PayloadHandler> {
        match self {
            Self::Core(_) => None,
            Self::Component(component) => Some(component),
        }
    }

    fn run_command(&mut self, export: &str, host: &mut Host) -> CommandEnd {
        match self {
            Self::Core(core) => core.run_command(export, host),
            Self::Component(component) => component.run_command(host),
        }
    }
}

impl WasmtimeInstance {
    const fn core(&self) -> Option<&CoreInstance> {
        match self {
            Self::Core(core) => Some(core),
            Self::Component(_) => None,
        }
    }

    const fn core_mut(&mut self) -> Option<&mut CoreInstance> {
        match self {
            Self::Core(core) => Some(core),
            Self::Component(_) => None,
        }
    }
}

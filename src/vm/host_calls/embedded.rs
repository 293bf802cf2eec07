//! Calls of embedded functions in one VM: the running one, and responses in the callees' memories. Runs in a worker.
//!
//! Invariant: caller and callee never have the same memory, because embedding has no cycles.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;

use cwasi_abi::PAYLOAD_BUFFER_LEN;
use cwasi_host_functions::{GuestPtr, Response, ResponseLost};

use crate::linear_memory::VmMemory;
use crate::trampoline::Delivery;

/// The calls of embedded functions in one VM. Only the function itself makes them, so at most one runs.
#[derive(Debug)]
pub struct EmbeddedCallState<M: VmMemory> {
    caller: Option<M>,
    callees: Vec<CalleeMemory<M>>,
    pub pending: Option<EmbeddedCall>,
    /// Responses in their callee's memory.
    held: Vec<Rc<HeldAnswer<M>>>,
}

/// An embedded module's memory.
#[derive(Clone, Copy, Debug)]
pub struct CalleeMemory<M> {
    pub memory: M,
    /// `None` unless the module exports both.
    pub buffers: Option<CalleeBuffers>,
}

/// Values of an embedded module's exported globals: addresses in its memory.
#[derive(Clone, Copy, Debug)]
pub struct CalleeBuffers {
    /// `cwasi_payload`
    pub payload: GuestPtr,
    /// `cwasi_response`
    pub response: GuestPtr,
}

#[derive(Clone, Copy, Debug)]
pub struct EmbeddedCall {
    pub callee: usize,
    pub payload: (GuestPtr, u32),
    /// [`Delivery::Pages`]: the payload is shared memory of the caller.
    pub delivery: Delivery,
    pub answer_to: AnswerTo,
    pub response_out: GuestPtr,
}

/// Address for the outcome of a call.
#[derive(Clone, Copy, Debug)]
pub enum AnswerTo {
    /// `outcome_out` of a call that the guest waits for.
    Outcome(GuestPtr),
    /// `handle_out` of a started call.
    Handle(GuestPtr),
}

impl<M: VmMemory> Default for EmbeddedCallState<M> {
    fn default() -> Self {
        Self { caller: None, callees: Vec::new(), pending: None, held: Vec::new() }
    }
}

impl<M: VmMemory> EmbeddedCallState<M> {
    /// Sets the memories of the VM, in the order of the embedded modules.
    pub fn set_memories(&mut self, caller: M, callees: Vec<CalleeMemory<M>>) {
        self.caller = Some(caller);
        self.callees = callees;
    }

    /// The function's own memory has grown.
    pub const fn set_caller(&mut self, memory: M) {
        self.caller = Some(memory);
    }

    /// The memory of an embedded module has grown.
    pub fn set_callee(&mut self, callee: usize, memory: M) {
        if let Some(callee) = self.callees.get_mut(callee) {
            callee.memory = memory;
        }
    }

    /// The memory of the function itself, once it exists.
    pub const fn caller(&self) -> Option<M> {
        self.caller
    }

    /// The memory of an embedded module.
    pub fn memory_of(&self, callee: usize) -> Option<M> {
        self.callees.get(callee).map(|callee| callee.memory)
    }

    /// The buffers of an embedded module, if they take a payload of `len` bytes.
    pub fn buffers(&self, callee: usize, len: u32) -> Option<CalleeBuffers> {
        let fits = len > 0 && len as usize <= PAYLOAD_BUFFER_LEN;
        self.callees.get(callee)?.buffers.filter(|_| fits)
    }

    /// The embedded module with this memory.
    pub fn index_of(&self, memory: M) -> Option<usize> {
        self.callees.iter().position(|callee| callee.memory == memory)
    }

    /// The running embedded function.
    pub fn callee(&self) -> Option<usize> {
        self.pending.map(|pending| pending.callee)
    }

    /// A response of `len` bytes in its callee's memory.
    pub fn add_response(&mut self, memory: M, ptr: GuestPtr, len: u32) -> Box<dyn Response> {
        let memory = Cell::new(Some(memory));
        let held = Rc::new(HeldAnswer { memory, ptr, len, taken: OnceCell::new() });
        self.held.push(Rc::clone(&held));
        Box::new(HeldResponse(held))
    }

    /// Copies all responses out of guest memory, because an embedded module is about to run.
    pub fn settle(&mut self) {
        for held in self.held.drain(..) {
            held.settle();
        }
    }
}

impl<M: VmMemory> Drop for EmbeddedCallState<M> {
    fn drop(&mut self) {
        for held in &self.held {
            held.memory.set(None);
        }
    }
}

/// A response: in the callee's memory until that is used again, then in ours.
#[derive(Debug)]
struct HeldAnswer<M: Copy> {
    /// `None` once the bytes were copied or are gone.
    memory: Cell<Option<M>>,
    ptr: GuestPtr,
    len: u32,
    taken: OnceCell<Vec<u8>>,
}

impl<M: VmMemory> HeldAnswer<M> {
    fn settle(self: Rc<Self>) {
        // Its caller no longer waits for it.
        if Rc::strong_count(&self) == 1 {
            return;
        }
        if let Some(memory) = self.memory.take()
            && let Ok(bytes) = memory.slice(self.ptr, self.len)
        {
            self.taken.get_or_init(|| bytes.to_vec());
        }
    }
}

struct HeldResponse<M: Copy>(Rc<HeldAnswer<M>>);

impl<M: VmMemory> Response for HeldResponse<M> {
    fn len(&self) -> u64 {
        u64::from(self.0.len)
    }

    fn copy_to(&self, target: &mut [u8]) -> Result<(), ResponseLost> {
        let lost = || ResponseLost { reason: "its VM is gone".to_owned() };
        if let Some(bytes) = self.0.taken.get() {
            target.copy_from_slice(bytes);
            return Ok(());
        }
        let memory = self.0.memory.get().ok_or_else(lost)?;
        memory.copy_to(self.0.ptr, target).map_err(|_| lost())
    }
}

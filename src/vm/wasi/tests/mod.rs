//! What tests of several files use.

use cwasi_host_functions::{GuestMemory, GuestPtr};

/// A guest's memory.
pub struct Memory(Vec<u8>);

impl GuestMemory for Memory {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Memory {
    pub fn new() -> Self {
        Self(vec![0; 4096])
    }

    pub fn put(&mut self, at: u32, bytes: &[u8]) {
        self.write(GuestPtr(at), bytes).unwrap();
    }

    pub fn words(&mut self, at: u32, words: &[u32]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.put(at, &bytes);
    }
}

//! A guest without an engine, for the tests of each topic.

mod any_arguments;
mod attributes;
mod directories;
mod escapes;
mod files;
mod links;
mod poll;
mod process;
mod sockets;
mod stdio;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;

use cwasi_host_functions::{GuestMemory, GuestPtr};
use cwasi_vm::engine::{InstanceSpec, Preopen};

use crate::layout::{u32_of, u64_of};
use crate::{SocketNetwork, Wasi, WasiErrno, WasiResult, WasiTemplate};

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

    pub fn bytes_at(&self, at: u32, len: u32) -> Vec<u8> {
        self.slice(GuestPtr(at), len).unwrap().to_vec()
    }

    pub fn u32_at(&self, at: u32) -> u32 {
        u32_of(&self.0, at as usize)
    }

    pub fn u64_at(&self, at: u32) -> u64 {
        u64_of(&self.0, at as usize)
    }
}

/// The first directory of a guest.
const DATA: u32 = 3;
/// The second one, which guests may not change.
const FIXED: u32 = 4;
/// `rights`
const READ: u64 = 1 << 1;
const WRITE: u64 = 1 << 6;
/// `oflags`
const CREATE: u32 = 1;
const DIRECTORY: u32 = 2;
const EXCLUSIVE: u32 = 4;
const TRUNCATE: u32 = 8;
/// `fdflags`
const APPEND: u32 = 1;
const NONBLOCK: u32 = 4;
/// `lookupflags`
const FOLLOW: u32 = 1;

/// Addresses in [`Guest::memory`]: results, buffers of calls, two paths, and bytes to read and write.
const OUT: u32 = 0;
const PARTS: u32 = 256;
const PATH: u32 = 1024;
const OTHER_PATH: u32 = 8192;
const BYTES: u32 = 16384;
const MEMORY_LEN: usize = 65536;

/// An instance with `data` and `fixed`, two directories beside `outside` in `root`.
struct Guest {
    wasi: Wasi,
    memory: Memory,
    root: tempfile::TempDir,
}

impl Guest {
    fn new() -> Self {
        Self::with(None, [const { None }; 3])
    }

    fn with(network: Option<&SocketNetwork>, stdio: [Option<OwnedFd>; 3]) -> Self {
        let root = tempfile::tempdir().unwrap();
        for name in ["data", "fixed", "outside"] {
            std::fs::create_dir(root.path().join(name)).unwrap();
        }
        std::fs::write(root.path().join("outside/secret"), "secret").unwrap();
        std::fs::write(root.path().join("fixed/file"), "fixed").unwrap();
        std::fs::create_dir(root.path().join("fixed/sub")).unwrap();
        let data = Preopen {
            name: "/data".into(),
            path: root.path().join("data"),
            inside: None,
            read_only: false,
        };
        let fixed = Preopen {
            name: "/fixed".into(),
            path: "/fixed".into(),
            inside: Some(root.path().into()),
            read_only: true,
        };
        let gone = Preopen::from(root.path().join("gone"));
        let file = Preopen::from(root.path().join("outside/secret"));
        let spec =
            InstanceSpec { preopens: vec![gone, data, file, fixed], ..InstanceSpec::default() };
        let mut template = WasiTemplate::new(&spec, network).unwrap();
        template.stdio = stdio;
        let wasi = Wasi::new(&Rc::new(template));
        Self { wasi, memory: Memory(vec![0; MEMORY_LEN]), root }
    }

    /// The host's path of a name in `data`.
    fn host(&self, name: &str) -> PathBuf {
        self.root.path().join("data").join(name)
    }

    fn file(&self, name: &str, text: &str) {
        std::fs::write(self.host(name), text).unwrap();
    }

    fn path(&mut self, path: &str) -> (u32, u32) {
        self.memory.put(PATH, path.as_bytes());
        (PATH, u32::try_from(path.len()).unwrap())
    }

    fn other_path(&mut self, path: &str) -> (u32, u32) {
        self.memory.put(OTHER_PATH, path.as_bytes());
        (OTHER_PATH, u32::try_from(path.len()).unwrap())
    }

    fn open_at(
        &mut self,
        fd: u32,
        lookup: u32,
        path: &str,
        open_flags: u32,
        (rights, flags): (u64, u32),
    ) -> WasiResult<u32> {
        let (ptr, len) = self.path(path);
        let memory = &mut self.memory;
        self.wasi.path_open(memory, fd, lookup, ptr, len, open_flags, rights, 0, flags, OUT)?;
        Ok(self.memory.u32_at(OUT))
    }

    fn open(&mut self, path: &str, open_flags: u32, rights: u64) -> WasiResult<u32> {
        self.open_at(DATA, 0, path, open_flags, (rights, 0))
    }

    fn close(&mut self, fd: u32) -> WasiResult {
        self.wasi.fd_close(&mut self.memory, fd)
    }

    /// Sets [`PARTS`] to one buffer of this length.
    fn part(&mut self, len: usize) {
        self.memory.words(PARTS, &[BYTES, u32::try_from(len).unwrap()]);
    }

    fn write(&mut self, fd: u32, bytes: &[u8]) -> WasiResult<u32> {
        self.memory.put(BYTES, bytes);
        self.part(bytes.len());
        self.wasi.fd_write(&mut self.memory, fd, PARTS, 1, OUT)?;
        Ok(self.memory.u32_at(OUT))
    }

    fn read(&mut self, fd: u32, len: usize) -> WasiResult<Vec<u8>> {
        self.part(len);
        self.wasi.fd_read(&mut self.memory, fd, PARTS, 1, OUT)?;
        Ok(self.memory.bytes_at(BYTES, self.memory.u32_at(OUT)))
    }

    fn seek(&mut self, fd: u32, offset: i64, whence: u32) -> WasiResult<u64> {
        self.wasi.fd_seek(&mut self.memory, fd, offset, whence, OUT)?;
        Ok(self.memory.u64_at(OUT))
    }

    fn stat_at(&mut self, fd: u32, lookup: u32, path: &str) -> WasiResult<Stat> {
        let (ptr, len) = self.path(path);
        self.wasi.path_filestat_get(&mut self.memory, fd, lookup, ptr, len, OUT)?;
        Ok(Stat::read(&self.memory))
    }

    fn stat(&mut self, fd: u32) -> WasiResult<Stat> {
        self.wasi.fd_filestat_get(&mut self.memory, fd, OUT)?;
        Ok(Stat::read(&self.memory))
    }

    /// Type, flags and rights of a descriptor.
    fn fd_stat(&mut self, fd: u32) -> WasiResult<(u8, u32, u64)> {
        self.wasi.fd_fdstat_get(&mut self.memory, fd, OUT)?;
        let kind = self.memory.bytes()[OUT as usize];
        Ok((kind, self.memory.u32_at(OUT) >> 16, self.memory.u64_at(OUT + 8)))
    }

    fn mkdir(&mut self, fd: u32, path: &str) -> WasiResult {
        let (ptr, len) = self.path(path);
        self.wasi.path_create_directory(&mut self.memory, fd, ptr, len)
    }

    fn rmdir(&mut self, fd: u32, path: &str) -> WasiResult {
        let (ptr, len) = self.path(path);
        self.wasi.path_remove_directory(&mut self.memory, fd, ptr, len)
    }

    fn unlink(&mut self, fd: u32, path: &str) -> WasiResult {
        let (ptr, len) = self.path(path);
        self.wasi.path_unlink_file(&mut self.memory, fd, ptr, len)
    }

    fn rename(&mut self, (from, old): (u32, &str), (to, new): (u32, &str)) -> WasiResult {
        let ((ptr, len), (new, new_len)) = (self.path(old), self.other_path(new));
        self.wasi.path_rename(&mut self.memory, from, ptr, len, to, new, new_len)
    }

    fn link(&mut self, (from, old): (u32, &str), (to, new): (u32, &str)) -> WasiResult {
        let ((ptr, len), (new, new_len)) = (self.path(old), self.other_path(new));
        self.wasi.path_link(&mut self.memory, from, 0, ptr, len, to, new, new_len)
    }

    fn symlink(&mut self, target: &str, fd: u32, path: &str) -> WasiResult {
        let ((ptr, len), (path, path_len)) = (self.path(target), self.other_path(path));
        self.wasi.path_symlink(&mut self.memory, ptr, len, fd, path, path_len)
    }

    fn readlink(&mut self, fd: u32, path: &str, room: u32) -> WasiResult<Vec<u8>> {
        let (ptr, len) = self.path(path);
        self.wasi.path_readlink(&mut self.memory, fd, ptr, len, BYTES, room, OUT)?;
        Ok(self.memory.bytes_at(BYTES, self.memory.u32_at(OUT)))
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Stat {
    inode: u64,
    kind: u8,
    links: u64,
    size: u64,
    accessed: u64,
    modified: u64,
}

impl Stat {
    fn read(memory: &Memory) -> Self {
        Self {
            inode: memory.u64_at(OUT + 8),
            kind: memory.bytes()[OUT as usize + 16],
            links: memory.u64_at(OUT + 24),
            size: memory.u64_at(OUT + 32),
            accessed: memory.u64_at(OUT + 40),
            modified: memory.u64_at(OUT + 48),
        }
    }
}

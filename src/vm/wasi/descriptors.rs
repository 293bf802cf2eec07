//! An instance's descriptors. Runs in a worker.
//!
//! A new instance has stdio (0 to 2) and the template's directories. Their table is allocated when the guest changes
//! it: opens, closes or renumbers a descriptor, or sets a flag.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use crate::layout::FileType;
use crate::template::{PreopenedDirectory, WasiTemplate};
use crate::{Wasi, WasiErrno, WasiResult};

/// Most open descriptors of an instance, stdio and directories included.
pub(crate) const DESCRIPTORS_MAX: usize = 1024;
/// Number of stdio descriptors; the first directory has this one.
const STDIO: usize = 3;

/// What a descriptor stands for.
#[derive(Debug)]
pub(crate) enum Descriptor {
    Stdio(Stdio),
    /// A directory of the template, by its index.
    Preopened(usize),
    Directory(Directory),
    File(OpenFile),
    Socket(Socket),
}

/// The process's stdin, stdout or stderr. `flags` are this descriptor's only: the process and other instances share the
/// file description.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stdio {
    /// 0 to 2.
    pub(crate) number: u8,
    pub(crate) flags: u32,
}

/// A directory that the guest opened.
#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) fd: OwnedFd,
    /// Nothing below may change.
    pub(crate) read_only: bool,
}

/// A file that the guest opened. The kernel keeps its position.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) fd: OwnedFd,
    pub(crate) kind: FileType,
    pub(crate) flags: u32,
    pub(crate) is_readable: bool,
    pub(crate) is_writable: bool,
    /// Below a directory that guests may not change.
    pub(crate) read_only: bool,
}

#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) fd: OwnedFd,
    pub(crate) kind: FileType,
    pub(crate) flags: u32,
}

/// An open descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Found<'a> {
    Stdio(Stdio),
    Directory(FoundDirectory<'a>),
    File(&'a OpenFile),
    Socket(&'a Socket),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundDirectory<'a> {
    pub(crate) fd: BorrowedFd<'a>,
    pub(crate) read_only: bool,
    pub(crate) preopened: Option<&'a PreopenedDirectory>,
}

impl<'a> FoundDirectory<'a> {
    fn preopened(directory: &'a PreopenedDirectory) -> Self {
        let PreopenedDirectory { fd, read_only, .. } = directory;
        Self { fd: fd.as_fd(), read_only: *read_only, preopened: Some(directory) }
    }

    /// The directory, for a change below it.
    pub(crate) fn writable(self) -> WasiResult<BorrowedFd<'a>> {
        if self.read_only { Err(WasiErrno::ROFS) } else { Ok(self.fd) }
    }
}

/// The table by number.
#[derive(Debug, Default)]
pub(crate) struct Descriptors {
    /// Empty until the first change.
    slots: Vec<Option<Descriptor>>,
}

impl Descriptors {
    /// The same ones; `None` if the guest has opened one.
    pub(crate) fn copy_without_files(&self) -> Option<Self> {
        let copy = |slot: &Option<Descriptor>| match slot {
            None => Some(None),
            Some(Descriptor::Stdio(stdio)) => Some(Some(Descriptor::Stdio(*stdio))),
            Some(Descriptor::Preopened(index)) => Some(Some(Descriptor::Preopened(*index))),
            Some(_) => None,
        };
        Some(Self { slots: self.slots.iter().map(copy).collect::<Option<_>>()? })
    }

    fn find<'a>(&'a self, template: &'a WasiTemplate, fd: u32) -> Option<Found<'a>> {
        let index = usize::try_from(fd).ok()?;
        if self.slots.is_empty() {
            return initial(template, index);
        }
        Some(match self.slots.get(index)?.as_ref()? {
            Descriptor::Stdio(stdio) => Found::Stdio(*stdio),
            Descriptor::Preopened(index) => {
                Found::Directory(FoundDirectory::preopened(template.preopens.get(*index)?))
            }
            Descriptor::Directory(Directory { fd, read_only }) => {
                Found::Directory(FoundDirectory {
                    fd: fd.as_fd(),
                    read_only: *read_only,
                    preopened: None,
                })
            }
            Descriptor::File(file) => Found::File(file),
            Descriptor::Socket(socket) => Found::Socket(socket),
        })
    }

    /// The table, for a change.
    fn slots(&mut self, template: &WasiTemplate) -> &mut Vec<Option<Descriptor>> {
        if self.slots.is_empty() {
            let stdio = (0..3).map(|number| Descriptor::Stdio(Stdio { number, flags: 0 }));
            let preopened = (0..template.preopens.len()).map(Descriptor::Preopened);
            self.slots = stdio.chain(preopened).map(Some).collect();
        }
        &mut self.slots
    }
}

/// A descriptor of a new instance.
fn initial(template: &WasiTemplate, index: usize) -> Option<Found<'_>> {
    match index.checked_sub(STDIO) {
        None => Some(Found::Stdio(Stdio { number: u8::try_from(index).ok()?, flags: 0 })),
        Some(index) => {
            Some(Found::Directory(FoundDirectory::preopened(template.preopens.get(index)?)))
        }
    }
}

impl Wasi {
    pub(crate) fn find(&self, fd: u32) -> WasiResult<Found<'_>> {
        self.descriptors.find(&self.template, fd).ok_or(WasiErrno::BADF)
    }

    pub(crate) fn directory(&self, fd: u32) -> WasiResult<FoundDirectory<'_>> {
        match self.find(fd)? {
            Found::Directory(directory) => Ok(directory),
            _ => Err(WasiErrno::BADF),
        }
    }

    pub(crate) fn file(&self, fd: u32) -> WasiResult<&OpenFile> {
        match self.find(fd)? {
            Found::File(file) => Ok(file),
            _ => Err(WasiErrno::BADF),
        }
    }

    /// A descriptor, for a change of its flags.
    pub(crate) fn descriptor_mut(&mut self, fd: u32) -> WasiResult<&mut Descriptor> {
        let slots = self.descriptors.slots(&self.template);
        let slot = usize::try_from(fd).ok().and_then(|index| slots.get_mut(index));
        slot.and_then(Option::as_mut).ok_or(WasiErrno::BADF)
    }

    /// Fails when no more descriptors may be opened.
    pub(crate) fn check_descriptors(&mut self) -> WasiResult {
        let slots = self.descriptors.slots(&self.template);
        if slots.len() < DESCRIPTORS_MAX || slots.iter().any(Option::is_none) {
            Ok(())
        } else {
            Err(WasiErrno::MFILE)
        }
    }

    /// Adds a descriptor by the lowest free number.
    pub(crate) fn insert(&mut self, descriptor: Descriptor) -> WasiResult<u32> {
        self.check_descriptors()?;
        let slots = self.descriptors.slots(&self.template);
        let index = slots.iter().position(Option::is_none).unwrap_or(slots.len());
        if index == slots.len() {
            slots.push(None);
        }
        slots[index] = Some(descriptor);
        u32::try_from(index).map_err(|_| WasiErrno::MFILE)
    }

    pub(crate) fn remove(&mut self, fd: u32) -> WasiResult<Descriptor> {
        let slots = self.descriptors.slots(&self.template);
        let slot = usize::try_from(fd).ok().and_then(|index| slots.get_mut(index));
        slot.and_then(Option::take).ok_or(WasiErrno::BADF)
    }

    /// Closes `to`, which gets what `from` stands for.
    pub(crate) fn renumber(&mut self, from: u32, to: u32) -> WasiResult {
        self.find(to)?;
        self.find(from)?;
        if from != to {
            let moved = self.remove(from)?;
            *self.descriptor_mut(to)? = moved;
        }
        Ok(())
    }
}

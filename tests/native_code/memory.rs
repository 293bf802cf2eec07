//! The filter at the level of system calls.

use std::num::NonZeroUsize;
use std::ptr::NonNull;

use cwasi_sandbox::exec_filter;
use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, mprotect};

use crate::harness::Case;

pub const CASES: &[Case] = &[
    ("memory_does_not_become_code", memory),
    ("children_cannot_get_rid_of_the_filter", children),
    ("without_the_privilege_it_is_an_error", unprivileged),
];

const PAGE: NonZeroUsize = NonZeroUsize::new(4096).unwrap();
const DATA: ProtFlags = ProtFlags::PROT_READ.union(ProtFlags::PROT_WRITE);
const CODE: ProtFlags = ProtFlags::PROT_READ.union(ProtFlags::PROT_EXEC);

fn anonymous(protection: ProtFlags) -> Result<NonNull<std::ffi::c_void>, Errno> {
    // SAFETY:
    // - a fresh mapping at an address of the kernel's choice.
    unsafe { mmap_anonymous(None, PAGE, protection, MapFlags::MAP_PRIVATE) }
}

fn of_a_memfd(protection: ProtFlags) -> Result<NonNull<std::ffi::c_void>, Errno> {
    let file = memfd_create(c"code", MFdFlags::empty()).unwrap();
    nix::unistd::ftruncate(&file, 4096).unwrap();
    // SAFETY:
    // - a fresh mapping at an address of the kernel's choice.
    unsafe { mmap(None, PAGE, protection, MapFlags::MAP_PRIVATE, &file, 0) }
}

fn refuses_code() {
    assert_eq!(anonymous(CODE), Err(Errno::EPERM));
    assert_eq!(of_a_memfd(CODE), Err(Errno::EPERM));
    let data = anonymous(DATA).unwrap();
    // SAFETY:
    // - the page is this function's.
    assert_eq!(unsafe { mprotect(data, PAGE.get(), CODE) }, Err(Errno::EPERM));
    // SAFETY:
    // - changes a flag of this process, or nothing.
    let readable_is_executable =
        unsafe { libc::personality(libc::READ_IMPLIES_EXEC as libc::c_ulong) };
    assert_eq!((readable_is_executable, Errno::last()), (-1, Errno::EPERM));
    // SAFETY:
    // - asks for a segment that does not exist.
    let attached = unsafe { libc::shmat(-1, std::ptr::null(), libc::SHM_EXEC) };
    assert_eq!((attached.addr(), Errno::last()), (usize::MAX, Errno::EPERM));
}

fn memory() {
    anonymous(CODE).unwrap();
    of_a_memfd(CODE).unwrap();
    exec_filter::install().unwrap();
    refuses_code();
    // Data as ever.
    let data = anonymous(DATA).unwrap();
    // SAFETY:
    // - the page is this function's, and no reference to it exists.
    unsafe { mprotect(data, PAGE.get(), ProtFlags::PROT_READ) }.unwrap();
    of_a_memfd(DATA).unwrap();
}

fn children() {
    exec_filter::install().unwrap();
    // One more only ever refuses more.
    exec_filter::install().unwrap();
    let output = tempfile::tempfile().unwrap();
    let ended = crate::harness::in_child(&output, refuses_code);
    let ended = ended.wait(std::time::Duration::from_secs(60));
    assert!(matches!(ended, Some(nix::sys::wait::WaitStatus::Exited(_, 0))), "{ended:?}");
}

fn unprivileged() {
    let nobody = nix::unistd::Uid::from_raw(65534);
    nix::unistd::setuid(nobody).unwrap();
    let error = exec_filter::install().unwrap_err().to_string();
    assert!(error.contains("seccomp"), "{error}");
    nix::sys::prctl::set_no_new_privs().unwrap();
    exec_filter::install().unwrap();
}

//! Pages that a process shares with its children.
#![expect(unsafe_code, reason = "fork")]

use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::SeqCst;

use cwasi_sys::mapping::page_len;
use cwasi_sys::shared::{SharedPages, Words};
use nix::errno::Errno;
use nix::sys::mman::{
    MRemapFlags, MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mprotect, mremap,
};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork, ftruncate};

use crate::harness::Case;

pub const CASES: &[Case] = &[
    ("a_child_shares_its_page_and_the_common_one_only", shared),
    ("no_child_can_write_the_owners_page", owners),
];

/// What the owner's page says.
const SAID: u64 = 0x5afe;

/// Where the words are mapped whose name `/proc/<pid>/maps` tells, and whether they are writable there.
fn mappings(name: &str) -> Vec<(usize, String, String)> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let named = maps.lines().filter(|line| line.contains(name));
    named
        .map(|line| {
            let mut fields = line.split_whitespace().map(str::to_owned);
            let (range, access) = (fields.next().unwrap(), fields.next().unwrap());
            let start = range.split_once('-').unwrap().0;
            (usize::from_str_radix(start, 16).unwrap(), range, access)
        })
        .collect()
}

/// Tries what a process can do to make a page writable, as root with the capabilities that tests run with.
fn attack(start: NonNull<c_void>, range: &str) {
    let page_len: NonZeroUsize = page_len().unwrap().try_into().unwrap();
    let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let value = 7_u64.to_ne_bytes();
    // SAFETY:
    // - a page that this process has mapped and refers to by atomics only.
    unsafe {
        assert_eq!(mprotect(start, usize::from(page_len), both), Err(Errno::EACCES));
        assert!(madvise(start, page_len.into(), MmapAdvise::MADV_REMOVE).is_err());
        // A second mapping of the same page, if the kernel makes one, is no better.
        if let Ok(again) = mremap(start, 0, page_len.into(), MRemapFlags::MREMAP_MAYMOVE, None) {
            assert_eq!(mprotect(again, usize::from(page_len), both), Err(Errno::EACCES));
        }
    }
    let memory = File::options().write(true).open("/proc/self/mem").unwrap();
    assert!(memory.write_all_at(&value, start.addr().get() as u64).is_err());
    // A function's processes may not open this; who may gets a memfd that is sealed.
    let path = format!("/proc/self/map_files/{range}");
    for write in [false, true] {
        let Ok(page) = OpenOptions::new().read(true).write(write).open(&path) else { continue };
        // SAFETY:
        // - a new mapping at an address of the kernel's choice.
        let map =
            |access| unsafe { mmap(None, page_len, access, MapFlags::MAP_SHARED, page.as_fd(), 0) };
        assert!(map(both).is_err());
        let again = map(ProtFlags::PROT_READ).unwrap();
        // SAFETY:
        // - the mapping that was just made.
        let made_writable = unsafe { mprotect(again, page_len.into(), both) };
        assert_eq!(made_writable, Err(Errno::EACCES));
        assert!(page.write_all_at(&value, 0).is_err());
        assert!(ftruncate(&page, 0).is_err());
    }
}

fn owners() {
    let shared = SharedPages::new(2).unwrap();
    shared.owners()[1].store(SAID, SeqCst);
    let view = shared.view();
    let writable = NonNull::from(shared.owners()).cast::<c_void>();
    assert_eq!(mappings("cwasi-owner").len(), 2);
    // SAFETY:
    // - the child touches the view only, but for the end, which is to fault.
    // - this process has one thread (own harness).
    let forked = unsafe { shared.pass_on(0, || fork()) }.unwrap().unwrap();
    if let ForkResult::Parent { child } = forked {
        shared.owners()[2].store(SAID, SeqCst);
        let end = waitpid(child, None).unwrap();
        assert!(matches!(end, WaitStatus::Signaled(..)), "{end:?}");
        assert_eq!(shared.own(0).unwrap()[0].load(SeqCst), SAID, "the child got to its last step");
        assert_eq!(shared.owners().each_ref().map(|word| word.load(SeqCst)), words());
        return;
    }
    while view.load(2) != SAID {
        std::thread::yield_now();
    }
    assert_eq!(view.load(1), SAID);
    let [(start, range, access)] = &mappings("cwasi-owner")[..] else { panic!("one mapping") };
    assert_eq!(access, "r--s");
    assert!(std::fs::read_dir("/proc/self/fd").unwrap().all(|entry| {
        let target = std::fs::read_link(entry.unwrap().path());
        !target.is_ok_and(|target| target.to_string_lossy().contains("cwasi-owner"))
    }));
    attack(NonNull::new(std::ptr::with_exposed_provenance_mut(*start)).unwrap(), range);
    let memory = File::options().write(true).open("/proc/self/mem").unwrap();
    assert!(memory.write_all_at(&[7; 8], writable.addr().get() as u64).is_err());
    shared.own(0).unwrap()[0].store(SAID, SeqCst);
    // SAFETY:
    // - a fault is the end that is asked about, whatever the harness does about faults.
    unsafe {
        libc::signal(libc::SIGSEGV, libc::SIG_DFL);
        writable.cast::<Words>().as_ref()[1].store(7, SeqCst);
        libc::_exit(0);
    }
}

fn words() -> [u64; 8] {
    [0, SAID, SAID, 0, 0, 0, 0, 0]
}

fn shared() {
    let shared = SharedPages::new(3).unwrap();
    shared.own(2).unwrap()[0].store(7, SeqCst);
    // SAFETY:
    // - the child touches its own page and the common one, but for the last case, which is to fault.
    // - this process has one thread (own harness).
    let child = |index, touched: usize| unsafe {
        let forked = shared.pass_on(index, || fork()).unwrap().unwrap();
        if let ForkResult::Parent { child } = forked {
            return waitpid(child, None).unwrap();
        }
        // A fault is the end that is asked about, whatever the harness does about faults.
        libc::signal(libc::SIGSEGV, libc::SIG_DFL);
        shared.common()[1].fetch_add(1, SeqCst);
        shared.own(touched).unwrap()[3].fetch_add(5, SeqCst);
        libc::_exit(0)
    };
    for index in 0..3 {
        assert!(matches!(child(index, index), WaitStatus::Exited(_, 0)));
        assert_eq!(shared.own(index).unwrap()[3].load(SeqCst), 5);
    }
    assert!(matches!(child(0, 1), WaitStatus::Signaled(..)));
    assert_eq!(shared.common()[1].load(SeqCst), 4);
    assert_eq!(shared.own(2).unwrap()[0].load(SeqCst), 7);
    assert!(shared.own(3).is_none());
}

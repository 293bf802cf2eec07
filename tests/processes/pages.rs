//! Pages that a process shares with its children.
#![expect(unsafe_code, reason = "fork")]

use std::sync::atomic::Ordering::SeqCst;

use cwasi::sys::shared::SharedPages;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use crate::harness::Case;

pub const CASES: &[Case] = &[("a_child_shares_its_page_and_the_common_one_only", shared)];

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

//! Keeps the engine's fault handlers installed between two entries into compiled code.
//!
//! Runs in every process of `cwasi-sandbox-wasmedge`. The engine installs handlers of SIGFPE, SIGBUS and SIGSEGV whenever it
//! enters compiled code, and resets them to the default when it leaves: six system calls for each request. As
//! [`super::stderr_tail`] does with `writev`, `cwasi-sandbox-wasmedge` exports a `sigaction` and a `signal` of its own, which the
//! engine calls in place of libc's. They make the first installation only.
//!
//! A fault outside of compiled code still ends the process: the engine's handler has no place to return to, and aborts.
#![expect(unsafe_code, reason = "functions of libc")]

use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, sighandler_t};

/// The signals of faults in compiled code, and the handler that each has.
static HANDLERS: [(c_int, AtomicUsize); 3] = [
    (libc::SIGFPE, AtomicUsize::new(libc::SIG_DFL)),
    (libc::SIGBUS, AtomicUsize::new(libc::SIG_DFL)),
    (libc::SIGSEGV, AtomicUsize::new(libc::SIG_DFL)),
];

type SigactionFn =
    unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;

fn libc_sigaction() -> Option<SigactionFn> {
    static FOUND: OnceLock<Option<SigactionFn>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        // SAFETY:
        // - a NUL-terminated name.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"sigaction".as_ptr()) };
        // SAFETY:
        // - a null pointer becomes `None`; otherwise libc's function of that name has this type.
        unsafe { std::mem::transmute::<*mut libc::c_void, Option<SigactionFn>>(found) }
    })
}

fn handler_of(signal: c_int) -> Option<&'static AtomicUsize> {
    HANDLERS.iter().find(|(number, _)| *number == signal).map(|(_, handler)| handler)
}

/// sigaction(2). Installing the handler of a fault that is installed already does nothing.
///
/// # Safety
/// As libc's.
pub unsafe fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY:
    // - null, or an action that lives until the call returns, says the caller.
    let wanted = unsafe { new.as_ref() }.map(|new| new.sa_sigaction);
    let installed = handler_of(signal);
    let is = installed.map(|installed| installed.load(Ordering::Relaxed));
    if old.is_null() && is.is_some_and(|is| is != libc::SIG_DFL && Some(is) == wanted) {
        return 0;
    }
    let Some(sigaction) = libc_sigaction() else { return -1 };
    // SAFETY:
    // - says the caller.
    let result = unsafe { sigaction(signal, new, old) };
    if let (0, Some(installed), Some(wanted)) = (result, installed, wanted) {
        installed.store(wanted, Ordering::Relaxed);
    }
    result
}

/// signal(2). A fault that has a handler keeps it when the default is asked for.
///
/// # Safety
/// As libc's.
pub unsafe fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    let is = handler_of(signal).map_or(libc::SIG_DFL, |handler| handler.load(Ordering::Relaxed));
    if handler == libc::SIG_DFL && is != libc::SIG_DFL {
        return is;
    }
    let mut new = MaybeUninit::<libc::sigaction>::zeroed();
    let mut old = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY:
    // - zero is a valid value of each field; both live until the end.
    let done = unsafe {
        (*new.as_mut_ptr()).sa_sigaction = handler;
        (*new.as_mut_ptr()).sa_flags = libc::SA_RESTART;
        libc::sigaddset(&raw mut (*new.as_mut_ptr()).sa_mask, signal);
        sigaction(signal, new.as_ptr(), old.as_mut_ptr())
    };
    // SAFETY:
    // - zero, or what libc wrote.
    if done == 0 { unsafe { old.assume_init() }.sa_sigaction } else { libc::SIG_ERR }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    extern "C" fn ignore(_: c_int) {}

    /// What the kernel has.
    fn current(signal: c_int) -> sighandler_t {
        let mut now = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY:
        // - asks only.
        unsafe {
            assert_eq!(libc::sigaction(signal, ptr::null(), now.as_mut_ptr()), 0);
            now.assume_init().sa_sigaction
        }
    }

    #[test]
    fn a_handler_of_a_fault_stays_and_others_do_not() {
        let handler = ignore as extern "C" fn(c_int) as sighandler_t;
        for (number, stays) in [(libc::SIGFPE, true), (libc::SIGUSR2, false)] {
            // SAFETY:
            // - signals that nothing else in this process uses.
            unsafe {
                assert_eq!(signal(number, handler), libc::SIG_DFL);
                assert_eq!(current(number), handler);
                signal(number, libc::SIG_DFL);
            }
            assert_eq!(current(number) == handler, stays);
        }
        let mut other = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY:
        // - as above; zero is a valid action.
        unsafe {
            (*other.as_mut_ptr()).sa_sigaction = libc::SIG_IGN;
            assert_eq!(sigaction(libc::SIGFPE, other.as_ptr(), ptr::null_mut()), 0);
        }
        assert_eq!(current(libc::SIGFPE), libc::SIG_IGN, "another handler is installed");
    }
}

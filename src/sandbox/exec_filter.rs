//! A seccomp filter that refuses new native code: this process and its children run only the code that is mapped now.
//!
//! The dynamic linker (`dlopen`, and with it NSS, gconv and plugins), an exec or a compiler gets `EPERM` from the
//! kernel. The filter checks arguments of a few system calls only; the kernel allows all others from a bitmap, at no
//! further cost.

use libseccomp::{ScmpAction, ScmpArgCompare, ScmpCompareOp, ScmpFilterContext, ScmpSyscall};
use nix::errno::Errno;

/// The filter cannot be installed.
#[derive(Debug, thiserror::Error)]
#[error(
    "the kernel refuses the seccomp filter that keeps native code of images out: {source}; a kernel with \
     CONFIG_SECCOMP_FILTER is needed"
)]
pub struct ExecFilterError {
    #[source]
    source: libseccomp::error::SeccompError,
}

/// A system call, and the bit of which argument makes it refused; `None`: it always is.
type SyscallRule = (&'static str, Option<(u32, u64)>);

/// How native code gets into a process.
const REFUSED: [SyscallRule; 8] = [
    ("execve", None),
    ("execveat", None),
    // Of a file or of nothing: the engine's code is mapped before the filter comes.
    ("mmap", Some((2, libc::PROT_EXEC as u64))),
    ("mprotect", Some((2, libc::PROT_EXEC as u64))),
    ("pkey_mprotect", Some((2, libc::PROT_EXEC as u64))),
    ("shmat", Some((2, libc::SHM_EXEC as u64))),
    // Has the kernel add PROT_EXEC to every mapping that is readable.
    ("personality", Some((0, libc::READ_IMPLIES_EXEC as u64))),
    ("uselib", None),
];

/// Installs the filter, for good. Needs `no_new_privs` or `CAP_SYS_ADMIN`.
///
/// # Errors
/// When the kernel has no seccomp filters, or the process may not install one.
pub fn install() -> Result<(), ExecFilterError> {
    filter().and_then(|filter| filter.load()).map_err(|source| ExecFilterError { source })
}

fn filter() -> Result<ScmpFilterContext, libseccomp::error::SeccompError> {
    let mut filter = ScmpFilterContext::new(ScmpAction::Allow)?;
    // A process that may not install a filter gets an error; libseccomp does not set `no_new_privs` for it.
    filter.set_ctl_nnp(false)?;
    // Kernels before 5.16 would make guests slower than they are without a filter.
    filter.set_ctl_ssb(true)?;
    let refuse = ScmpAction::Errno(Errno::EPERM as i32);
    for (name, argument) in REFUSED {
        // One that libseccomp does not know on this architecture does not exist there.
        let Ok(call) = ScmpSyscall::from_name(name) else { continue };
        match argument {
            None => filter.add_rule(refuse, call)?,
            Some((index, bit)) => {
                let has_bit = ScmpArgCompare::new(index, ScmpCompareOp::MaskedEqual(bit), bit);
                filter.add_rule_conditional(refuse, call, &[has_bit])?
            }
        };
    }
    Ok(filter)
}

//! WASI for guests. Runs in a worker.
//!
//! Making a WASI module instance costs about as much as making the guest's. So the guests of one worker share it when
//! they can leave no state in it.

use std::cell::RefCell;
use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

use super::handles::ModuleInstance;
use super::sockets::{SocketNetwork, Wasi};
use cwasi_vm::engine::{InstanceSpec, Preopen, VmError};
use cwasi_vm::wasi_calls;

pub(super) use cwasi_vm::wasi_calls::WASI;

/// A guest's name for its working directory.
pub(super) const CURRENT: &str = ".";

/// After a directory that the engine does not let a guest change.
const READ_ONLY: &str = ":readonly";

/// True when a guest that imports only these functions of WASI cannot change what the next one sees.
pub(super) fn is_stateless<'a>(mut imports: impl Iterator<Item = &'a str>) -> bool {
    imports.all(wasi_calls::is_harmless)
}

/// A WASI module instance that guests of one module use one after the other.
#[derive(Debug, Default)]
pub(super) struct ReusableWasi(RefCell<Option<(InstanceSpec, Rc<Wasi>)>>);

impl ReusableWasi {
    /// The shared one for `spec` if guests that import only these functions leave no state in it; else a new one.
    pub(super) fn shared_or_new<'a>(
        &self,
        spec: &InstanceSpec,
        imports: impl Iterator<Item = &'a str>,
        network: Option<&SocketNetwork>,
    ) -> Result<Rc<Wasi>, VmError> {
        if is_stateless(imports) { self.get(spec) } else { Ok(Rc::new(fresh(spec, network)?)) }
    }

    /// The one that serves `spec`, made when there is none.
    fn get(&self, spec: &InstanceSpec) -> Result<Rc<Wasi>, VmError> {
        let mut kept = self.0.borrow_mut();
        match &*kept {
            Some((made_for, wasi)) if made_for == spec => Ok(Rc::clone(wasi)),
            _ => {
                // Nothing in it has to do with sockets.
                let wasi = Rc::new(fresh(spec, None)?);
                *kept = Some((spec.clone(), Rc::clone(&wasi)));
                Ok(wasi)
            }
        }
    }
}

/// A WASI of one instance, whose sockets reach the destinations that `network` allows.
fn fresh(spec: &InstanceSpec, network: Option<&SocketNetwork>) -> Result<Wasi, VmError> {
    let args = c_strings("argument", &spec.args)?;
    let env = c_strings("environment variable", &spec.env)?;
    let mut preopens = Vec::new();
    // Open until the engine has opened them too.
    let mut held = Vec::new();
    for preopen in &spec.preopens {
        if let Some(path) = path_of(preopen, &mut held) {
            preopens.push(argument(&preopen.name, &path, preopen.read_only)?);
        }
    }
    Wasi::new(ModuleInstance::wasi(&args, &env, &preopens)?, network)
}

/// Where the engine finds the directory; `None` when there is none.
fn path_of(preopen: &Preopen, held: &mut Vec<OwnedFd>) -> Option<PathBuf> {
    let Some(inside) = &preopen.inside else {
        return preopen.path.is_dir().then(|| preopen.path.clone());
    };
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let root = File::options().read(true).custom_flags(flags.bits()).open(inside).ok()?;
    let how = OpenHow::new()
        .flags(flags)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let directory = openat2(&root, &preopen.path, how).ok()?;
    // The engine does not follow a link at a path's end.
    let path = format!("/proc/self/fd/{}/.", directory.as_raw_fd()).into();
    held.push(directory);
    Some(path)
}

fn c_strings(what: &str, texts: &[String]) -> Result<Vec<CString>, VmError> {
    texts
        .iter()
        .map(|text| {
            CString::new(text.as_str()).map_err(|_| VmError::Spec {
                what: format!("{what} {text:?}"),
                reason: "it contains a zero byte".into(),
            })
        })
        .collect()
}

/// `guest:host`, the engine's way to name a directory.
fn argument(name: &Path, path: &Path, read_only: bool) -> Result<CString, VmError> {
    let refused = |reason: &str| VmError::Spec {
        what: format!("directory {}", name.display()),
        reason: reason.into(),
    };
    let (Some(name), Some(path)) = (name.to_str(), path.to_str()) else {
        return Err(refused("its path is not UTF-8"));
    };
    if name != CURRENT && name.split('/').any(|component| component.starts_with('.')) {
        // `/tmp/.cache` would appear to the guest as `/tmp`.
        return Err(refused(
            "a part of its path begins with a dot, which the engine would show to the guest under another name; mount it elsewhere",
        ));
    }
    if name.contains(':') || path.contains(':') {
        return Err(refused("its path contains a colon, which the engine takes for a separator"));
    }
    let access = if read_only { READ_ONLY } else { "" };
    CString::new(format!("{name}:{path}{access}"))
        .map_err(|_| refused("its path contains a zero byte"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_passed_on_as_long_as_it_is_made_for_the_same() {
        let passed = ReusableWasi::default();
        let spec = InstanceSpec { args: vec!["f".to_owned()], ..InstanceSpec::default() };
        let first = passed.get(&spec).unwrap();
        assert!(Rc::ptr_eq(&first, &passed.get(&spec).unwrap()));
        let other = InstanceSpec { env: vec!["A=1".to_owned()], ..spec };
        assert!(!Rc::ptr_eq(&first, &passed.get(&other).unwrap()));
    }
}

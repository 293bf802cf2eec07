//! Restricts this process and its children to named directories (Landlock). Needs no privilege.
//!
//! For functions without a container, where no mount namespace hides the user's files.

use std::os::fd::{AsFd as _, BorrowedFd};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, PathBeneath,
    Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetError, RulesetStatus, Scope,
};

use crate::resolved_path::ResolvedPath;

/// The newest version of the kernel's rules that this file knows. Older kernels enforce a part of them.
const VERSION: ABI = ABI::V6;

/// The rules cannot be put in force.
#[derive(Debug, thiserror::Error)]
#[error("the process cannot be restricted to its directories (Landlock): {source}")]
pub struct FileAccessError {
    /// What the library says.
    #[source]
    source: RulesetError,
}

/// What a process may access from now on.
#[derive(Clone, Debug, Default)]
pub struct FileAccess {
    /// Files and directories that it may read.
    pub readable: Vec<ResolvedPath>,
    /// Those that it may also change.
    pub writable: Vec<ResolvedPath>,
    /// True if it may use TCP.
    pub tcp: bool,
}

impl FileAccess {
    /// Puts the rules in force, for good. Descriptors that are open stay usable. From Linux 6.12 on, the process can
    /// signal only processes with the same rules. Returns false if the kernel has no Landlock.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn restrict(&self) -> Result<bool, FileAccessError> {
        let status = self.ruleset().map_err(|source| FileAccessError { source })?;
        Ok(status != RulesetStatus::NotEnforced)
    }

    fn ruleset(&self) -> Result<RulesetStatus, RulesetError> {
        let (all, read) = (AccessFs::from_all(VERSION), AccessFs::from_read(VERSION));
        let rules = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
        let mut rules = rules.handle_access(all)?.scope(Scope::from_all(VERSION))?;
        if !self.tcp {
            rules = rules.handle_access(AccessNet::from_all(VERSION))?;
        }
        let rules = rules.create()?.add_rules(beneath(&self.readable, read))?;
        let rules = rules.add_rules(beneath(&self.writable, all))?;
        Ok(rules.restrict_self()?.ruleset)
    }
}

/// A rule for each path, by its descriptor.
fn beneath(
    paths: &[ResolvedPath],
    access: BitFlags<AccessFs>,
) -> impl Iterator<Item = Result<PathBeneath<BorrowedFd<'_>>, RulesetError>> {
    paths.iter().map(move |path| {
        let of_files = AccessFs::from_file(VERSION);
        let access = if path.is_folder() { access } else { access & of_files };
        Ok(PathBeneath::new(path.as_fd(), access))
    })
}

/// True if the kernel can restrict processes to directories.
#[must_use]
pub fn is_supported() -> bool {
    // Rules are made, and not put in force.
    let rules = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    rules.handle_access(AccessFs::from_all(ABI::V1)).is_ok_and(|rules| rules.create().is_ok())
}

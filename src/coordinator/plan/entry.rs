//! Which export of a module an invocation calls. Runs in the shim daemon.

use cwasi_abi::interfaces::{HANDLE_FUNCTION, RUN, RUN_FUNCTION};
use cwasi_abi::prototype;
use cwasi_wire::control::{Entry, Role};

use crate::error::PlanError;
use crate::locate::LocatedModule;
use crate::module::CheckedModule;

/// What an invocation calls. `named` is the export that the command names; the function has the prototype's ABI or not.
pub(super) fn entry(
    module: &CheckedModule,
    (role, is_prototype): (Role, bool),
    named: Option<&str>,
    origin: &str,
) -> Result<Entry, PlanError> {
    use cwasi_abi::export;
    let missing = |export: &str, hint| PlanError::NoEntry {
        origin: origin.to_owned(),
        export: export.to_owned(),
        hint,
        exports: match module.exports.as_slice() {
            [] => "nothing".to_owned(),
            all => all.join(", "),
        },
    };
    if module.is_component {
        return component_entry(module, role, named).ok_or_else(|| {
            let (wanted, hint) = match named {
                Some(named) => (named, ": a component is called by `handle` or `run`"),
                None if module.is_reactor() => {
                    (RUN.name, ": it handles requests, start it with cwasi.role=secondary")
                }
                None => (RUN.name, " nor a handler of `cwasi:function`"),
            };
            missing(wanted, hint)
        });
    }
    if named.is_none() && role == Role::Secondary && module.is_reactor() {
        return if module.has_export(export::ALLOC) {
            Ok(Entry::Reactor)
        } else {
            Err(missing(export::ALLOC, ", which a reactor needs"))
        };
    }
    if named.is_none() && role == Role::Secondary && is_prototype {
        let is_callee = module.has_export(prototype::FUNCTION);
        return if is_callee {
            Ok(Entry::Prototype)
        } else {
            Err(missing(prototype::FUNCTION, ", which a callee of cwasi.compat=2023 has"))
        };
    }
    let wanted = named.unwrap_or(export::START);
    if module.has_export(wanted) {
        return Ok(Entry::Command { export: wanted.to_owned() });
    }
    if role == Role::Primary && module.is_reactor() {
        return Err(missing(wanted, ": it is a reactor, start it with cwasi.role=secondary"));
    }
    Err(missing(wanted, ""))
}

/// A component's entry: its handler in a secondary, unless `#run` is named or it has none; `None` if it lacks both.
fn component_entry(module: &CheckedModule, role: Role, named: Option<&str>) -> Option<Entry> {
    let command = || Entry::Command { export: RUN.name.to_owned() };
    let handles = role == Role::Secondary && module.is_reactor();
    match named {
        None | Some(HANDLE_FUNCTION) if handles => Some(Entry::Reactor),
        None | Some(RUN_FUNCTION) => module.is_command().then(command),
        Some(_) => None,
    }
}

/// The warning for a module that is both a command and a reactor, when no annotation decides.
pub(super) fn doubt(module: &CheckedModule, role: Role, found: &LocatedModule) -> Option<String> {
    use cwasi_abi::export::{HANDLE, START};
    if module.is_component || !(module.has_export(START) && module.is_reactor()) {
        return None;
    }
    let LocatedModule { origin, command, .. } = found;
    Some(match role {
        Role::Secondary => format!(
            "{origin} exports both `{START}` and `{HANDLE}`: as a secondary it is a reactor, `{START}` does not run, nor what it \
             initialises; link it as a reactor, or name {command}#{START} to have it run as a command for each request"
        ),
        Role::Primary => format!(
            "{origin} exports both `{START}` and `{HANDLE}`: as a primary it is a command, `{START}` runs and no request comes to \
             `{HANDLE}`; start it with cwasi.role=secondary for that, or name {command}#{START} if this is meant"
        ),
    })
}

//! Recognizes imports that a toolchain leaves for another host, and gives advice for each. Runs in the shim daemon.
//!
//! No image provides these imports, so the advice to embed an image would not help.

/// Toolchain and advice for an import, for people; `None` if another module may provide it.
#[must_use]
pub(super) fn hint(module: &str, name: &str) -> Option<&'static str> {
    let row = TABLE.iter().find(|row| {
        row.modules.iter().any(|pattern| matches(pattern, module))
            && (row.names.is_empty() || row.names.iter().any(|pattern| matches(pattern, name)))
    });
    row.map(|row| row.hint)
}

/// Imports of one kind. A pattern is a name, or a prefix followed by `*`, or a suffix after `*`.
struct Row {
    modules: &'static [&'static str],
    /// Empty = all of the module's.
    names: &'static [&'static str],
    hint: &'static str,
}

fn matches(pattern: &str, text: &str) -> bool {
    if let Some(end) = pattern.strip_prefix('*') {
        return text.ends_with(end);
    }
    match pattern.strip_suffix('*') {
        Some(beginning) => text.starts_with(beginning),
        None => text == pattern,
    }
}

/// The first matching row applies.
const TABLE: &[Row] = &[
    Row {
        modules: &["env"],
        names: &["abort"],
        hint: "AssemblyScript imports it for failed assertions: compile with `--use abort=`, which makes them traps",
    },
    Row {
        modules: &["env"],
        names: &[
            "seed",
            "trace",
            "console.*",
            "Math.*",
            "Date.*",
            "process.*",
            "crypto.*",
            "performance.*",
        ],
        hint: "AssemblyScript expects it from JavaScript: use what WASI has instead, or replace it by a function of your own \
               with `--use`",
    },
    Row {
        modules: &["env"],
        names: &[
            "emscripten_*",
            "_emscripten_*",
            "__syscall_*",
            "__cxa_*",
            "invoke_*",
            "_abort_js",
            "__assert_fail",
            "setTempRet0",
            "exit",
        ],
        hint: "Emscripten expects it from JavaScript: compile with clang for wasm32-wasip1 and wasi-libc, or link with \
               `-sSTANDALONE_WASM`",
    },
    Row {
        modules: &["a"],
        names: &[],
        hint: "modules that Emscripten has minified import from `a`, which is JavaScript: compile with clang for wasm32-wasip1 \
               and wasi-libc, or link with `-sSTANDALONE_WASM`",
    },
    Row {
        modules: &["env"],
        names: &[
            "memory",
            "__indirect_function_table",
            "__stack_pointer",
            "__memory_base",
            "__table_base",
        ],
        hint: "the module was linked to get its memory or table from a host: link it as a program or reactor, without \
               `--import-memory`, `--import-table`, `-shared` and `-fPIC`",
    },
    Row {
        modules: &["GOT.mem", "GOT.func"],
        names: &[],
        hint: "the module is a shared library: link it as a program or reactor, without `-shared` and `-fPIC`",
    },
    Row {
        modules: &["env"],
        names: &[],
        hint: "the linker calls what it did not find `env`: link the library that has it; without `--allow-undefined` the \
               linker names it. What another module is to provide is imported under that module's name (in C \
               `__attribute__((import_module(\"NAME\")))`, in Rust `#[link(wasm_import_module = \"NAME\")]`)",
    },
    Row {
        modules: &["wasi_unstable"],
        names: &[],
        hint: "it is WASI's preview 0, of old toolchains: compile for wasm32-wasip1, whose imports are of \
               `wasi_snapshot_preview1`",
    },
    Row {
        modules: &["wasi"],
        names: &["thread-spawn"],
        hint: "threads are not available: compile for wasm32-wasip1, not for wasm32-wasip1-threads",
    },
    Row {
        modules: &["wbg", "__wbindgen_*", "*_bg.js"],
        names: &[],
        hint: "wasm-bindgen expects it from JavaScript: compile for wasm32-wasip1 instead of wasm32-unknown-unknown, and leave \
               out features for browsers (such as `js` of getrandom and `wasmbind` of chrono)",
    },
    Row {
        modules: &["go", "gojs"],
        names: &[],
        hint: "Go for browsers expects it from JavaScript: compile with GOOS=wasip1 GOARCH=wasm (a reactor with \
               -buildmode=c-shared), with TinyGo for the target wasip1",
    },
    Row {
        modules: &["wasi_nn", "wasi_ephemeral_*", "wasmedge_*"],
        names: &[],
        hint: "it is an extension of the engine that functions do not get: compile without it",
    },
    Row {
        modules: &["wasi:*", "$root", "[export]*", "cm32p2*", "env:*"],
        names: &[],
        hint: "it is an interface of the component model: make a component of the module (`wasm-tools component new`), which \
               the engine wasmtime runs, or compile for wasm32-wasip1 instead of wasm32-wasip2",
    },
    Row {
        modules: &["*.js", "*.mjs"],
        names: &[],
        hint: "it is JavaScript, which this runtime does not run: compile for wasm32-wasip1",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toolchains_are_told_apart_by_module_and_name() {
        for (module, name, part) in [
            ("env", "abort", "--use abort="),
            ("env", "console.log", "AssemblyScript"),
            ("env", "seed", "AssemblyScript"),
            ("env", "emscripten_memcpy_big", "STANDALONE_WASM"),
            ("env", "__syscall_openat", "STANDALONE_WASM"),
            ("a", "b", "minified"),
            ("env", "memory", "--import-memory"),
            ("GOT.func", "f", "-fPIC"),
            ("env", "sqlite3_open", "--allow-undefined"),
            ("wasi_unstable", "fd_write", "preview 0"),
            ("wasi", "thread-spawn", "threads"),
            ("wbg", "__wbindgen_throw", "wasm-bindgen"),
            ("__wbindgen_placeholder__", "__wbindgen_describe", "wasm-bindgen"),
            ("./app_bg.js", "now", "wasm-bindgen"),
            ("go", "runtime.wasmExit", "GOOS=wasip1"),
            ("gojs", "runtime.ticks", "GOOS=wasip1"),
            ("wasi_ephemeral_nn", "load", "extension"),
            ("wasi:cli/environment@0.2.0", "get-environment", "wasm32-wasip2"),
            ("./host.mjs", "f", "JavaScript"),
        ] {
            let found = hint(module, name).unwrap_or_default();
            assert!(found.contains(part), "{module}.{name}: {found}");
        }
        for (module, name) in
            [("fn_utils", "abort"), ("geo", "memory"), ("wasi", "other"), ("goat", "f")]
        {
            assert_eq!(hint(module, name), None, "{module}.{name}");
        }
    }
}

//! The ways, one case each.

use std::ffi::CStr;
use std::path::Path;
use std::ptr;

use cwasi_engine_tests::AnyEngine;
use cwasi_vm::{Engine, EngineOptions};
use wasmedge_sys::ffi;

use crate::harness::Case;
use crate::plant::Root;

pub const CASES: &[Case] = &[
    ("nss_modules_for_hosts", nss_hosts),
    ("nss_modules_for_users", nss_users),
    ("nss_modules_for_services", nss_services),
    ("the_library_for_names_that_are_not_ascii", idn),
    ("gconv_modules", gconv),
    ("gconv_modules_of_a_locale", locale),
    ("libraries_that_the_cache_of_ld_so_names", cache),
    ("libraries_that_ld_so_preloads", preload),
    ("programs", programs),
    ("plugins_of_the_engine", plugins),
    ("shared_objects_as_modules_of_the_engine", modules),
];

/// `netdb.h`: the host may be an international name.
const AI_IDN: i32 = 0x40;

fn look_up(host: &CStr, service: Option<&CStr>, flags: i32) {
    // SAFETY:
    // - all zero is a hint without wishes; its flags are the only one here.
    let mut hints: libc::addrinfo = unsafe { std::mem::zeroed() };
    hints.ai_flags = flags;
    let mut found = ptr::null_mut();
    let service = service.map_or(ptr::null(), CStr::as_ptr);
    // SAFETY:
    // - NUL-terminated strings or null, live hints, a place for the result, which is left to the process' end.
    let _code =
        unsafe { libc::getaddrinfo(host.as_ptr(), service, &raw const hints, &raw mut found) };
}

fn nss_hosts() {
    let root = Root::new();
    root.write("/etc/nsswitch.conf", "hosts: evil files dns\n");
    root.plant_library("libnss_evil.so.2");
    root.check(|| look_up(c"some.host.test", None, 0));
}

fn nss_users() {
    let root = Root::new();
    root.write("/etc/nsswitch.conf", "passwd: evil files\n");
    root.plant_library("libnss_evil.so.2");
    root.check(|| drop(nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(4711))));
}

fn nss_services() {
    let root = Root::new();
    root.write("/etc/nsswitch.conf", "services: evil files\nhosts: files\n");
    root.plant_library("libnss_evil.so.2");
    root.check(|| look_up(c"127.0.0.1", Some(c"some-service"), 0));
}

fn idn() {
    let root = Root::new();
    root.write("/etc/nsswitch.conf", "hosts: files\n");
    root.plant_library("libidn2.so.0");
    root.copy_locale("utf8", "UTF-8");
    // ü
    root.check(|| {
        set_locale(c"utf8");
        look_up(c"\xc3\xbc.test", None, AI_IDN);
    });
}

fn set_locale(name: &CStr) {
    // SAFETY:
    // - a NUL-terminated name; this process has one thread.
    let set = unsafe { libc::setlocale(libc::LC_CTYPE, name.as_ptr()) };
    assert!(!set.is_null());
}

fn locale() {
    let root = Root::new();
    root.copy_locale("evil", "EVIL8");
    let folder = root.libraries().join("gconv");
    let name = folder.join("gconv-modules");
    root.write(
        name.to_str().unwrap(),
        "module EVIL8// INTERNAL EVIL8 1\nmodule INTERNAL EVIL8// EVIL8 1\n",
    );
    root.plant(&folder.join("EVIL8.so"));
    root.check(|| {
        set_locale(c"evil");
        let mut wide = 0;
        // SAFETY:
        // - a place for one character, and as many bytes as are said.
        let _length = unsafe { mbtowc(&raw mut wide, c"a".as_ptr(), 1) };
    });
}

unsafe extern "C" {
    fn mbtowc(wide: *mut libc::wchar_t, text: *const libc::c_char, len: usize) -> libc::c_int;
}

fn gconv() {
    let root = Root::new();
    let folder = root.libraries().join("gconv");
    let name = folder.join("gconv-modules");
    root.write(
        name.to_str().unwrap(),
        "module EVIL// INTERNAL EVIL 1\nmodule INTERNAL EVIL// EVIL 1\n",
    );
    root.plant(&folder.join("EVIL.so"));
    root.check(|| {
        // SAFETY:
        // - NUL-terminated names; what it returns is left to the process' end.
        let _converter = unsafe { libc::iconv_open(c"EVIL//".as_ptr(), c"UTF-8//".as_ptr()) };
    });
}

fn open_library(name: &CStr) {
    // SAFETY:
    // - a NUL-terminated name. Code that it loads is this test's own.
    let _handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
}

fn cache() {
    let root = Root::new();
    root.plant(Path::new("/planted/libplanted.so"));
    root.write("/etc/ld.so.conf", "/planted\n");
    let made =
        std::process::Command::new("ldconfig").arg("-r").arg(root.host(Path::new("/"))).status();
    assert!(made.unwrap().success());
    root.check(|| open_library(c"libplanted.so"));
}

/// Replaces the process by a program of the root; returns when that is refused.
fn execute() {
    let nothing: [&CStr; 0] = [];
    let _refused = nix::unistd::execve(c"/program", &[c"/program"], &nothing);
}

fn preload() {
    let root = Root::new();
    root.plant(Path::new("/planted.so"));
    root.write("/etc/ld.so.preload", "/planted.so\n");
    root.place_program(Path::new("/program"));
    root.check(execute);
}

fn programs() {
    let root = Root::new();
    root.plant_program(Path::new("/program"));
    root.check(execute);
}

fn plugins() {
    let root = Root::new();
    root.plant(Path::new("/plugins/libwasmedgePluginEvil.so"));
    root.check(|| {
        // SAFETY:
        // - a NUL-terminated path.
        unsafe { ffi::WasmEdge_PluginLoadFromPath(c"/plugins/libwasmedgePluginEvil.so".as_ptr()) };
    });
}

fn modules() {
    let root = Root::new();
    root.plant(Path::new("/module.so"));
    root.check(|| {
        for kind in cwasi_config::Engine::ALL {
            let engine = AnyEngine::of(kind, EngineOptions::default()).unwrap();
            assert!(engine.load(Path::new("/module.so")).is_err(), "{kind}");
        }
    });
}

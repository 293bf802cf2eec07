//! The functions by name and type, for the engine that binds them. Runs in a worker.
//!
//! Each macro passes its list to another macro, one entry a function: the imported name, the method of
//! [`Wasi`](crate::Wasi), and the parameters with their types. All functions return an errno as `i32`. `proc_exit` is
//! missing: it ends the instance, which only the engine can do.

/// A parameter's type in WebAssembly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    I32,
    I64,
}

/// An importable function of `wasi_snapshot_preview1`. Its only result is an `i32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WasiFunction {
    /// The imported name.
    pub import: &'static str,
    pub params: &'static [ValueKind],
}

/// The functions of WASI preview 1, passed to the macro `$with`.
#[macro_export]
macro_rules! functions {
    ($with:ident) => {
        $with! {
            "args_get" => args_get(pointers: u32, texts: u32);
            "args_sizes_get" => args_sizes_get(count_out: u32, len_out: u32);
            "environ_get" => environ_get(pointers: u32, texts: u32);
            "environ_sizes_get" => environ_sizes_get(count_out: u32, len_out: u32);
            "clock_res_get" => clock_res_get(clock: u32, resolution_out: u32);
            "clock_time_get" => clock_time_get(clock: u32, precision: u64, time_out: u32);
            "fd_advise" => fd_advise(fd: u32, offset: u64, len: u64, advice: u32);
            "fd_allocate" => fd_allocate(fd: u32, offset: u64, len: u64);
            "fd_close" => fd_close(fd: u32);
            "fd_datasync" => fd_datasync(fd: u32);
            "fd_fdstat_get" => fd_fdstat_get(fd: u32, stat_out: u32);
            "fd_fdstat_set_flags" => fd_fdstat_set_flags(fd: u32, flags: u32);
            "fd_fdstat_set_rights" => fd_fdstat_set_rights(fd: u32, base: u64, inheriting: u64);
            "fd_filestat_get" => fd_filestat_get(fd: u32, stat_out: u32);
            "fd_filestat_set_size" => fd_filestat_set_size(fd: u32, size: u64);
            "fd_filestat_set_times" =>
                fd_filestat_set_times(fd: u32, accessed: u64, modified: u64, which: u32);
            "fd_pread" => fd_pread(fd: u32, parts: u32, count: u32, offset: u64, len_out: u32);
            "fd_prestat_get" => fd_prestat_get(fd: u32, stat_out: u32);
            "fd_prestat_dir_name" => fd_prestat_dir_name(fd: u32, name: u32, len: u32);
            "fd_pwrite" => fd_pwrite(fd: u32, parts: u32, count: u32, offset: u64, len_out: u32);
            "fd_read" => fd_read(fd: u32, parts: u32, count: u32, len_out: u32);
            "fd_readdir" =>
                fd_readdir(fd: u32, buffer: u32, len: u32, cookie: u64, len_out: u32);
            "fd_renumber" => fd_renumber(from: u32, to: u32);
            "fd_seek" => fd_seek(fd: u32, offset: i64, whence: u32, position_out: u32);
            "fd_sync" => fd_sync(fd: u32);
            "fd_tell" => fd_tell(fd: u32, position_out: u32);
            "fd_write" => fd_write(fd: u32, parts: u32, count: u32, len_out: u32);
            "path_create_directory" => path_create_directory(fd: u32, path: u32, len: u32);
            "path_filestat_get" =>
                path_filestat_get(fd: u32, lookup: u32, path: u32, len: u32, stat_out: u32);
            "path_filestat_set_times" => path_filestat_set_times(
                fd: u32, lookup: u32, path: u32, len: u32, accessed: u64, modified: u64, which: u32
            );
            "path_link" => path_link(
                old_fd: u32, lookup: u32, old_path: u32, old_len: u32,
                new_fd: u32, new_path: u32, new_len: u32
            );
            "path_open" => path_open(
                fd: u32, lookup: u32, path: u32, len: u32, open_flags: u32,
                rights: u64, inheriting: u64, flags: u32, fd_out: u32
            );
            "path_readlink" => path_readlink(
                fd: u32, path: u32, len: u32, buffer: u32, buffer_len: u32, len_out: u32
            );
            "path_remove_directory" => path_remove_directory(fd: u32, path: u32, len: u32);
            "path_rename" => path_rename(
                old_fd: u32, old_path: u32, old_len: u32, new_fd: u32, new_path: u32, new_len: u32
            );
            "path_symlink" =>
                path_symlink(target: u32, target_len: u32, fd: u32, path: u32, len: u32);
            "path_unlink_file" => path_unlink_file(fd: u32, path: u32, len: u32);
            "poll_oneoff" =>
                poll_oneoff(subscriptions: u32, events: u32, count: u32, count_out: u32);
            "proc_raise" => proc_raise(signal: u32);
            "random_get" => random_get(buffer: u32, len: u32);
            "sched_yield" => sched_yield();
            "sock_accept" => sock_accept(fd: u32, flags: u32, fd_out: u32);
            "sock_recv" => sock_recv(
                fd: u32, parts: u32, count: u32, flags: u32, len_out: u32, flags_out: u32
            );
            "sock_send" => sock_send(fd: u32, parts: u32, count: u32, flags: u32, len_out: u32);
            "sock_shutdown" => sock_shutdown(fd: u32, how: u32);
        }
    };
}

/// The functions of WasmEdge's extension, passed to the macro `$with`. A name may have two types.
#[macro_export]
macro_rules! socket_extensions {
    ($with:ident) => {
        $with! {
            "sock_open" => sock_open(family: u32, kind: u32, fd_out: u32);
            "sock_open_v2" => sock_open(family: u32, kind: u32, fd_out: u32);
            "sock_bind" => sock_bind(fd: u32, address: u32, port: u32);
            "sock_bind_v2" => sock_bind(fd: u32, address: u32, port: u32);
            "sock_connect" => sock_connect(fd: u32, address: u32, port: u32);
            "sock_connect_v2" => sock_connect(fd: u32, address: u32, port: u32);
            "sock_listen" => sock_listen(fd: u32, backlog: u32);
            "sock_listen_v2" => sock_listen(fd: u32, backlog: u32);
            "sock_accept" => sock_accept_v1(fd: u32, fd_out: u32);
            "sock_accept_v2" => sock_accept(fd: u32, flags: u32, fd_out: u32);
            "sock_recv_v2" => sock_recv(
                fd: u32, parts: u32, count: u32, flags: u32, len_out: u32, flags_out: u32
            );
            "sock_recv_from" => sock_recv_from_v1(
                fd: u32, parts: u32, count: u32, address: u32,
                flags: u32, len_out: u32, flags_out: u32
            );
            "sock_recv_from" => sock_recv_from(
                fd: u32, parts: u32, count: u32, address: u32,
                flags: u32, port_out: u32, len_out: u32, flags_out: u32
            );
            "sock_recv_from_v2" => sock_recv_from(
                fd: u32, parts: u32, count: u32, address: u32,
                flags: u32, port_out: u32, len_out: u32, flags_out: u32
            );
            "sock_send_v2" => sock_send(fd: u32, parts: u32, count: u32, flags: u32, len_out: u32);
            "sock_send_to" => sock_send_to(
                fd: u32, parts: u32, count: u32, address: u32, port: u32, flags: u32, len_out: u32
            );
            "sock_send_to_v2" => sock_send_to(
                fd: u32, parts: u32, count: u32, address: u32, port: u32, flags: u32, len_out: u32
            );
            "sock_getsockopt" =>
                sock_getsockopt(fd: u32, level: u32, name: u32, value: u32, len: u32);
            "sock_setsockopt" =>
                sock_setsockopt(fd: u32, level: u32, name: u32, value: u32, len: u32);
            "sock_getlocaladdr" =>
                sock_getlocaladdr_v1(fd: u32, address: u32, family_out: u32, port_out: u32);
            "sock_getlocaladdr" => sock_getlocaladdr(fd: u32, address: u32, port_out: u32);
            "sock_getlocaladdr_v2" => sock_getlocaladdr(fd: u32, address: u32, port_out: u32);
            "sock_getpeeraddr" =>
                sock_getpeeraddr_v1(fd: u32, address: u32, family_out: u32, port_out: u32);
            "sock_getpeeraddr" => sock_getpeeraddr(fd: u32, address: u32, port_out: u32);
            "sock_getpeeraddr_v2" => sock_getpeeraddr(fd: u32, address: u32, port_out: u32);
            "sock_getaddrinfo" => sock_getaddrinfo(
                node: u32, node_len: u32, service: u32, service_len: u32,
                hints: u32, list: u32, max: u32, len_out: u32
            );
        }
    };
}

macro_rules! kind {
    (u32) => {
        ValueKind::I32
    };
    ($other:ident) => {
        ValueKind::I64
    };
}

macro_rules! table {
    ($($import:literal => $method:ident($($param:ident: $ty:ident),*);)*) => {
        &[$(WasiFunction { import: $import, params: &[$(kind!($ty)),*] },)*]
    };
}

/// The types of [`functions!`](crate::functions!).
pub const FUNCTIONS: &[WasiFunction] = functions!(table);

/// The types of [`socket_extensions!`](crate::socket_extensions!).
pub const SOCKET_EXTENSIONS: &[WasiFunction] = socket_extensions!(table);

#[cfg(test)]
mod tests {
    use super::*;
    use cwasi_wire::egress::{SOCKET_EXTENSIONS as KNOWN, SOCKET_FUNCTIONS};

    #[test]
    fn all_functions_of_preview_1_but_proc_exit_are_there() {
        assert_eq!(FUNCTIONS.len(), 45);
        for (name, params) in SOCKET_FUNCTIONS {
            let function = FUNCTIONS.iter().find(|function| function.import == name).unwrap();
            assert_eq!([u32::try_from(function.params.len()).unwrap()], *params, "{name}");
        }
        let seek = FUNCTIONS.iter().find(|function| function.import == "fd_seek").unwrap();
        assert_eq!(seek.params, [ValueKind::I32, ValueKind::I64, ValueKind::I32, ValueKind::I32]);
    }

    /// The types that modules may import are the types that are bound.
    #[test]
    fn every_type_of_the_extension_is_there() {
        let pairs = |(name, counts): &(&'static str, &'static [u32])| {
            counts.iter().map(|count| (*name, *count)).collect::<Vec<_>>()
        };
        let mut known: Vec<(&str, u32)> = KNOWN.iter().flat_map(pairs).collect();
        let own = |function: &WasiFunction| {
            assert!(function.params.iter().all(|kind| *kind == ValueKind::I32));
            (function.import, u32::try_from(function.params.len()).unwrap())
        };
        let mut own: Vec<(&str, u32)> = SOCKET_EXTENSIONS.iter().map(own).collect();
        known.sort_unstable();
        own.sort_unstable();
        assert_eq!(own, known);
    }
}

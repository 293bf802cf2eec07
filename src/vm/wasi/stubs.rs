//! Functions to be written.
#![expect(clippy::too_many_arguments, reason = "as WASI declares them")]
#![allow(unused_variables)]

use crate::{GuestMemory, Wasi, WasiErrno, WasiResult, functions};

macro_rules! stubs {
    ($($import:literal => $method:ident($($param:ident: $ty:ident),*);)*) => {
        impl Wasi {
            $(pub fn $method(&mut self, memory: &mut impl GuestMemory, $($param: $ty),*) -> WasiResult {
                Err(WasiErrno::NOSYS)
            })*
        }
    };
}

functions!(stubs);

impl Wasi {
    pub fn sock_open(
        &mut self,
        memory: &mut impl GuestMemory,
        a: u32,
        b: u32,
        c: u32,
    ) -> WasiResult {
        Err(WasiErrno::NOSYS)
    }
    pub fn sock_bind(
        &mut self,
        memory: &mut impl GuestMemory,
        a: u32,
        b: u32,
        c: u32,
    ) -> WasiResult {
        Err(WasiErrno::NOSYS)
    }
    pub fn sock_connect(
        &mut self,
        memory: &mut impl GuestMemory,
        a: u32,
        b: u32,
        c: u32,
    ) -> WasiResult {
        Err(WasiErrno::NOSYS)
    }
    pub fn sock_listen(&mut self, memory: &mut impl GuestMemory, a: u32, b: u32) -> WasiResult {
        Err(WasiErrno::NOSYS)
    }
    pub fn sock_accept_v1(&mut self, memory: &mut impl GuestMemory, a: u32, b: u32) -> WasiResult {
        Err(WasiErrno::NOSYS)
    }
    pub fn sock_recv_from_v1(
        &mut self,
        memory: &mut impl GuestMemory,
        a: u32,
        b: u32,
        c: u32,
        d: u32,
        e: u32,
        f: u32,
        g: u32,
    ) -> WasiResult {
        Err(WasiErrno::NOSYS)
    }
    pub fn sock_recv_from(
        &mut self,
        memory: &mut impl GuestMemory,
        a: u32,
        b: u32,
        c: u32,
        d: u32,
        e: u32,
        f: u32,
        g: u32,
        h: u32,
    ) -> WasiResult {
        Err(WasiErrno::NOSYS)
    }
    pub fn sock_send_to(
        &mut self,
        memory: &mut impl GuestMemory,
        a: u32,
        b: u32,
        c: u32,
        d: u32,
        e: u32,
        f: u32,
        g: u32,
    ) -> WasiResult {
        Err(WasiErrno::NOSYS)
    }
    pub fn sock_getsockopt(
        &mut self,
        memory: &mut impl GuestMemory,
        a: u32,
        b: u32,
        c: u32,
        d: u32,
        e: u32,
    ) -> WasiResult {
        Err(WasiErrno::NOSYS)
    }
    pub fn sock_setsockopt(
        &mut self,
        memory: &mut impl GuestMemory,
        a: u32,
        b: u32,
        c: u32,
        d: u32,
        e: u32,
    ) -> WasiResult {
        Err(WasiErrno::NOSYS)
    }
    pub fn sock_getlocaladdr_v1(
        &mut self,
        memory: &mut impl GuestMemory,
        a: u32,
        b: u32,
        c: u32,
        d: u32,
    ) -> WasiResult {
        Err(WasiErrno::NOSYS)
    }
    pub fn sock_getlocaladdr(
        &mut self,
        memory: &mut impl GuestMemory,
        a: u32,
        b: u32,
        c: u32,
    ) -> WasiResult {
        Err(WasiErrno::NOSYS)
    }
    pub fn sock_getpeeraddr_v1(
        &mut self,
        memory: &mut impl GuestMemory,
        a: u32,
        b: u32,
        c: u32,
        d: u32,
    ) -> WasiResult {
        Err(WasiErrno::NOSYS)
    }
    pub fn sock_getpeeraddr(
        &mut self,
        memory: &mut impl GuestMemory,
        a: u32,
        b: u32,
        c: u32,
    ) -> WasiResult {
        Err(WasiErrno::NOSYS)
    }
    pub fn sock_getaddrinfo(
        &mut self,
        memory: &mut impl GuestMemory,
        a: u32,
        b: u32,
        c: u32,
        d: u32,
        e: u32,
        f: u32,
        g: u32,
        h: u32,
    ) -> WasiResult {
        Err(WasiErrno::NOSYS)
    }
}

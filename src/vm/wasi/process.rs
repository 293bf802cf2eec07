//! Arguments, variables, clocks, random bytes and the scheduler. Runs in a worker.

use cwasi_host_functions::{GuestMemory, GuestPtr};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_getres, clock_gettime};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::buffers::{errno, uninterrupted};
use crate::layout::{check_room, put, put_len, put_u64};
use crate::template::Texts;
use crate::{Wasi, WasiErrno, WasiResult};

/// Length of a pointer in a guest.
const POINTER_LEN: usize = 4;

impl Wasi {
    pub fn args_get(
        &mut self,
        memory: &mut impl GuestMemory,
        pointers: u32,
        texts: u32,
    ) -> WasiResult {
        self.template.args.write(memory, pointers, texts)
    }

    pub fn args_sizes_get(
        &mut self,
        memory: &mut impl GuestMemory,
        count_out: u32,
        len_out: u32,
    ) -> WasiResult {
        self.template.args.write_sizes(memory, count_out, len_out)
    }

    pub fn environ_get(
        &mut self,
        memory: &mut impl GuestMemory,
        pointers: u32,
        texts: u32,
    ) -> WasiResult {
        self.template.env.write(memory, pointers, texts)
    }

    pub fn environ_sizes_get(
        &mut self,
        memory: &mut impl GuestMemory,
        count_out: u32,
        len_out: u32,
    ) -> WasiResult {
        self.template.env.write_sizes(memory, count_out, len_out)
    }

    pub fn clock_res_get(
        &mut self,
        memory: &mut impl GuestMemory,
        clock: u32,
        resolution_out: u32,
    ) -> WasiResult {
        put_u64(memory, resolution_out, nanoseconds(clock_getres(clock_of(clock)?)?))
    }

    pub fn clock_time_get(
        &mut self,
        memory: &mut impl GuestMemory,
        clock: u32,
        _precision: u64,
        time_out: u32,
    ) -> WasiResult {
        put_u64(memory, time_out, now(clock_of(clock)?)?)
    }

    pub fn random_get(
        &mut self,
        memory: &mut impl GuestMemory,
        buffer: u32,
        len: u32,
    ) -> WasiResult {
        let mut rest = memory.slice_mut(GuestPtr(buffer), len)?;
        // The kernel fills at most 32 MiB at once.
        while !rest.is_empty() {
            let fill = || getrandom(&mut *rest, GetRandomFlags::empty()).map_err(errno);
            let filled = uninterrupted(fill)?;
            rest = &mut rest[filled..];
        }
        Ok(())
    }

    pub fn sched_yield(&mut self, _memory: &mut impl GuestMemory) -> WasiResult {
        std::thread::yield_now();
        Ok(())
    }

    /// Guests have no signals.
    pub fn proc_raise(&mut self, _memory: &mut impl GuestMemory, _signal: u32) -> WasiResult {
        Err(WasiErrno::NOTSUP)
    }
}

impl Texts {
    /// Writes the texts, and a pointer to each.
    fn write(&self, memory: &mut impl GuestMemory, pointers: u32, texts: u32) -> WasiResult {
        put(memory, texts, &self.bytes)?;
        let len = u32::try_from(self.starts.len() * POINTER_LEN);
        let array = memory.slice_mut(GuestPtr(pointers), len.map_err(|_| WasiErrno::OVERFLOW)?)?;
        for (pointer, start) in array.chunks_exact_mut(POINTER_LEN).zip(&self.starts) {
            pointer.copy_from_slice(&texts.wrapping_add(*start).to_le_bytes());
        }
        Ok(())
    }

    fn write_sizes(
        &self,
        memory: &mut impl GuestMemory,
        count_out: u32,
        len_out: u32,
    ) -> WasiResult {
        check_room(memory, len_out, 4)?;
        put_len(memory, count_out, self.starts.len())?;
        put_len(memory, len_out, self.bytes.len())
    }
}

/// The clock by its number in WASI.
fn clock_of(number: u32) -> WasiResult<ClockId> {
    match number {
        0 => Ok(ClockId::CLOCK_REALTIME),
        1 => Ok(ClockId::CLOCK_MONOTONIC),
        2 => Ok(ClockId::CLOCK_PROCESS_CPUTIME_ID),
        3 => Ok(ClockId::CLOCK_THREAD_CPUTIME_ID),
        _ => Err(WasiErrno::INVAL),
    }
}

/// A clock's time in nanoseconds.
pub(crate) fn now(clock: ClockId) -> WasiResult<u64> {
    Ok(nanoseconds(clock_gettime(clock)?))
}

fn nanoseconds(time: TimeSpec) -> u64 {
    let number = |number: i64| u64::try_from(number).unwrap_or_default();
    number(time.tv_sec()).saturating_mul(1_000_000_000).saturating_add(number(time.tv_nsec()))
}

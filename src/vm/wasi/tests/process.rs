//! Texts, clocks and random bytes.

use super::*;

fn instance() -> Wasi {
    let texts = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
    let spec = InstanceSpec {
        args: texts(&["name", "", "x"]),
        env: texts(&["A=1"]),
        ..InstanceSpec::default()
    };
    Wasi::new(&Rc::new(WasiTemplate::new(&spec, None).unwrap()))
}

#[test]
fn texts_are_laid_out_with_pointers() {
    let (mut wasi, mut memory) = (instance(), Memory::new());
    wasi.args_sizes_get(&mut memory, 0, 4).unwrap();
    assert_eq!((memory.u32_at(0), memory.u32_at(4)), (3, 8));
    wasi.args_get(&mut memory, 100, 200).unwrap();
    assert_eq!([100, 104, 108].map(|at| memory.u32_at(at)), [200, 205, 206]);
    assert_eq!(memory.bytes_at(200, 8), b"name\0\0x\0");
    wasi.environ_sizes_get(&mut memory, 0, 4).unwrap();
    assert_eq!((memory.u32_at(0), memory.u32_at(4)), (1, 4));
    wasi.environ_get(&mut memory, 100, 200).unwrap();
    assert_eq!(memory.bytes_at(200, 4), b"A=1\0");
    for (pointers, texts) in [(4090, 0), (0, 4090), (u32::MAX, 0), (0, u32::MAX)] {
        assert_eq!(wasi.args_get(&mut memory, pointers, texts), Err(WasiErrno::FAULT));
        assert_eq!(wasi.args_sizes_get(&mut memory, 4094, 0), Err(WasiErrno::FAULT));
    }
    let mut bare = Wasi::new(&Rc::new(WasiTemplate::default()));
    bare.args_sizes_get(&mut memory, 0, 4).unwrap();
    assert_eq!((memory.u32_at(0), memory.u32_at(4)), (0, 0));
    assert_eq!(bare.fd_prestat_get(&mut memory, 3, 0), Err(WasiErrno::BADF));
    assert_eq!(bare.args_get(&mut memory, u32::MAX, u32::MAX), Ok(()));
}

#[test]
fn clocks_run() {
    let (mut wasi, mut memory) = (instance(), Memory::new());
    for clock in 0..4 {
        wasi.clock_res_get(&mut memory, clock, 0).unwrap();
        assert!(memory.u64_at(0) > 0, "{clock}");
        wasi.clock_time_get(&mut memory, clock, 1, 8).unwrap();
        let before = memory.u64_at(8);
        assert!(before > 0, "{clock}");
        wasi.clock_time_get(&mut memory, clock, 1, 8).unwrap();
        assert!(memory.u64_at(8) >= before, "{clock}");
    }
    wasi.clock_time_get(&mut memory, 0, 0, 8).unwrap();
    let year_2020 = 1_577_836_800_000_000_000;
    assert!(memory.u64_at(8) > year_2020);
    assert_eq!(wasi.clock_time_get(&mut memory, 4, 0, 8), Err(WasiErrno::INVAL));
    assert_eq!(wasi.clock_res_get(&mut memory, 4, 8), Err(WasiErrno::INVAL));
    assert_eq!(wasi.clock_time_get(&mut memory, 0, 0, 4090), Err(WasiErrno::FAULT));
}

#[test]
fn random_bytes_fill_exactly_the_buffer() {
    let (mut wasi, mut memory) = (instance(), Memory::new());
    wasi.random_get(&mut memory, 100, 3000).unwrap();
    assert_eq!(memory.bytes_at(0, 100), [0; 100]);
    assert_eq!(memory.bytes_at(3100, 996), [0; 996]);
    let zeros = memory.bytes_at(100, 3000).iter().filter(|byte| **byte == 0).count();
    assert!(zeros < 100, "{zeros}");
    let mut large = Memory(vec![0; 40 << 20]);
    wasi.random_get(&mut large, 0, 40 << 20).unwrap();
    assert_ne!(large.bytes_at((40 << 20) - 64, 64), [0; 64]);
    assert_eq!(wasi.random_get(&mut memory, 4000, 100), Err(WasiErrno::FAULT));
    assert_eq!(wasi.sched_yield(&mut memory), Ok(()));
    assert_eq!(wasi.proc_raise(&mut memory, 9), Err(WasiErrno::NOTSUP));
}

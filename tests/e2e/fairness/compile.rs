//! Compilers: one namespace queues slow modules, and another's small module is compiled when its turn comes.

use cwasi_config::Engine;
use cwasi_testbed::run::Running;
use cwasi_testbed::scene::wait_for;
use cwasi_testbed::slow_module::slow_module;

use super::cache_of_its_own::Cache;

/// Slow modules that wait at the same time.
const FLOOD: u32 = 5;
/// Functions of one of them: some seconds of WasmEdge's compiler.
const FUNCTIONS: u32 = 30;
/// Compilations of the flood that may end while the neighbour waits: the one that runs, and one that another turn began.
const BEFORE_NEIGHBOUR: usize = 2;

/// A module of the neighbour's that no other test has.
fn small() -> Vec<u8> {
    wat::parse_str(
        r#"(module (memory 1) (data (i32.const 0) "neighbour") (func (export "_start")))"#,
    )
    .unwrap()
}

#[test]
fn a_queue_of_slow_modules_delays_a_neighbour_by_one_turn() {
    let flooded = crate::scene("fair-compile");
    let namespace = format!("{}-neighbour", flooded.namespace);
    let neighbour = flooded.beside(crate::SHIM, &namespace);
    let cache = Cache::new(
        &flooded,
        Engine::Wasmedge,
        "jobs = 1\nlocals = 100000000\nmemory = \"6GiB\"\nmemory_total = \"6GiB\"\ncpu_seconds = 600",
    );
    let image = neighbour.import_module("fair-small", &small());
    let flood: Vec<Running> = (0..FLOOD)
        .map(|number| {
            let name = format!("fair-slow-{number}");
            let image = flooded.import_module(&name, &slow_module(FUNCTIONS + number));
            flooded.image(&image, &name).spawn(&flooded.containerd).unwrap()
        })
        .collect();
    wait_for("the flood to wait", || (cache.tickets() > BEFORE_NEIGHBOUR).then_some(()));
    let small = neighbour.image(&image, "small").args(["/m.wasm"]);
    let mut small = small.spawn(&neighbour.containerd).unwrap();
    // What is compiled before it waits does not count.
    wait_for("the neighbour to wait", || {
        (cache.waits(&neighbour.namespace) || small.has_ended()).then_some(())
    });
    let before = cache.compiled();
    let _ended = small.finish().unwrap().success();
    let during = cache.compiled() - before;
    // One of those is the neighbour's own.
    assert!(
        during <= BEFORE_NEIGHBOUR + 1,
        "{during} modules were compiled before the neighbour's"
    );
    for running in flood {
        let _outcome = running.finish().unwrap().success();
    }
    assert_eq!(cache.compiled(), FLOOD as usize + 1, "the flood's modules have their turns, too");
    assert_eq!(cache.tickets(), 0);
}

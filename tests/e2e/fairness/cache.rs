//! The cache of compiled modules: one namespace fills it, its bound holds, and another's functions start.

use std::fmt::Write as _;

use cwasi_config::DEFAULT_ENGINE;

use super::cache_of_its_own::Cache;
use super::neighbour::Neighbour;

const BOUND: u64 = 4 << 20;
/// Functions of one of the flood's modules.
const FUNCTIONS: u32 = 1500;
/// Most modules of the flood.
const FLOOD_MAX: u32 = 60;

/// A module with much native code. Each `number` is another one.
fn large(number: u32) -> Vec<u8> {
    let mut text = "(module (memory 1) (func (export \"_start\"))".to_owned();
    for function in 0..FUNCTIONS {
        let key = number * FUNCTIONS + function;
        write!(
            text,
            "(func (export \"f{function}\") (param i32) (result i32) (i32.store (local.get 0) (i32.const {key}))
             (i32.div_u (i32.load (i32.const {function})) (local.get 0)))"
        )
        .unwrap();
    }
    text.push(')');
    wat::parse_str(text).unwrap()
}

#[test]
fn a_full_cache_keeps_its_bound_and_the_neighbours_functions_start() {
    let flooded = crate::scene("fair-cache");
    let cache = Cache::new(&flooded, DEFAULT_ENGINE, &format!("cache_max = {BOUND}"));
    let neighbour = Neighbour::beside(&flooded);
    neighbour.calls(3);
    let calls = neighbour.calls_in_background(100);
    let mut written = 0;
    let mut number = 0;
    while written <= 2 * BOUND {
        assert!(number < FLOOD_MAX, "{written} bytes of native code from {number} modules");
        let name = format!("fair-large-{number}");
        let before = cache.entries();
        let image = flooded.import_module(&name, &large(number));
        let _ended = flooded.run(flooded.image(&image, &name).args(["/m.wasm"])).success();
        let new = cache.entries().into_iter().filter(|(path, _)| !before.contains_key(path));
        written += new.map(|(_, len)| len).sum::<u64>();
        number += 1;
        let total: u64 = cache.entries().values().sum();
        assert!(total <= BOUND, "{total} bytes after {number} modules");
    }
    Neighbour::assert_answered(100, calls.finish().unwrap());
    // Its modules are compiled again, if the flood's took their place.
    neighbour.calls(3);
    assert!(cache.compiled() < number as usize, "none of the flood's modules went");
}

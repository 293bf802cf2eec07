//! Code for a named processor instead of this machine's: its features, as `/proc/cpuinfo` names them, and the flags that
//! Cranelift has for them.

use std::env::consts::ARCH;

use wasmtime::Config;

/// Features and their flags; a flag that is named twice needs both features.
const FLAGS: [(&str, &str); 25] = [
    ("abm", "has_lzcnt"),
    ("asimddp", "has_dotprod"),
    ("asimdhp", "has_fp16"),
    ("atomics", "has_lse"),
    ("avx", "has_avx"),
    ("avx2", "has_avx2"),
    ("avx512_bitalg", "has_avx512bitalg"),
    ("avx512_vnni", "has_avx512vnni"),
    ("avx512dq", "has_avx512dq"),
    ("avx512f", "has_avx512f"),
    ("avx512vbmi", "has_avx512vbmi"),
    ("avx512vl", "has_avx512vl"),
    ("avx_vnni", "has_avx_vnni"),
    ("bmi1", "has_bmi1"),
    ("bmi2", "has_bmi2"),
    ("cx16", "has_cmpxchg16b"),
    ("fma", "has_fma"),
    ("fphp", "has_fp16"),
    ("i8mm", "has_i8mm"),
    ("paca", "has_pauth"),
    ("pni", "has_sse3"),
    ("popcnt", "has_popcnt"),
    ("sse4_1", "has_sse41"),
    ("sse4_2", "has_sse42"),
    ("ssse3", "has_ssse3"),
];

/// Sets a configuration to a processor of this machine's architecture with these features and no others.
///
/// # Errors
/// A feature that no flag stands for.
pub fn restrict(config: &mut Config, features: &[String]) -> Result<(), String> {
    let has = |name: &str| features.iter().any(|feature| feature == name);
    if let Some(unknown) = features.iter().find(|name| !FLAGS.iter().any(|(it, _)| it == name)) {
        return Err(format!("the compiler knows no feature `{}`", unknown.escape_debug()));
    }
    config.target(&format!("{ARCH}-unknown-linux-gnu")).map_err(|error| error.to_string())?;
    for (_, flag) in FLAGS {
        let mut needed = FLAGS.iter().filter(|(_, other)| *other == flag);
        if needed.all(|(feature, _)| has(feature)) {
            enable(config, flag);
        }
    }
    Ok(())
}

#[expect(unsafe_code, reason = "wasmtime has no other way to name a processor's features")]
fn enable(config: &mut Config, flag: &str) {
    // SAFETY:
    // - the flag is of `FLAGS`, which only say that an instruction exists;
    // - the code is compiled here, not run; wasmtime loads it only where the processor has each of them.
    unsafe { config.cranelift_flag_enable(flag) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_feature_has_a_flag_of_its_architecture() {
        let own = if ARCH == "x86_64" { "pni" } else { "atomics" };
        let mut config = Config::new();
        restrict(&mut config, &[own.to_owned()]).unwrap();
        wasmtime::Engine::new(&config).unwrap();
        let error = restrict(&mut config, &["mmx2".to_owned()]).unwrap_err();
        assert_eq!(error, "the compiler knows no feature `mmx2`");
    }
}

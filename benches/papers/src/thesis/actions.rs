//! Tables 1 and 2: lines and sizes of the actions. Tables 18 and 19: what `/init` and the least `/run` of each take.

use anyhow::Result;
use cwasi_bench::fixture::stage;
use serde_json::{Value, json};

use crate::exhibit::{Exhibit, Form as Drawn};
use crate::openwhisk::code::{Form, lines, of};
use crate::openwhisk::{ABOUT, hashing, platforms};
use crate::run::{Group, Run};
use crate::series::Series;

pub const SIZES: Group = Group {
    name: "thesis: lines and sizes of actions",
    entries: &["thesis-lines", "thesis-sizes", "wow-code"],
    run: sizes,
};

pub const PARTS: Group = Group {
    name: "thesis: parts of cold and warm starts",
    entries: &["thesis-init", "thesis-run"],
    run: parts,
};

const NAMES: [&str; 5] = ["hello", "hash", "prime", "net", "sleep"];
/// Of the thesis: lines and kilobytes of its Wasm and of its Docker actions.
const PUBLISHED: [(&str, [f64; 4]); 5] = [
    ("hello", [13.0, 555.0, 18.0, 14.0]),
    ("hash", [21.0, 459.0, 33.0, 21.0]),
    ("prime", [19.0, 559.0, 51.0, 18.0]),
    ("net", [15.0, 426.0, 17.0, 14.0]),
    ("sleep", [23.0, 455.0, 17.0, 14.0]),
];
/// Of the thesis: means in µs of decoding the code and of making the runtime (Table 18), of WASI and of the instance
/// (Table 19).
const PARTS_PUBLISHED: [(&str, [f64; 4]); 5] = [
    ("hello", [499.4, 1176.9, 172.0, 177.8]),
    ("hash", [453.5, 1008.9, 126.2, 141.1]),
    ("prime", [548.6, 1261.6, 134.6, 163.2]),
    ("net", [374.8, 920.4, 149.1, 149.4]),
    ("sleep", [389.5, 893.0, 146.2, 175.5]),
];

/// Numbers of a table in the form of [`Exhibit::published`].
fn published(
    numbers: &'static [(&'static str, [f64; 4]); 5],
    columns: [(&'static str, usize); 2],
) -> Vec<(&'static str, &'static str, f64)> {
    let row = |(action, values): &(&'static str, [f64; 4])| {
        columns.map(|(side, column)| (side, *action, values[column]))
    };
    numbers.iter().flat_map(row).collect()
}

#[expect(clippy::cast_precision_loss, reason = "megabytes")]
fn sizes(run: &Run) -> Result<Vec<Exhibit>> {
    const MODULES: &str = "CWASI, module";
    let source = |(action, lines): (&'static str, usize)| {
        Series::new("CWASI and native, one source", action, "lines", vec![lines as f64])
    };
    let lines = lines().into_iter().map(source).collect();
    let mut sizes = Vec::new();
    for (side, form) in [(MODULES, Form::Module), ("native program", Form::Program)] {
        for action in NAMES {
            let size = of(&run.programs, form, action)?.len() as f64 / 1e3;
            sizes.push(Series::new(side, action, "KB", vec![size]));
        }
    }
    let counted = "Lines that are neither blank nor a comment, of the file of the action. The thesis counts whole files, with their \
        imports.";
    let measured = "What `/init` delivers, before base64: the module, which is for every processor, and the native program without \
        symbols. The thesis’ size of a Wasm action is that of native code that was compiled before, in an archive.";
    let of_code = "WOW names the metric and prints no numbers; the thesis’ Table 1 has them.";
    Ok(vec![
        Exhibit::new("thesis-lines", Drawn::Table, counted, lines)
            .published(&published(&PUBLISHED, [("Wasm", 0), ("Docker", 2)])),
        Exhibit::new("thesis-sizes", Drawn::Table, measured, sizes.clone())
            .published(&published(&PUBLISHED, [("Wasm", 1), ("Docker", 3)])),
        Exhibit::new("wow-code", Drawn::Table, format!("{measured} {of_code}"), sizes),
    ])
}

/// Parameters with which an action does as little as it can.
fn least(action: &str) -> Value {
    match action {
        "hash" => hashing(1),
        "prime" => json!({ "nth": 1 }),
        "net" | "sleep" => json!({ "milliseconds": 0 }),
        _ => json!({ "name": "there" }),
    }
}

fn parts(run: &Run) -> Result<Vec<Exhibit>> {
    let scene = stage(&run.programs, "papers-parts")?;
    let platforms = platforms(run, &scene, 1, &NAMES)?;
    let repeats = run.effort.pick(100, 10);
    let (mut inits, mut runs) = (Vec::new(), Vec::new());
    for (side, platform) in platforms.iter().enumerate() {
        for action in NAMES {
            let id = |number| format!("parts-{side}-{action}-{number}");
            // Compiles the module.
            let warm = platform.start(&scene, &id(repeats), action)?;
            let init = |number| Ok(1e3 * platform.create(&scene, &id(number), action)?.init()?);
            let init = (0..repeats).map(init).collect::<Result<Vec<_>>>()?;
            let target = warm.activation(&least(action));
            target.ask()?;
            let ran = (0..repeats).map(|_| Ok(1e3 * target.ask()?)).collect::<Result<Vec<_>>>()?;
            inits.push(Series::new(&platform.name, action, "µs", init));
            runs.push(Series::new(&platform.name, action, "µs", ran));
        }
    }
    let init = format!(
        "The whole request `/init` of code that was compiled before, {repeats} times each, one after the other. The thesis’ numbers \
         are two parts of it, inside of WOW’s executor and without HTTP. {ABOUT}"
    );
    let ran = format!(
        "The whole request `/run` of an action that is warm and does the least that it can, {repeats} times each. The thesis’ \
         numbers are two parts of it, inside of WOW’s executor and without HTTP, parameters and the action. {ABOUT}"
    );
    Ok(vec![
        Exhibit::new("thesis-init", Drawn::Table, init, inits).published(&published(
            &PARTS_PUBLISHED,
            [("WOW, decoding the code", 0), ("WOW, making the runtime", 1)],
        )),
        Exhibit::new("thesis-run", Drawn::Table, ran, runs).published(&published(
            &PARTS_PUBLISHED,
            [("WOW, adding WASI", 2), ("WOW, making the instance", 3)],
        )),
    ])
}

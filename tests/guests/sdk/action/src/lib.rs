//! An action of OpenWhisk, whose parameter `do` says what it does. Without it, it is an echo that prints.
//!
//! Runs inside a guest, one instance per request.

use std::env::var;

use cwasi::action::{Value, json, property};

/// Variables that come with the container or with `/init`.
const VARIABLES: [&str; 6] = ["ARRAY", "OBJECT", "STRING", "NUMBER", "BOOL", "NULL"];
/// Properties of an activation.
const PROPERTIES: [&str; 5] = ["api_key", "namespace", "action_name", "activation_id", "deadline"];

#[cwasi::action]
fn act(parameters: Value) -> Result<Value, String> {
    match parameters["do"].as_str().unwrap_or("echo") {
        "echo" => {
            println!("hello stdout");
            eprintln!("hello stderr");
            Ok(parameters)
        }
        "unicode" => {
            let delimiter = parameters["delimiter"].as_str().unwrap_or_default();
            let winter = format!("{delimiter} ☃ {delimiter}");
            println!("{winter}");
            Ok(json!({ "winter": winter }))
        }
        "text" => Ok(json!("no object")),
        "nothing" => Ok(json!({})),
        "read" => {
            let path = parameters["path"].as_str().unwrap_or_default();
            let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
            Ok(json!({ "text": text }))
        }
        "fail" => Err("the action failed".to_owned()),
        "trap" => panic!("the action trapped"),
        "spin" => loop {
            std::hint::black_box(0);
        },
        "variables" => Ok(VARIABLES.iter().map(|name| (*name, json!(var(name).ok()))).collect()),
        "properties" => {
            let properties = PROPERTIES.iter().map(|name| (*name, json!(property(name))));
            let host = ("api_host", json!(var("__OW_API_HOST").ok()));
            Ok(properties.chain([host]).collect())
        }
        other => Err(format!("action knows no {other:?}")),
    }
}

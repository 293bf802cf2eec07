//! An action of OpenWhisk that greets.

use cwasi::action::{Value, json};

#[cwasi::action]
fn hello(parameters: Value) -> Result<Value, String> {
    let name = parameters["name"].as_str().ok_or("whom?")?;
    let activation = cwasi::action::activation_id();
    Ok(json!({ "greeting": format!("Hello, {name}!"), "activation": activation }))
}

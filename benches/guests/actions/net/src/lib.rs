//! The action `net` of WOW or of the thesis. Runs inside a guest.

use cwasi::action::Value;

#[cwasi::action]
fn act(parameters: Value) -> Result<Value, String> {
    bench_actions::net(&parameters)
}

//! A secondary that answers the query of an HTTP request: the actions of WOW and of the thesis. Runs inside a guest.

#[cwasi::handler]
fn act(_payload: &[u8]) -> Result<String, String> {
    bench_actions::answer(&cwasi::http::query())
}

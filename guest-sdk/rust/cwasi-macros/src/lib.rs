//! `#[cwasi::handler]`, `#[cwasi::action]`, `#[cwasi::export]` and `cwasi::import!`; use them through the crate
//! `cwasi`. Runs in the compiler.
//!
//! The macros need names, and of types only whether they are references; traits in `cwasi` do the rest. So they read
//! tokens themselves and depend on no parser.

mod link;
mod signature;

use proc_macro::{Delimiter, TokenStream, TokenTree};

/// Exports a function to the modules that this one is embedded in; they declare it with `cwasi::import!`.
///
/// Parameters are numbers, `&[u8]` and `&str`. The result is a number, `Vec<u8>`, `String`, `()`, or a `Result` of
/// one of them and an error that can be displayed. Bytes are copied once into the library's memory, and the
/// result's once into the caller's. A library without a handler also needs `cwasi::library!()`.
#[proc_macro_attribute]
pub fn export(attribute: TokenStream, item: TokenStream) -> TokenStream {
    if !attribute.is_empty() {
        return error("#[cwasi::export] takes no arguments");
    }
    match link::export(item.clone()) {
        Ok(export) => item.into_iter().chain(export).collect(),
        Err(message) => error(&format!("#[cwasi::export]: {message}")),
    }
}

/// Declares functions of an embedded module, as that exports them.
///
/// A function whose result is no `Result` panics when the library answers with an error.
#[proc_macro]
pub fn import(input: TokenStream) -> TokenStream {
    link::import(input).unwrap_or_else(|message| error(&format!("cwasi::import!: {message}")))
}

/// Makes a function the module's handler: one call of `cwasi::call` elsewhere runs it once.
///
/// The function takes the payload as `&[u8]` or `Vec<u8>` and returns the response: `Vec<u8>`, `String`,
/// `()`, `cwasi::Region`, or a `Result` of one of them and an error that can be displayed. A large payload is
/// mapped for `&[u8]` and copied once for `Vec<u8>`. Where calls are joined (`cwasi.fan-in`) it takes
/// `cwasi::Parts<'_>`, all parts of a group.
#[proc_macro_attribute]
pub fn handler(attribute: TokenStream, item: TokenStream) -> TokenStream {
    if !attribute.is_empty() {
        return error("#[cwasi::handler] takes no arguments");
    }
    match function_name(item.clone()) {
        Ok(name) => {
            let mut tokens = item;
            tokens.extend(exports(&name));
            tokens
        }
        Err(message) => error(message),
    }
}

/// Makes a function of JSON the module's handler: an action of OpenWhisk, and a callee of any other caller.
///
/// The function takes one parameter of a type that serde deserializes, such as `cwasi::action::Value`. It returns a
/// `Result` of a type that serde serializes to a JSON object, and an error that can be displayed.
#[proc_macro_attribute]
pub fn action(attribute: TokenStream, item: TokenStream) -> TokenStream {
    if !attribute.is_empty() {
        return error("#[cwasi::action] takes no arguments");
    }
    match function_name(item.clone()) {
        Ok(name) => item.into_iter().chain(action_exports(&name)).collect(),
        Err(message) => error(message),
    }
}

/// A handler of bytes that runs the action, with its exports.
fn action_exports(name: &str) -> TokenStream {
    let handler = format!(
        "fn __cwasi_action(payload: &[u8]) -> ::core::result::Result<::std::vec::Vec<u8>, ::std::string::String> {{
            ::cwasi::action::run({name}, payload)
        }}"
    );
    let exports = exports("__cwasi_action");
    format!("const _: () = {{ {handler} {exports} }};").parse().expect("the template is Rust")
}

/// The name behind the first `fn` outside of groups.
fn function_name(item: TokenStream) -> Result<String, &'static str> {
    let mut tokens = item.into_iter().peekable();
    while let Some(token) = tokens.next() {
        let TokenTree::Ident(ident) = &token else { continue };
        match ident.to_string().as_str() {
            "async" => {
                return Err("a handler is not async: a guest has one thread and no executor");
            }
            "fn" => {
                let Some(TokenTree::Ident(name)) = tokens.next() else { break };
                return match tokens.peek() {
                    Some(TokenTree::Group(group))
                        if group.delimiter() == Delimiter::Parenthesis =>
                    {
                        Ok(name.to_string())
                    }
                    _ => Err("a handler has no generic parameters"),
                };
            }
            _ => {}
        }
    }
    Err("#[cwasi::handler] belongs on a function")
}

/// The exports that the host calls, in a scope of their own; their names must not hide the handler's.
fn exports(name: &str) -> TokenStream {
    format!(
        r#"const _: () = {{
            #[allow(unsafe_code)]
            #[unsafe(export_name = "_initialize")]
            extern "C" fn __cwasi_initialize() {{ ::cwasi::export::initialize() }}

            #[allow(unsafe_code)]
            #[unsafe(export_name = "cwasi_alloc")]
            extern "C" fn __cwasi_alloc(len: u32, align: u32) -> u32 {{
                ::cwasi::export::alloc({name}, len, align)
            }}

            #[allow(unsafe_code)]
            #[unsafe(export_name = "cwasi_response")]
            static __CWASI_RESPONSE: ::cwasi::export::ResponsePlace =
                ::cwasi::export::ResponsePlace::new();

            #[allow(unsafe_code)]
            #[unsafe(export_name = "cwasi_payload")]
            static __CWASI_PAYLOAD: ::cwasi::export::PayloadBuffer =
                ::cwasi::export::PayloadBuffer::new();

            #[allow(unsafe_code)]
            #[unsafe(export_name = "cwasi_handle")]
            unsafe extern "C" fn __cwasi_handle(ptr: u32, len: u32, response_out: u32) -> i32 {{
                let buffer = &__CWASI_PAYLOAD;
                // SAFETY:
                // - the host passes the buffer, or blocks that it asked `cwasi_alloc` for.
                unsafe {{ ::cwasi::export::handle({name}, ptr, len, response_out, buffer) }}
            }}
        }};"#
    )
    .parse()
    .expect("the template is Rust")
}

fn error(message: &str) -> TokenStream {
    format!("::core::compile_error!({message:?});").parse().expect("the template is Rust")
}

//! Code of `#[cwasi::export]` and `cwasi::import!`: the two ends of a linked call. Runs in the compiler.

use proc_macro::{Delimiter, TokenStream, TokenTree};

use crate::signature::{Parameter, Signature};

/// The export of a library's function.
pub(crate) fn export(item: TokenStream) -> Result<TokenStream, String> {
    let signature = Signature::parse(item)?;
    let Signature { name, parameters, .. } = &signature;
    let mut buffers = 0;
    let mut reads = String::new();
    let mut arguments = Vec::new();
    for parameter in parameters {
        if parameter.is_buffer() {
            reads.push_str(&format!("let buffer_{buffers} = ::cwasi::link::argument({buffers})?;"));
            arguments.push(format!("::cwasi::link::view(&buffer_{buffers})?"));
            buffers += 1;
        } else {
            arguments.push(parameter.name.clone());
        }
    }
    let numbers = numbers(parameters);
    let checks = checks(parameters);
    let arguments = arguments.join(", ");
    Ok(parse(&format!(
        r#"const _: () = {{
            #[allow(unsafe_code)]
            #[unsafe(export_name = "{name}")]
            extern "C" fn __cwasi_export({numbers}) -> i32 {{
                {checks}
                ::cwasi::link::serve(|| {{ {reads} Ok({name}({arguments})) }})
            }}
        }};"#
    )))
}

/// The module that stands for an embedded one.
pub(crate) fn import(input: TokenStream) -> Result<TokenStream, String> {
    let mut before = Vec::new();
    let mut tokens = input.into_iter();
    let (name, body) = loop {
        let token = tokens.next().ok_or("`mod name { fn …; }` is wanted")?;
        if !matches!(&token, TokenTree::Ident(ident) if ident.to_string() == "mod") {
            before.push(token);
            continue;
        }
        match (tokens.next(), tokens.next()) {
            (Some(TokenTree::Ident(name)), Some(TokenTree::Group(body)))
                if body.delimiter() == Delimiter::Brace =>
            {
                break (name.to_string(), body.stream());
            }
            _ => return Err("`mod name { fn …; }` is wanted".into()),
        }
    };
    if tokens.next().is_some() {
        return Err("one `mod` at a time".into());
    }
    let mut functions = String::new();
    let mut one = Vec::new();
    for token in body {
        let ends = matches!(&token, TokenTree::Punct(punct) if punct.as_char() == ';');
        one.push(token);
        if ends {
            functions.push_str(&function(&name, std::mem::take(&mut one))?);
        }
    }
    if !one.is_empty() {
        return Err("a `;` is missing after the last function".into());
    }
    let before: TokenStream = before.into_iter().collect();
    Ok(parse(&format!("{before} mod {name} {{ {functions} }}")))
}

/// One imported function, with whatever stood before its `fn`.
fn function(module: &str, tokens: Vec<TokenTree>) -> Result<String, String> {
    let before: TokenStream = tokens
        .iter()
        .take_while(|token| !matches!(token, TokenTree::Ident(ident) if ident.to_string() == "fn"))
        .filter(|token| token.to_string() != "pub")
        .cloned()
        .collect();
    let signature = Signature::parse(tokens.into_iter().collect())?;
    let Signature { name, parameters, result } = &signature;
    let result = if result.is_empty() { "()" } else { result };
    let all = list(parameters.iter());
    let numbers = numbers(parameters);
    let offers: String = parameters
        .iter()
        .filter(|parameter| parameter.is_buffer())
        .map(|parameter| format!("::cwasi::link::offer({}.as_ref());", parameter.name))
        .collect();
    let passed: Vec<&str> = parameters
        .iter()
        .filter(|parameter| !parameter.is_buffer())
        .map(|parameter| parameter.name.as_str())
        .collect();
    let passed = passed.join(", ");
    let checks = checks(parameters);
    Ok(format!(
        r#"{before}
        #[allow(unsafe_code)]
        pub fn {name}({all}) -> {result} {{
            #[cfg(target_family = "wasm")]
            #[link(wasm_import_module = "{module}")]
            unsafe extern "C" {{
                #[link_name = "{name}"]
                fn __cwasi_import({numbers}) -> i32;
            }}
            // Without a host, in a function's own unit tests for example, nothing is linked.
            #[cfg(not(target_family = "wasm"))]
            unsafe fn __cwasi_import({numbers}) -> i32 {{ ::cwasi::link::UNLINKED }}
            {checks}
            {offers}
            // SAFETY:
            // - an embedded module's function, whose type the host has checked.
            ::cwasi::link::result("{module}.{name}", unsafe {{ __cwasi_import({passed}) }})
        }}
        "#
    ))
}

/// Parameters of the Wasm function: the numbers, in order.
fn numbers(parameters: &[Parameter]) -> String {
    list(parameters.iter().filter(|parameter| !parameter.is_buffer()))
}

fn list<'a>(parameters: impl Iterator<Item = &'a Parameter>) -> String {
    parameters
        .map(|parameter| format!("{}: {}", parameter.name, parameter.ty))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Readable errors for types that cannot be passed.
fn checks(parameters: &[Parameter]) -> String {
    let numbers = parameters.iter().filter(|parameter| !parameter.is_buffer());
    numbers.map(|parameter| format!("::cwasi::link::number::<{}>();", parameter.ty)).collect()
}

fn parse(text: &str) -> TokenStream {
    text.parse().expect("the template is Rust")
}

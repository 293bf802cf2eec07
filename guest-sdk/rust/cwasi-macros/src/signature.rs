//! Reads a function's signature from tokens: name, parameters, result. Types stay tokens. Runs in the compiler.

use proc_macro::{Delimiter, TokenStream, TokenTree};

/// A function as the macros see it.
pub(crate) struct Signature {
    /// Its name.
    pub(crate) name: String,
    /// Its parameters in order.
    pub(crate) parameters: Vec<Parameter>,
    /// Type of its result; empty for `()`.
    pub(crate) result: String,
}

/// A parameter: a name and a type.
pub(crate) struct Parameter {
    /// Its name.
    pub(crate) name: String,
    /// Its type.
    pub(crate) ty: String,
}

impl Parameter {
    /// True for what is copied from memory to memory; everything else is a number, passed as it is.
    pub(crate) fn is_buffer(&self) -> bool {
        self.ty.starts_with('&')
    }
}

impl Signature {
    /// The signature behind the first `fn` outside of groups; the body or `;` that follows is left alone.
    pub(crate) fn parse(item: TokenStream) -> Result<Self, String> {
        let mut tokens = item.into_iter();
        while let Some(token) = tokens.next() {
            match token.to_string().as_str() {
                "async" => return Err("it is async: a guest has one thread and no executor".into()),
                "fn" => return Self::after_fn(&mut tokens),
                _ => {}
            }
        }
        Err("there is no function".into())
    }

    fn after_fn(tokens: &mut impl Iterator<Item = TokenTree>) -> Result<Self, String> {
        let Some(TokenTree::Ident(name)) = tokens.next() else {
            return Err("a name belongs behind `fn`".into());
        };
        let parameters = match tokens.next() {
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis => {
                parameters(group.stream())?
            }
            _ => {
                return Err(format!(
                    "`{name}` has generic parameters: its caller is another module"
                ));
            }
        };
        let mut result = Vec::new();
        for token in tokens {
            match &token {
                TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => break,
                TokenTree::Punct(punct) if punct.as_char() == ';' => break,
                _ => result.push(token),
            }
        }
        let result = text(result.into_iter().skip(2));
        Ok(Self { name: name.to_string(), parameters, result })
    }
}

fn parameters(list: TokenStream) -> Result<Vec<Parameter>, String> {
    let mut parameters = Vec::new();
    let mut tokens = list.into_iter().peekable();
    while tokens.peek().is_some() {
        let one: Vec<TokenTree> =
            tokens.by_ref().take_while(|token| !is_punct(token, ',')).collect();
        let mut one = one.into_iter();
        match (one.next(), one.next()) {
            (Some(TokenTree::Ident(name)), Some(colon)) if is_punct(&colon, ':') => {
                parameters.push(Parameter { name: name.to_string(), ty: text(one) });
            }
            _ => return Err("parameters are a name and a type".into()),
        }
    }
    Ok(parameters)
}

fn is_punct(token: &TokenTree, wanted: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == wanted)
}

fn text(tokens: impl Iterator<Item = TokenTree>) -> String {
    tokens.collect::<TokenStream>().to_string()
}

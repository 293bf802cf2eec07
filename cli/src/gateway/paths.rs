//! The paths of the gateway, as users of OpenFaaS know them. Pure.

/// What a path names.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Endpoint<'a> {
    /// A call: `/function/NAME[.NAMESPACE][/path]`.
    Function(Target<'a>),
    /// A one-way message: `/async-function/NAME[.NAMESPACE][/path]`.
    AsyncFunction(Target<'a>),
    /// What `faas-cli` asks for: `/system/REST`.
    System(&'a str),
    /// What OpenFaaS has and this gateway has not.
    Unserved,
    /// Whether the gateway serves.
    Health,
    Metrics,
    Unknown,
}

/// A function and what follows its name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Target<'a> {
    pub name: &'a str,
    /// Its namespace, empty if the path names none.
    pub namespace: &'a str,
    /// The rest of the path, `/` if there is none.
    pub path: &'a str,
}

impl<'a> Target<'a> {
    /// The text behind the last dot is the namespace. So a function with a dot in its name needs one.
    fn parse(rest: &'a str) -> Option<Self> {
        let (name, path) = match rest.find('/') {
            Some(slash) => rest.split_at(slash),
            None => (rest, "/"),
        };
        let (name, namespace) = match name.rsplit_once('.') {
            Some((_, "")) => return None,
            Some(both) => both,
            None => (name, ""),
        };
        (!name.is_empty()).then_some(Self { name, namespace, path })
    }
}

/// What a request's path names.
pub(super) fn parse(path: &str) -> Endpoint<'_> {
    match path {
        "/oauth/token" => return Endpoint::Unserved,
        "/healthz" => return Endpoint::Health,
        "/metrics" => return Endpoint::Metrics,
        _ => {}
    }
    let endpoint = if let Some(rest) = path.strip_prefix("/system/") {
        Some(Endpoint::System(rest))
    } else if let Some(rest) = path.strip_prefix("/function/") {
        Target::parse(rest).map(Endpoint::Function)
    } else if let Some(rest) = path.strip_prefix("/async-function/") {
        Target::parse(rest).map(Endpoint::AsyncFunction)
    } else {
        None
    };
    endpoint.unwrap_or(Endpoint::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_functions_with_and_without_a_namespace() {
        for (path, name, namespace, rest) in [
            ("/function/echo", "echo", "", "/"),
            ("/function/echo/", "echo", "", "/"),
            ("/function/echo/a/b", "echo", "", "/a/b"),
            ("/function/echo.prod", "echo", "prod", "/"),
            ("/function/echo.v2.prod/x", "echo.v2", "prod", "/x"),
        ] {
            let target = Target { name, namespace, path: rest };
            assert_eq!(parse(path), Endpoint::Function(target), "{path}");
        }
        let expected = Endpoint::AsyncFunction(Target { name: "echo", namespace: "", path: "/" });
        assert_eq!(parse("/system/function/echo"), Endpoint::System("function/echo"));
        assert_eq!(parse("/async-function/echo"), expected);
        for path in
            ["/", "/function/", "/function//x", "/function/.prod", "/function/a.", "/metrics/"]
        {
            assert_eq!(parse(path), Endpoint::Unknown, "{path}");
        }
    }
}

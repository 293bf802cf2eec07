//! The paths of the gateway, as users of OpenFaaS know them. Pure.

/// What a path names.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place<'a> {
    /// A call: `/function/NAME[.NAMESPACE][/path]`.
    Function(Target<'a>),
    /// A one-way message: `/async-function/NAME[.NAMESPACE][/path]`.
    AsyncFunction(Target<'a>),
    /// The list of functions.
    Functions,
    /// Whether the gateway serves.
    Health,
    /// Metrics for Prometheus.
    Metrics,
    /// Nothing.
    Unknown,
}

/// A function and what follows its name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Target<'a> {
    /// As callers name it: `NAME` or `NAMESPACE/NAME`.
    pub function: String,
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
        let function = match name.rsplit_once('.') {
            Some((name, namespace)) if !name.is_empty() && !namespace.is_empty() => {
                format!("{namespace}/{name}")
            }
            Some(_) => return None,
            None if name.is_empty() => return None,
            None => name.to_owned(),
        };
        Some(Self { function, path })
    }
}

/// What a request's path names.
pub(super) fn parse(path: &str) -> Place<'_> {
    match path {
        "/system/functions" => return Place::Functions,
        "/healthz" => return Place::Health,
        "/metrics" => return Place::Metrics,
        _ => {}
    }
    let place = if let Some(rest) = path.strip_prefix("/function/") {
        Target::parse(rest).map(Place::Function)
    } else if let Some(rest) = path.strip_prefix("/async-function/") {
        Target::parse(rest).map(Place::AsyncFunction)
    } else {
        None
    };
    place.unwrap_or(Place::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_functions_with_and_without_a_namespace() {
        for (path, function, rest) in [
            ("/function/echo", "echo", "/"),
            ("/function/echo/", "echo", "/"),
            ("/function/echo/a/b", "echo", "/a/b"),
            ("/function/echo.prod", "prod/echo", "/"),
            ("/function/echo.v2.prod/x", "prod/echo.v2", "/x"),
        ] {
            let function = function.to_owned();
            assert_eq!(parse(path), Place::Function(Target { function, path: rest }), "{path}");
        }
        let function = "echo".to_owned();
        let expected = Place::AsyncFunction(Target { function, path: "/" });
        assert_eq!(parse("/async-function/echo"), expected);
        for path in
            ["/", "/function/", "/function//x", "/function/.prod", "/function/a.", "/metrics/"]
        {
            assert_eq!(parse(path), Place::Unknown, "{path}");
        }
    }
}

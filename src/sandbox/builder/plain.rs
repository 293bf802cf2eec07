//! libcontainer's words as people can read them: without its wrappers, and without values as Rust prints them. Runs in
//! the builder. Pure.

/// What libcontainer's processes say before every cause.
const WRAPPERS: [&str; 4] = [
    "failed to create container: ",
    "exec process failed with error error in executing process : ",
    "intermediate process error ",
    "failed to prepare rootfs",
];
/// How it begins to print a mount.
const MOUNT: &str = "Mount { destination: \"";
/// How it prints a path in another value.
const PATH: &str = "path: Some(\"";
/// How it prints an errno in one.
const ERRNO: &str = "Nix(";

/// The text without wrappers, and of each mount its target.
#[must_use]
pub fn plain(text: &str) -> String {
    let text = WRAPPERS.iter().fold(text.to_owned(), |text, wrapper| text.replace(wrapper, ""));
    let mut rest = text.as_str();
    let mut plain = String::new();
    while let Some((before, mount)) = rest.split_once(MOUNT) {
        let (target, more) = mount.split_once('"').unwrap_or((mount, ""));
        plain.extend([before, target]);
        rest = after_brace(more);
    }
    plain.push_str(rest);
    plain.trim_end_matches([':', ';', ' ']).to_owned()
}

/// What comes after the brace that ends a value.
fn after_brace(text: &str) -> &str {
    let mut open = 1;
    for (at, character) in text.char_indices() {
        match character {
            '{' => open += 1,
            '}' => open -= 1,
            _ => {}
        }
        if open == 0 {
            return &text[at + 1..];
        }
    }
    ""
}

/// What of a log line's value helps: the path or errno that it is or has.
#[must_use]
pub fn fact_in(value: &str) -> Option<&str> {
    if let Some((_, errno)) = value.split_once(ERRNO) {
        return errno.split(')').next();
    }
    if value.starts_with('E')
        && value.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit())
    {
        return Some(value);
    }
    let path = match value.strip_prefix('"') {
        Some(path) => path,
        None => value.split_once(PATH)?.1,
    };
    path.split('"').next().filter(|path| path.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrappers_and_values_are_left_out() {
        for (text, expected) in [
            (
                "the container cannot be created: failed to create container: exec process failed with error error in \
                 executing process : failed to prepare rootfs",
                "the container cannot be created",
            ),
            (
                r#"failed to mount Mount { destination: "/x1", typ: Some("bind"), source: Some("/no"), options: Some(["a"]), gid_mappings: Some([M { id: 1 }]) }: io error"#,
                "failed to mount /x1: io error",
            ),
            ("intermediate process error cgroup error: no", "cgroup error: no"),
            (r#"failed to mount Mount { destination: "/x"#, "failed to mount /x"),
            ("", ""),
        ] {
            assert_eq!(plain(text), expected, "{text}");
        }
    }

    #[test]
    fn paths_and_errnos_are_kept() {
        for (value, fact) in [
            (r#"LinuxNamespace { typ: Network, path: Some("/no/such") }"#, Some("/no/such")),
            (r#""/bin/nosuch""#, Some("/bin/nosuch")),
            (r#"Openat { path: "6" }"#, None),
            (r#""text""#, None),
            ("Mount(Syscall(Nix(ENODEV)))", Some("ENODEV")),
            ("ENOENT", Some("ENOENT")),
            ("Error", None),
            ("Pid(7)", None),
        ] {
            assert_eq!(fact_in(value), fact, "{value}");
        }
    }
}

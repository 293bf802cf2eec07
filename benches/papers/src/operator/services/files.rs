//! nginx with a text, in place of an object store, as in the paper.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::Result;
use cwasi_testbed::port::free_port;
use tempfile::TempDir;

use super::program::{Server, command};

/// Path of the text.
pub const TEXT: &str = "text.txt";
/// Lines of the text, about as many as Hamlet has.
pub const LINES: usize = 4000;
/// Words of the text.
const WORDS: [&str; 24] = [
    "to", "be", "or", "not", "the", "question", "whether", "nobler", "in", "mind", "suffer",
    "slings", "arrows", "of", "fortune", "take", "arms", "against", "sea", "troubles", "Hamlet",
    "king", "good", "night",
];
/// Words of a line.
const WIDTH: usize = 8;

pub struct Files {
    pub port: u16,
    _server: Server,
    _folder: TempDir,
}

impl Files {
    /// Starts a server.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let port = free_port(Ipv4Addr::LOCALHOST.into());
        fs::write(folder.path().join(TEXT), text())?;
        let configuration = folder.path().join("nginx.conf");
        fs::write(&configuration, self::configuration(folder.path(), port))?;
        let mut command = command("nginx", "usr/sbin/nginx")?;
        command.arg("-c").arg(&configuration).arg("-p").arg(folder.path()).args(["-e", "stderr"]);
        Ok(Self { port, _server: Server::start(command, port)?, _folder: folder })
    }
}

fn configuration(folder: &Path, port: u16) -> String {
    let folder = folder.display();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary: String =
        temporary.iter().map(|name| format!("{name}_temp_path {folder}/{name};\n")).collect();
    format!(
        "daemon off;\npid {folder}/pid;\nworker_processes 1;\nevents {{}}\nhttp {{\naccess_log off;\n{temporary}\
         server {{\nlisten 127.0.0.1:{port};\nroot {folder};\n}}\n}}\n"
    )
}

/// The same each time.
fn text() -> String {
    let mut state = 0x9e37_79b9_u32;
    let mut word = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        WORDS[(state >> 16) as usize % WORDS.len()]
    };
    let mut line = || (0..WIDTH).map(|_| word()).collect::<Vec<_>>().join(" ");
    (0..LINES).map(|_| line() + "\n").collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_text_has_its_lines_and_some_are_about_hamlet() {
        let text = super::text();
        assert_eq!(text.lines().count(), super::LINES);
        let found = text.lines().filter(|line| line.contains("Hamlet")).count();
        assert!((100..3000).contains(&found), "{found}");
    }
}

//! The command on a terminal: what a person sees, row by row.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use cwasi_testbed::scene::wait_for;
use nix::pty::{Winsize, openpty};
use nix::sys::signal::Signal;
use nix::sys::termios::{Termios, tcgetattr};
use vt100::Parser;

use super::home::{Home, signal};
use super::scene::Stage;

const ROWS: u16 = 24;

/// A terminal with a command on it.
struct Terminal {
    child: Child,
    screen: Arc<Mutex<Parser>>,
    /// Reads until the last process has closed the terminal.
    reader: JoinHandle<()>,
    before: Termios,
    keys: File,
    /// Keeps the terminal's settings readable after the command's end.
    slave: OwnedFd,
}

impl Terminal {
    fn run(home: &Home, file: &str, columns: u16) -> Self {
        Self::spawn(home.run(&[file]), columns)
    }

    fn spawn(mut command: Command, columns: u16) -> Self {
        let size = Winsize { ws_row: ROWS, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).unwrap();
        let before = tcgetattr(&pty.slave).unwrap();
        let end = || Stdio::from(pty.slave.try_clone().unwrap());
        command.env("TERM", "xterm").stdin(end()).stdout(end()).stderr(end());
        let child = command.spawn().unwrap();
        // The command holds copies of the terminal.
        drop(command);
        let screen = Arc::new(Mutex::new(Parser::new(ROWS, columns, 0)));
        let (shown, mut master) = (Arc::clone(&screen), File::from(pty.master));
        let keys = master.try_clone().unwrap();
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(len @ 1..) = master.read(&mut bytes) {
                shown.lock().unwrap().process(&bytes[..len]);
            }
        });
        Self { child, screen, reader, before, keys, slave: pty.slave }
    }

    /// The rows that show something.
    fn rows(&self) -> Vec<String> {
        let screen = self.screen.lock().unwrap();
        let rows = screen.screen().rows(0, screen.screen().size().1);
        rows.map(|row| row.trim_end().to_owned()).filter(|row| !row.is_empty()).collect()
    }

    /// The rows that begin with this word after spaces.
    fn lines_of(&self, word: &str) -> Vec<String> {
        self.rows().into_iter().filter(|row| row.trim_start().starts_with(word)).collect()
    }

    /// The end: exit code, and what stays on the screen. The terminal is as it was.
    fn end(mut self) -> (Option<i32>, Vec<String>) {
        let code = self.child.wait().unwrap().code();
        assert_eq!(tcgetattr(&self.slave).unwrap(), self.before);
        let screen = Arc::clone(&self.screen);
        drop(self.slave);
        self.reader.join().unwrap();
        let parser = screen.lock().unwrap();
        assert!(!parser.screen().hide_cursor());
        let rows = parser.screen().rows(0, parser.screen().size().1);
        let rows = rows.map(|row| row.trim_end().to_owned()).filter(|row| !row.is_empty());
        (code, rows.collect())
    }
}

#[test]
fn results_stay_on_the_screen_and_lines_go() {
    let home = Home::new();
    let (code, rows) = Terminal::run(&home, &home.hello(), 120).end();
    assert_eq!(code, Some(0), "{rows:?}");
    for text in ["Hello, Ada!", "Hello, Grace!"] {
        assert_eq!(rows.iter().filter(|row| *row == text).count(), 1, "{rows:?}");
    }
    assert!(rows.iter().any(|row| row.starts_with("CALLER  CALLEE")), "{rows:?}");
    assert!(
        !rows.iter().any(|row| row.contains("starting") || row.contains("running")),
        "{rows:?}"
    );
    home.nothing_is_left();
}

#[test]
fn each_function_has_one_line_at_any_width_and_ctrl_c_removes_them() {
    let home = Home::new();
    let file = home.endless_file();
    // Compiled before, so that waiting for the endless one has a bound.
    home.ok(&[&file, "--set", "spec.functions.probe.args=[args]"]);
    for columns in [120, 40, 20] {
        let terminal = Terminal::run(&home, &file, columns);
        wait_for("a line for each function", || {
            (terminal.lines_of("greeter").len() == 1 && terminal.lines_of("probe").len() == 1)
                .then_some(())
        });
        signal(&terminal.child, Signal::SIGINT);
        let (code, rows) = terminal.end();
        assert_eq!(code, Some(130), "{rows:?}");
        assert!(rows.iter().any(|row| row.contains("interrupted")), "{columns}: {rows:?}");
        let of = |name: &str| rows.iter().any(|row| row.trim_start().starts_with(name));
        assert!(!of("greeter") && !of("probe"), "{columns}: {rows:?}");
        home.nothing_is_left();
    }
}

#[test]
fn a_response_ends_its_line_and_q_ends_top() {
    let stage = Stage::new("cli-terminal");
    let file = stage.hello();
    stage.ok(&["deploy", &file]);
    stage.ok(&["run", &file]);
    let mut invoke = stage.cwasi();
    invoke.args(["invoke", "greeter", "--timeout", "60", "--data", "Ada"]);
    let terminal = Terminal::spawn(invoke, 80);
    let screen = Arc::clone(&terminal.screen);
    assert_eq!(terminal.end(), (Some(0), vec!["Hello, Ada!".to_owned()]));
    assert_eq!(screen.lock().unwrap().screen().cursor_position(), (1, 0));

    let mut top = stage.cwasi();
    top.args(["top", "--interval", "0.1"]);
    let mut terminal = Terminal::spawn(top, 200);
    wait_for("a picture", || (!terminal.lines_of("hello ").is_empty()).then_some(()));
    // One picture is cleared before the next is there.
    let heading = wait_for("its heading", || {
        Some(terminal.lines_of("CALLER").concat()).filter(|heading| !heading.is_empty())
    });
    assert!(heading.contains("NEW ERRORS") && heading.contains("ALL CALLS"), "{heading}");
    // Other keys do nothing, and none is shown.
    terminal.keys.write_all(b"x\nyq").unwrap();
    let (code, rows) = terminal.end();
    assert_eq!(code, Some(0), "{rows:?}");
    assert!(!rows.iter().any(|row| row.contains('x') || row.contains("yq")), "{rows:?}");
    stage.ok(&["rm", "greeter"]);
}

//! Keys that a person presses while a verb shows pictures on a terminal, one at a time and without echo.

use std::future::pending;
use std::io::{self, IsTerminal as _, Read as _, Stdin, stdin};
use std::thread;

use nix::sys::termios::{
    LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcgetattr, tcsetattr,
};
use nix::unistd::{getpgrp, tcgetpgrp};
use tokio::sync::mpsc;

/// Waits for one key. The terminal's settings are as they were when this is dropped; Ctrl-C stays a signal.
#[derive(Debug)]
pub struct Key {
    terminal: Stdin,
    before: Termios,
    pressed: mpsc::Receiver<()>,
}

impl Key {
    /// Begins to wait for `key`. `None` unless stdin is a terminal that this process may read: a job in the background
    /// would be stopped.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn wait_for(key: u8) -> io::Result<Option<Self>> {
        let terminal = stdin();
        let background = tcgetpgrp(&terminal).is_ok_and(|foreground| foreground != getpgrp());
        if background || !terminal.is_terminal() {
            return Ok(None);
        }
        let before = tcgetattr(&terminal)?;
        let mut settings = before.clone();
        settings.local_flags &= !(LocalFlags::ICANON | LocalFlags::ECHO);
        settings.control_chars[SpecialCharacterIndices::VMIN as usize] = 1;
        settings.control_chars[SpecialCharacterIndices::VTIME as usize] = 0;
        let (sender, pressed) = mpsc::channel(1);
        // It waits in a read, until the process ends.
        thread::Builder::new().name("keys".to_owned()).spawn(move || {
            if stdin().lock().bytes().map_while(Result::ok).any(|byte| byte == key) {
                let _ended = sender.try_send(());
            }
        })?;
        tcsetattr(&terminal, SetArg::TCSANOW, &settings)?;
        Ok(Some(Self { terminal, before, pressed }))
    }

    /// Waits until it is pressed. Never returns after the terminal's end, which a signal reports.
    pub async fn pressed(&mut self) {
        if self.pressed.recv().await.is_none() {
            pending::<()>().await;
        }
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        let _closed = tcsetattr(&self.terminal, SetArg::TCSANOW, &self.before);
    }
}

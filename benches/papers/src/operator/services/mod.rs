//! The servers that two of the nine functions ask: nginx with a text, and PostgreSQL behind HTTP.

mod database;
mod files;
mod front;
mod program;

use anyhow::{Result, ensure};

use database::Database;
use files::Files;
use front::Front;

/// All servers, until they are dropped.
pub struct Services {
    files: Files,
    front: Front,
    database: Database,
}

impl Services {
    /// Starts them.
    ///
    /// # Errors
    /// When set-up has not unpacked them, or one does not start.
    pub fn start() -> Result<Self> {
        let database = Database::start()?;
        Ok(Self { files: Files::start()?, front: Front::start(database.port)?, database })
    }

    /// For a function that asks one of them: the variable and the URL, and the address that it may reach.
    #[must_use]
    pub fn of(&self, function: &str) -> Option<(&'static str, String, String)> {
        let (variable, port, path) = match function {
            "fuzzysearch" => ("TEXT_URL", self.files.port, files::TEXT),
            "user-manager" => ("USERS_URL", self.front.port, front::USERS),
            _ => return None,
        };
        let address = format!("127.0.0.1:{port}");
        Some((variable, format!("http://{address}/{path}"), address))
    }

    /// Rows that functions have stored.
    ///
    /// # Errors
    /// When there is none: the functions would have measured nothing.
    pub fn stored(&self) -> Result<u64> {
        let stored = self.database.rows()?;
        ensure!(stored > 0, "user-manager has stored nothing");
        Ok(stored)
    }

    /// What they are, for the conditions.
    #[must_use]
    pub fn about() -> String {
        format!(
            "fuzzysearch reads {} lines from nginx. user-manager stores a row in PostgreSQL 15 with its default settings, through an \
             HTTP front of this program (hyper, tokio-postgres): no registry serves pREST or PostgREST.",
            files::LINES
        )
    }
}

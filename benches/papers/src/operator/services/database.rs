//! A private PostgreSQL.

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result, ensure};
use cwasi_testbed::port::free_port;
use tempfile::TempDir;
use tokio_postgres::{Client, NoTls};

use super::program::{Server, command};

/// Its folder and programs in the package.
const FOLDER: &str = "postgresql";
const PROGRAMS: &str = "usr/lib/postgresql/15/bin";
/// The superuser.
const USER: &str = "postgres";

pub struct Database {
    pub port: u16,
    _server: Server,
    _folder: TempDir,
}

impl Database {
    /// Makes and starts one.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let data = folder.path().join("data");
        let output = command(FOLDER, &format!("{PROGRAMS}/initdb"))?
            .args([
                "--username",
                USER,
                "--auth",
                "trust",
                "--encoding",
                "UTF8",
                "--locale",
                "C",
                "--pgdata",
            ])
            .arg(&data)
            .output()
            .context("initdb")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "initdb: {said}");
        let port = free_port(Ipv4Addr::LOCALHOST.into());
        let mut server = command(FOLDER, &format!("{PROGRAMS}/postgres"))?;
        server.arg("-D").arg(&data).args(["-p", &port.to_string()]);
        for setting in
            ["listen_addresses=127.0.0.1", "unix_socket_directories=", "log_min_messages=fatal"]
        {
            server.args(["-c", setting]);
        }
        Ok(Self { port, _server: Server::start(server, port)?, _folder: folder })
    }

    /// Rows of the table of users.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn rows(&self) -> Result<u64> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let row =
                connect(self.port).await?.query_one("SELECT count(*) FROM users", &[]).await?;
            Ok(u64::try_from(row.get::<_, i64>(0))?)
        })
    }
}

/// A connection, once the server takes some.
///
/// # Errors
/// When it does not.
pub async fn connect(port: u16) -> Result<Client> {
    /// Attempts, 50 ms apart: it listens before it is ready.
    const ATTEMPTS: usize = 200;
    let settings = format!("host=127.0.0.1 port={port} user={USER} dbname={USER}");
    let mut attempt = 0;
    let (client, connection) = loop {
        match tokio_postgres::connect(&settings, NoTls).await {
            Ok(connected) => break connected,
            Err(_starting) if attempt < ATTEMPTS => attempt += 1,
            Err(error) => return Err(error).context("connect to PostgreSQL"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    };
    tokio::spawn(connection);
    Ok(client)
}

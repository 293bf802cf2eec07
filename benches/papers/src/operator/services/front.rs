//! HTTP in front of PostgreSQL: a POST of a person stores a row.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::mpsc::channel;

use anyhow::{Context as _, Result};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_postgres::{Client, Statement};

use super::database::connect;

/// Path of the table.
pub const USERS: &str = "users";
/// The columns of the paper's artifact.
const TABLE: &str = "CREATE TABLE users (id bigserial PRIMARY KEY, name varchar, username varchar, ip_address varchar, \
    user_agent varchar, country varchar, city varchar, street_name varchar, zip_code varchar, building_number varchar)";
const INSERT: &str = "INSERT INTO users (name, username, ip_address, user_agent, country, city, street_name, zip_code, building_number) \
    SELECT name, username, ip_address, user_agent, country, city, street_name, zip_code, building_number \
    FROM json_populate_record(NULL::users, $1::text::json)";

/// A thread of this process that serves until this is dropped.
pub struct Front {
    pub port: u16,
    _end: oneshot::Sender<()>,
}

impl Front {
    /// Makes the table, and serves.
    ///
    /// # Errors
    /// When the database does not answer.
    pub fn start(database: u16) -> Result<Self> {
        let (ready, is_ready) = channel();
        let (end, ended) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    failed = serve(database, &ready) => {
                        // Nobody waits any more once it has served.
                        let _told = failed.map_err(|error| ready.send(Err(error)));
                    }
                    _dropped = ended => {}
                }
            });
        });
        let port = is_ready.recv().context("the front has ended")??;
        Ok(Self { port, _end: end })
    }
}

async fn serve(database: u16, ready: &std::sync::mpsc::Sender<Result<u16>>) -> Result<()> {
    let client = connect(database).await?;
    client.batch_execute(TABLE).await.context("create a table")?;
    let insert = client.prepare(INSERT).await.context("prepare a statement")?;
    let database = Arc::new((client, insert));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    ready.send(Ok(listener.local_addr()?.port())).context("the front is not wanted any more")?;
    loop {
        let (connection, _client) = listener.accept().await?;
        connection.set_nodelay(true)?;
        let database = Arc::clone(&database);
        let service = service_fn(move |request| answer(Arc::clone(&database), request));
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(connection), service));
    }
}

async fn answer(
    database: Arc<(Client, Statement)>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>> {
    let (client, insert) = &*database;
    let body = request.into_body().collect().await?.to_bytes();
    let person = String::from_utf8(body.to_vec())?;
    let stored = client.execute(insert, &[&person]).await;
    let (status, text) = match stored {
        Ok(_one) => (StatusCode::CREATED, String::new()),
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()),
    };
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    Ok(response)
}

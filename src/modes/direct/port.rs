//! One TCP port for all shims of a node, without a process that forwards bytes.
//!
//! The shim that has the lock of the node's folder listens. It reads from a connection's beginning, without taking it,
//! which shim is meant (the server name of the TLS handshake), and passes the connection to that shim over a Unix
//! socket. When it ends, however it ends, the kernel frees the lock, and a shim that waits takes over; connections that
//! were passed on notice nothing.
//!
//! | file | |
//! |---|---|
//! | `lock` | locked by the shim that listens |
//! | `port` | its socket: other shims notice its end here |
//! | `<shim>` | socket of a shim: connections are passed to it |

use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use rustls::server::Acceptor;
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::tls::{ANY_SHIM, HANDSHAKE_MAX, shim_of};
use super::unproven::Unproven;
use cwasi_sys::clock::Deadline;
use cwasi_sys::seqpacket;

const LOCK: &str = "lock";
const OWNER: &str = "port";
/// Most connections whose shim is not known yet ([`Unproven`]); those without a place wait in the listener's backlog.
const UNKNOWN_MAX: usize = 512;
/// Time that one of them has before it makes room: a peer's first bytes follow its connection at once.
const UNKNOWN_GRACE: Duration = Duration::from_millis(100);
/// Connections that may wait in the listener's backlog, if the system's `somaxconn` allows it. Beyond it, a connection
/// takes a second.
const BACKLOG: u32 = 4096;
/// Longest beginning of a handshake in bytes.
const HELLO_MAX: usize = 16 * 1024;
/// Pause before the rest of a beginning is looked for, and before a new owner is.
const PAUSE: Duration = Duration::from_millis(5);
/// Pause after the port could not be had.
const TAKEN_PAUSE: Duration = Duration::from_secs(2);
/// How often the sockets of killed shims are looked for.
const CLEAN_EVERY: Duration = Duration::from_secs(60);
/// Longest time in which a shim makes its socket and listens.
const MADE_MAX: Duration = Duration::from_secs(60);
/// Connections that wait to be served.
const WAITING_MAX: usize = 64;

/// What a shim needs to take part.
#[derive(Clone, Debug)]
pub struct PortSettings {
    /// Address and port of the node.
    pub listen: SocketAddr,
    /// Folder of the node's shims.
    pub dir: PathBuf,
    /// This shim: hexadecimal digits.
    pub shim: String,
}

/// A shim's part in the node's port. It ends when this is dropped.
#[derive(Debug)]
pub struct SharedPort {
    connections: mpsc::Receiver<TcpStream>,
    task: JoinHandle<()>,
}

impl SharedPort {
    /// The next connection that means this shim; `None` when the port is given up.
    pub async fn next(&mut self) -> Option<TcpStream> {
        self.connections.recv().await
    }

    /// Gives the port to another shim. Returns when nothing of this one is left.
    pub async fn end(self) {
        let Self { connections, task } = self;
        drop(connections);
        if let Err(error) = task.await {
            tracing::error!(%error, "the end of the port");
        }
    }
}

/// Takes part in the node's port.
///
/// # Errors
/// When the folder or the shim's socket cannot be made.
pub fn share(settings: PortSettings) -> io::Result<SharedPort> {
    fs::DirBuilder::new().mode(0o700).recursive(true).create(&settings.dir)?;
    let socket = NamedSocket::bind(settings.dir.join(&settings.shim))?;
    let (sender, connections) = mpsc::channel(WAITING_MAX);
    let task = tokio::spawn(async move {
        tokio::select! {
            () = take_passed(&socket.listener, &sender) => {}
            () = keep_port(&settings) => {}
            () = sender.closed() => {}
        }
    });
    Ok(SharedPort { connections, task })
}

/// A listening socket, whose file goes with it.
struct NamedSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl NamedSocket {
    fn bind(path: PathBuf) -> io::Result<Self> {
        Ok(Self { listener: UnixListener::bind(&path)?, path })
    }
}

impl Drop for NamedSocket {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(%error, path = %self.path.display(), "a socket is not removed");
        }
    }
}

/// Removes the sockets of shims that were killed. One that was made less than `age` ago may not listen yet.
async fn remove_dead(dir: &Path, age: Duration) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let is_shim = entry.file_name() != LOCK && entry.file_name() != OWNER;
        let is_old = || entry.metadata()?.modified()?.elapsed().map_err(io::Error::other);
        if !is_shim || !is_old().is_ok_and(|old| old >= age) {
            continue;
        }
        let connected = UnixStream::connect(entry.path()).await;
        if connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Takes the connections that the listening shim passes on.
async fn take_passed(socket: &UnixListener, connections: &mpsc::Sender<TcpStream>) {
    loop {
        let passed = match socket.accept().await {
            Ok((from, _)) => timeout(HANDSHAKE_MAX, receive(&from))
                .await
                .unwrap_or_else(|_elapsed| Err(io::ErrorKind::TimedOut.into())),
            Err(error) => Err(error),
        };
        match passed {
            Ok(stream) => {
                if connections.send(stream).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a direct connection could not be taken over");
                sleep(PAUSE).await;
            }
        }
    }
}

/// The TCP connection that a shim passes on.
async fn receive(from: &UnixStream) -> io::Result<TcpStream> {
    let message = || match seqpacket::try_receive(from.as_fd(), &mut [0; 1]) {
        Ok(Some(received)) => Ok(received),
        Ok(None) => Err(io::ErrorKind::WouldBlock.into()),
        Err(error) => Err(io::Error::other(error)),
    };
    let passed = from.async_io(Interest::READABLE, message).await?.descriptors.pop();
    let passed = passed.ok_or_else(|| io::Error::other("a message without a connection"))?;
    let stream = std::net::TcpStream::from(passed);
    stream.set_nonblocking(true)?;
    TcpStream::from_std(stream)
}

/// Listens while no other shim does; never returns.
async fn keep_port(settings: &PortSettings) {
    let mut is_known = false;
    loop {
        match lock(&settings.dir) {
            Ok(Some(lock)) => {
                let Err(error) = listen(settings).await;
                drop(lock);
                if !std::mem::replace(&mut is_known, true) {
                    let listen = settings.listen;
                    tracing::error!(%error, %listen, "no direct connections: link_listen cannot be used");
                }
                sleep(TAKEN_PAUSE).await;
            }
            Ok(None) => wait_for_end(&settings.dir.join(OWNER)).await,
            Err(error) => {
                tracing::error!(%error, "no direct connections: the lock of the port");
                sleep(TAKEN_PAUSE).await;
            }
        }
    }
}

fn lock(dir: &Path) -> io::Result<Option<Flock<File>>> {
    let file = File::options().create(true).truncate(false).write(true).open(dir.join(LOCK))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_file, nix::Error::EWOULDBLOCK)) => Ok(None),
        Err((_file, errno)) => Err(errno.into()),
    }
}

/// Returns when the shim that listens has ended.
async fn wait_for_end(owner: &Path) {
    if let Ok(stream) = UnixStream::connect(owner).await {
        // It never writes: readable means that it is gone.
        let _ended = stream.readable().await;
    } else {
        // It has the lock, and not its socket yet; or it has just ended.
        sleep(PAUSE).await;
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Connections of a shim that has ended are no reason to wait.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Listens on the port until that fails.
async fn listen(settings: &PortSettings) -> io::Result<std::convert::Infallible> {
    let listener = bind(settings.listen)?;
    let owner = settings.dir.join(OWNER);
    match fs::remove_file(&owner) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let waiting = NamedSocket::bind(owner)?;
    tracing::info!(listen = %settings.listen, "takes direct connections for the shims of this node");
    let keep_waiting = async {
        let mut others = Vec::new();
        loop {
            match waiting.listener.accept().await {
                Ok((other, _)) => others.push(other),
                Err(_) => sleep(PAUSE).await,
            }
            // Shims that have ended.
            others.retain(|other| !matches!(other.try_read(&mut [0]), Ok(0)));
        }
    };
    let unknown = Unproven::new(UNKNOWN_MAX, UNKNOWN_GRACE);
    let serve = async {
        loop {
            match listener.accept().await {
                Ok((stream, from)) => {
                    let (settings, place) = (settings.clone(), unknown.place(from.ip()).await);
                    tokio::spawn(async move {
                        let passed = tokio::select! {
                            passed = pass_on(stream, &settings) => passed,
                            () = place.lost() => Err(io::Error::other("it said nothing in time")),
                        };
                        if let Err(error) = passed {
                            tracing::debug!(%error, %from, "a connection is none of ours");
                        }
                    });
                }
                // Descriptors have run out, or the connection has ended already.
                Err(_) => sleep(PAUSE).await,
            }
        }
    };
    let clean = async {
        loop {
            if let Err(error) = remove_dead(&settings.dir, MADE_MAX).await {
                tracing::debug!(%error, "sockets of killed shims are not removed");
            }
            sleep(CLEAN_EVERY).await;
        }
    };
    tokio::select! {
        never = keep_waiting => never,
        never = serve => never,
        never = clean => never,
    }
}

/// Passes a connection to the shim that it means, which may be this one.
async fn pass_on(stream: TcpStream, settings: &PortSettings) -> io::Result<()> {
    let reading = timeout(HANDSHAKE_MAX, meant_shim(&stream));
    let shim = reading.await.map_err(|_elapsed| io::Error::from(io::ErrorKind::TimedOut))??;
    let shim = if shim == ANY_SHIM { &settings.shim } else { &shim };
    let to = UnixStream::connect(settings.dir.join(shim)).await?;
    let stream = stream.into_std()?;
    let until = Some(Deadline::after(PAUSE));
    seqpacket::send(to.as_fd(), &[&[0]], &[stream.as_fd()], until).map_err(io::Error::other)
}

/// The shim that a connection means. Its bytes stay in the socket.
async fn meant_shim(stream: &TcpStream) -> io::Result<String> {
    let mut hello = vec![0; HELLO_MAX];
    loop {
        let count = stream.peek(&mut hello).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut acceptor = Acceptor::default();
        acceptor.read_tls(&mut &hello[..count])?;
        let accepted = acceptor.accept().map_err(|(error, _alert)| io::Error::other(error))?;
        if let Some(accepted) = accepted {
            let client_hello = accepted.client_hello();
            let shim = client_hello.server_name().and_then(shim_of);
            return shim.map(str::to_owned).ok_or_else(|| io::Error::other("no shim is meant"));
        }
        if count == HELLO_MAX {
            return Err(io::Error::other("its beginning is too long"));
        }
        // The rest is on its way; the socket is readable all the time.
        sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::super::key::NodeKey;
    use super::super::tls::Tls;
    use super::*;

    /// A shim that answers each connection with its name; ends when dropped.
    fn shim(name: &str, dir: &Path, port: u16, tls: &Tls) -> tokio::task::JoinHandle<()> {
        let listen = (Ipv4Addr::LOCALHOST, port).into();
        let (dir, shim, tls) = (dir.to_owned(), name.to_owned(), tls.clone());
        let mut port = share(PortSettings { listen, dir, shim: shim.clone() }).unwrap();
        tokio::spawn(async move {
            while let Some(stream) = port.next().await {
                let (tls, shim) = (tls.clone(), shim.clone());
                tokio::spawn(async move {
                    let (mut stream, _key) = tls.accept(stream).await.unwrap();
                    stream.write_all(shim.as_bytes()).await.unwrap();
                    stream.flush().await.unwrap();
                    // Until the other side ends it.
                    let _ended = stream.read(&mut [0]).await;
                });
            }
        })
    }

    async fn asked(shim: &str, port: u16, tls: &Tls) -> io::Result<String> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        let mut stream = tls.connect(stream, shim, &tls.proof().unwrap()).await?;
        let mut name = vec![0; shim.len()];
        stream.read_exact(&mut name).await?;
        Ok(String::from_utf8(name).unwrap())
    }

    fn free_port() -> u16 {
        cwasi_testbed::port::free_port(Ipv4Addr::LOCALHOST.into())
    }

    /// The first answer of this shim, which may not have the port yet.
    async fn first(shim: &str, port: u16, tls: &Tls) -> String {
        loop {
            match asked(shim, port, tls).await {
                Ok(name) => return name,
                Err(_not_yet) => sleep(PAUSE).await,
            }
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn each_connection_reaches_the_shim_that_it_means() {
        let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
        let tls = Tls::new(NodeKey::fresh().unwrap()).unwrap();
        let shims = ["aa", "bb", "cc"].map(|name| shim(name, dir.path(), port, &tls));
        assert_eq!(first("aa", port, &tls).await, "aa");
        // Few at a time: each has the time of one handshake.
        for _ in 0..10 {
            let mut asking = tokio::task::JoinSet::new();
            for name in ["aa", "bb", "cc"].into_iter().cycle().take(9) {
                let tls = tls.clone();
                asking.spawn(async move { asked(name, port, &tls).await.map(|it| it == name) });
            }
            while let Some(ended) = asking.join_next().await {
                assert!(ended.unwrap().unwrap());
            }
        }
        assert!(asked("dd", port, &tls).await.is_err(), "there is no such shim");
        shims.iter().for_each(tokio::task::JoinHandle::abort);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn another_shim_takes_the_port_over() {
        let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
        let tls = Tls::new(NodeKey::fresh().unwrap()).unwrap();
        let owner = shim("aa", dir.path(), port, &tls);
        first("aa", port, &tls).await;
        let _other = shim("bb", dir.path(), port, &tls);
        assert_eq!(first("bb", port, &tls).await, "bb");
        owner.abort();
        // It no longer listens when its socket is gone.
        let ended = async {
            while dir.path().join("aa").exists() {
                sleep(PAUSE).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), ended).await.expect("it ends");
        assert_eq!(first("bb", port, &tls).await, "bb");
        let listens = || async { asked("bb", port, &tls).await.is_ok() };
        for _ in 0..10 {
            assert!(listens().await, "it stays");
        }
        assert!(asked("aa", port, &tls).await.is_err(), "it has ended");
    }

    #[tokio::test]
    async fn who_is_no_shim_is_cut_off() {
        let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
        let tls = Tls::new(NodeKey::fresh().unwrap()).unwrap();
        let _shim = shim("aa", dir.path(), port, &tls);
        first("aa", port, &tls).await;
        for sent in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x16, 3, 1, 0, 4, 1, 0, 0, 0], &[0; 20_000]]
        {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
            // It may be cut off before all is sent.
            let _sent = stream.write_all(sent).await;
            assert!(!matches!(stream.read(&mut [0]).await, Ok(1..)));
        }
        let other = Tls::new(NodeKey::fresh().unwrap()).unwrap();
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
        let pinned = tls.connect(stream, "aa", &other.proof().unwrap()).await;
        assert!(pinned.unwrap_err().to_string().contains("certificate"), "it has another key");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn strangers_that_say_nothing_keep_no_shim_out() {
        /// More than have places in the time of a handshake, if each kept its own for as long.
        const STRANGERS: usize = 3 * UNKNOWN_MAX;
        let (_soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
        let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
        let tls = Tls::new(NodeKey::fresh().unwrap()).unwrap();
        let _shim = shim("aa", dir.path(), port, &tls);
        first("aa", port, &tls).await;
        // Each comes again when it is cut off, from the same address as the shim's callers.
        let mut silent = tokio::task::JoinSet::new();
        for _ in 0..STRANGERS {
            silent.spawn(async move {
                loop {
                    match TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await {
                        Ok(mut stream) => drop(stream.read(&mut [0]).await),
                        Err(_refused) => sleep(PAUSE).await,
                    }
                }
            });
        }
        for _ in 0..3 {
            let asking = timeout(Duration::from_secs(30), first("aa", port, &tls));
            assert_eq!(asking.await.expect("strangers keep it out"), "aa");
        }
    }

    #[tokio::test]
    async fn sockets_go_with_their_shims() {
        let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
        let names = || {
            let files = fs::read_dir(dir.path()).unwrap();
            let mut names: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
            names.sort();
            names
        };
        // One that was killed leaves its socket.
        drop(std::os::unix::net::UnixListener::bind(dir.path().join("dead")).unwrap());
        let listen = (Ipv4Addr::LOCALHOST, port).into();
        let (folder, shim) = (dir.path().to_owned(), "aa".to_owned());
        let shared = share(PortSettings { listen, dir: folder, shim }).unwrap();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_err() {
            sleep(PAUSE).await;
        }
        assert_eq!(names(), ["aa", "dead", LOCK, OWNER], "it may have been made just now");
        remove_dead(dir.path(), Duration::ZERO).await.unwrap();
        assert_eq!(names(), ["aa", LOCK, OWNER]);
        shared.end().await;
        assert_eq!(names(), [LOCK]);
    }

    #[test]
    fn a_server_name_means_a_shim_or_none() {
        assert_eq!(shim_of("0a1b.cwasi"), Some("0a1b"));
        for name in ["", ".cwasi", "0a1b", "../x.cwasi", "port.cwasi", "0a.1b.cwasi"] {
            assert_eq!(shim_of(name), None, "{name}");
        }
    }
}

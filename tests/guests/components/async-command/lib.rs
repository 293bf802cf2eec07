//! A command of WASI 0.3 that does what its payload on stdin says; it writes every other payload to stdout. With the
//! argument `ticks` it writes `tick` while it waits for stdin.
#![expect(missing_docs, reason = "generated")]

use std::net::IpAddr;

use wasip3::cli::{environment, stdin, stdout};
use wasip3::clocks::monotonic_clock;
use wasip3::filesystem::preopens::get_directories;
use wasip3::filesystem::types::{
    Descriptor, DescriptorFlags, DirectoryEntry, OpenFlags, PathFlags,
};
use wasip3::sockets::ip_name_lookup::resolve_addresses;
use wasip3::sockets::types::{
    IpAddress, IpAddressFamily, IpSocketAddress, Ipv4SocketAddress, TcpSocket,
};
use wasip3::wit_bindgen::spawn_local;
use wasip3::wit_stream;

use cwasi::calls::calls;

wasip3::wit_bindgen::generate!({
    path: "../../../../abi/wit",
    world: "cwasi:function/imports",
    runtime_path: "wasip3::wit_bindgen::rt",
    generate_all,
});

const MS: u64 = 1_000_000;

struct Command;

impl wasip3::exports::cli::run::Guest for Command {
    async fn run() -> Result<(), ()> {
        if environment::get_arguments().iter().any(|argument| argument == "ticks") {
            spawn_local(async {
                monotonic_clock::wait_for(MS).await;
                let _unread = print(b"tick\n".to_vec()).await;
            });
        }
        let (input, ended) = stdin::read_via_stream();
        let payload = input.collect().await;
        ended.await.map_err(|_error| ())?;
        let text = String::from_utf8_lossy(&payload).into_owned();
        let (verb, rest) = text.split_once(' ').unwrap_or((&text, ""));
        let said = match verb {
            "!exit" => {
                eprintln!("leaving");
                return Err(());
            }
            "!panic" => panic!("as requested"),
            "!forever" => {
                let (_sender, receiver) = wit_stream::new();
                Ok(String::from_utf8_lossy(&receiver.collect().await).into_owned())
            }
            "!later" => {
                spawn_local(async {
                    monotonic_clock::wait_for(MS).await;
                    let _unread = print(b" and later".to_vec()).await;
                });
                Ok("now".to_owned())
            }
            "!args" => Ok(environment::get_arguments().join(" ")),
            "!env" => {
                let all = environment::get_environment();
                let found = all.into_iter().find(|(key, _value)| key == rest);
                Ok(found.map(|(_key, value)| value).unwrap_or_default())
            }
            "!ls" => list(rest).await,
            "!read" => read(rest).await,
            "!write" => write(rest).await,
            "!connect" => connect(rest).await,
            "!call" => Ok(call(rest)),
            "!sleep" => {
                monotonic_clock::wait_for(rest.parse().unwrap_or(1) * MS).await;
                Ok("slept".to_owned())
            }
            _ => return print(payload).await,
        };
        print(said.unwrap_or_else(|error| format!("error: {error}")).into_bytes()).await
    }
}

async fn print(bytes: Vec<u8>) -> Result<(), ()> {
    let (mut sender, receiver) = wit_stream::new();
    let written = stdout::write_via_stream(receiver);
    let unread = sender.write_all(bytes).await;
    drop(sender);
    if unread.is_empty() { written.await.map_err(|_error| ()) } else { Err(()) }
}

/// The directory that contains `path`, and the path in it.
fn within(path: &str) -> Result<(Descriptor, String), String> {
    let found = get_directories().into_iter().find_map(|(directory, name)| {
        let rest = path.strip_prefix(name.trim_end_matches('/'))?;
        let rest = rest.strip_prefix('/').or_else(|| rest.is_empty().then_some("."))?;
        Some((directory, rest.to_owned()))
    });
    found.ok_or_else(|| "no such directory".to_owned())
}

async fn open(path: &str, how: OpenFlags, for_what: DescriptorFlags) -> Result<Descriptor, String> {
    let (directory, rest) = within(path)?;
    let opened = directory.open_at(PathFlags::SYMLINK_FOLLOW, rest, how, for_what).await;
    opened.map_err(|error| error.to_string())
}

async fn list(path: &str) -> Result<String, String> {
    let directory = open(path, OpenFlags::DIRECTORY, DescriptorFlags::READ).await?;
    let (entries, ended) = directory.read_directory();
    let entries = entries.collect().await;
    ended.await.map_err(|error| error.to_string())?;
    let mut names: Vec<_> = entries.into_iter().map(|DirectoryEntry { name, .. }| name).collect();
    names.sort();
    Ok(names.join(" "))
}

async fn read(path: &str) -> Result<String, String> {
    let file = open(path, OpenFlags::empty(), DescriptorFlags::READ).await?;
    let (bytes, ended) = file.read_via_stream(0);
    let bytes = bytes.collect().await;
    ended.await.map_err(|error| error.to_string())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

async fn write(path: &str) -> Result<String, String> {
    let file = open(path, OpenFlags::CREATE, DescriptorFlags::WRITE).await?;
    let (mut sender, receiver) = wit_stream::new();
    let written = file.write_via_stream(receiver, 0);
    sender.write_all(b"written".to_vec()).await;
    drop(sender);
    written.await.map_err(|error| error.to_string())?;
    Ok("done".to_owned())
}

/// What a server sends, `ADDRESS:PORT` or `NAME:PORT`, over IPv4.
async fn connect(to: &str) -> Result<String, String> {
    let (host, port) = to.rsplit_once(':').ok_or("no port")?;
    let port = port.parse().map_err(|_error| "no port")?;
    let address = match host.parse() {
        Ok(IpAddr::V4(address)) => address.octets().into(),
        _ => {
            let found = resolve_addresses(host.to_owned()).await;
            let found = found.map_err(|error| error.to_string())?.into_iter();
            let mut found = found.filter_map(|address| match address {
                IpAddress::Ipv4(address) => Some(address),
                IpAddress::Ipv6(_) => None,
            });
            found.next().ok_or("no address")?
        }
    };
    let socket = TcpSocket::create(IpAddressFamily::Ipv4).map_err(|error| error.to_string())?;
    let address = IpSocketAddress::Ipv4(Ipv4SocketAddress { port, address });
    socket.connect(address).await.map_err(|error| error.to_string())?;
    let (bytes, ended) = socket.receive();
    let bytes = bytes.collect().await;
    ended.await.map_err(|error| error.to_string())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Calls a function, `TARGET PAYLOAD`.
fn call(text: &str) -> String {
    let (target, payload) = text.split_once(' ').unwrap_or((text, ""));
    match calls::call_bytes(target, payload.as_bytes()) {
        Ok(response) => String::from_utf8_lossy(&response).into_owned(),
        Err(error) => format!("error: {:?}: {}", error.code, error.message),
    }
}

wasip3::cli::command::export!(Command);

//! Ports that no other process gets while a test or a benchmark runs.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    os::fd::OwnedFd,
    sync::Mutex,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt};

/// A port of 127.0.0.1 for a server that must know its port before it starts, or keep it over restarts.
///
/// It is reserved until this process ends: a socket is bound to it and does not listen. The kernel gives a bound port
/// to no other process that wants any port. A server with `SO_REUSEADDR`, as servers have, can listen at it. While none
/// listens, connections are refused.
///
/// # Errors
/// If there is no free port.
pub fn reserve_port() -> io::Result<u16> {
    static RESERVED: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let port = SocketAddr::try_from(getsockname(&socket)?)?.port();
    RESERVED.lock().expect("no panic while it is locked").push(socket);
    Ok(port)
}

/// [`reserve_port`] for tests.
///
/// # Panics
/// If there is no free port.
pub fn reserved_port() -> u16 {
    reserve_port().expect("a free port")
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        io::ErrorKind,
        net::{TcpListener, TcpStream},
    };

    use super::reserved_port;

    #[test]
    fn a_server_can_listen_at_a_reserved_port_again_and_again() {
        let port = reserved_port();
        for _ in 0..3 {
            let refused = TcpStream::connect(("127.0.0.1", port)).expect_err("no server listens");
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
            let server = TcpListener::bind(("127.0.0.1", port)).expect("it is reserved for this server");
            let client = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
            let (connection, _) = server.accept().expect("a connection");
            // The server closes first, so its side of the connection waits in the kernel.
            drop(connection);
            drop(client);
            let second = TcpListener::bind(("127.0.0.1", port)).expect_err("one listens already");
            assert_eq!(second.kind(), ErrorKind::AddrInUse);
        }
    }

    #[test]
    fn reserved_ports_are_distinct_and_given_to_no_server() {
        let reserved: BTreeSet<u16> = (0..200).map(|_| reserved_port()).collect();
        assert_eq!(reserved.len(), 200);
        let servers: Vec<TcpListener> = (0..500).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
        let ports = servers.iter().map(|server| server.local_addr().expect("an address").port());
        assert_eq!(ports.filter(|port| reserved.contains(port)).count(), 0);
    }
}

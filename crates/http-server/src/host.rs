//! The header field `Host` (RFC 9112, 3.2), and the address that answers may name.

use http::{HeaderMap, Request, Version, header, uri::Authority};

/// Checks the header field `Host` of a request: exactly one in HTTP/1.1, at most one in HTTP/1.0, and a host with an
/// optional port. An empty value is valid.
///
/// # Errors
/// The request must be answered 400; the text is the reason.
pub fn check<B>(request: &Request<B>) -> Result<(), String> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let Some(host) = hosts.next() else {
        return if request.version() < Version::HTTP_11 {
            Ok(())
        } else {
            Err("the request has no `Host`: send one, with the name of this server".to_owned())
        };
    };
    if hosts.next().is_some() {
        return Err("the request has more than one `Host`: send one".to_owned());
    }
    if host.to_str().is_ok_and(is_host) {
        Ok(())
    } else {
        Err(format!("`{}` is not a host with an optional port", String::from_utf8_lossy(host.as_bytes())))
    }
}

fn is_host(text: &str) -> bool {
    if text.is_empty() {
        return true;
    }
    let Ok(authority) = text.parse::<Authority>() else { return false };
    // `Authority` also takes user names, and ports that are no numbers.
    let Some(port) = text.strip_prefix(authority.host()) else { return false };
    let is_port = match port.strip_prefix(':') {
        Some(digits) => digits.is_empty() || (digits.parse::<u16>().is_ok() && !digits.starts_with('+')),
        None => port.is_empty(),
    };
    let host = authority.host();
    let is_name = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && !host.contains(['[', ']']),
    };
    is_port && is_name
}

/// The scheme and authority that addresses in an answer begin with where no public address is configured. Only a loopback
/// name from `Host` is repeated: any other may be made up by the client, and would end in caches and in databases of
/// others. Then it is empty, and the addresses are relative.
pub fn own_address(headers: &HeaderMap) -> String {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name = host.parse::<Authority>().map(|authority| authority.host().to_ascii_lowercase()).unwrap_or_default();
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    if name == "localhost" || address.is_ok_and(|address| address.is_loopback()) {
        format!("http://{host}")
    } else {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(version: Version, hosts: &[&str]) -> Request<()> {
        let mut request = Request::new(());
        *request.version_mut() = version;
        for host in hosts {
            request.headers_mut().append(header::HOST, host.parse().expect(host));
        }
        request
    }

    #[test]
    fn c7_a_request_has_one_valid_host() {
        for right in ["example.org", "example.org:8480", "127.0.0.1", "[::1]:8480", "", "example.org:", "a_b"] {
            assert_eq!(check(&request(Version::HTTP_11, &[right])), Ok(()), "{right}");
        }
        for wrong in [
            "a b",
            "user@example.org",
            "example.org/x",
            "example.org:port",
            "example.org:99999",
            "[::1",
            "[x]",
            "a?b",
            "a#b",
            "<script>",
            ":80",
            "a:b:c",
            "http://example.org",
        ] {
            assert!(check(&request(Version::HTTP_11, &[wrong])).is_err(), "{wrong}");
        }
        assert!(check(&request(Version::HTTP_11, &[])).is_err());
        assert!(check(&request(Version::HTTP_11, &["a", "a"])).is_err());
        assert!(check(&request(Version::HTTP_10, &["a", "b"])).is_err());
        assert_eq!(check(&request(Version::HTTP_10, &[])), Ok(()));
    }

    #[test]
    fn c7_only_loopback_names_are_repeated() {
        let address = |host: &str| own_address(request(Version::HTTP_11, &[host]).headers());
        assert_eq!(address("localhost:8480"), "http://localhost:8480");
        assert_eq!(address("[::1]:8480"), "http://[::1]:8480");
        for other in ["evil.example", "192.0.2.1", "localhost.evil.example", "127.0.0.1.evil.example", ""] {
            assert_eq!(address(other), "", "{other}");
        }
    }
}

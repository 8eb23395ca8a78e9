//! Hosts that images may be fetched from.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use url::{Host, Url};

/// Allowed source of images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageHost {
    /// Any host, at its public addresses.
    Public,
    /// This host, at any address.
    Named {
        /// Name or address.
        host: Host<String>,
        /// Only port allowed; any if `None`.
        port: Option<u16>,
    },
}

/// A text that is not a host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected public, or a host and perhaps its port (a.org, 10.0.0.5:8000), found {found:?}")]
pub struct HostError {
    found: String,
}

/// Text for all hosts with public addresses.
const PUBLIC: &str = "public";

impl FromStr for ImageHost {
    type Err = HostError;

    fn from_str(text: &str) -> Result<ImageHost, HostError> {
        if text == PUBLIC {
            return Ok(ImageHost::Public);
        }
        let wrong = || HostError {
            found: text.to_owned(),
        };
        let (host, port) = match text.rsplit_once(':') {
            // the colon belongs to an address in brackets
            Some((_, rest)) if rest.ends_with(']') => (text, None),
            Some((host, port)) => (host, Some(port.parse().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let host = Host::parse(host).map_err(|_| wrong())?;
        Ok(ImageHost::Named { host, port })
    }
}

impl ImageHost {
    /// Returns whether a URL has this host by name.
    pub(super) fn names(&self, url: &Url) -> bool {
        match self {
            ImageHost::Public => false,
            ImageHost::Named { host, port } => {
                let is_host = url.host().is_some_and(|asked| asked == *host);
                is_host && port.is_none_or(|port| url.port_or_known_default() == Some(port))
            }
        }
    }
}

/// Returns whether an address is globally reachable: not private, loopback, link-local or
/// multicast, and not a translation of such an address. Follows IANA's registries of
/// special-purpose addresses.
pub(super) fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    let is_special = match (a, b, c) {
        // this network, loopback
        (0 | 127, ..) => true,
        // private networks, carrier-grade NAT
        (10, ..) | (172, 16..=31, _) | (192, 168, _) | (100, 64..=127, _) => true,
        // link-local: cloud metadata services give out credentials here
        (169, 254, _) => true,
        // protocol assignments, deprecated 6to4 relay, documentation, benchmarking
        (192, 0, 0 | 2) | (192, 88, 99) | (198, 18..=19, _) => true,
        (198, 51, 100) | (203, 0, 113) => true,
        // multicast, reserved, broadcast
        (224.., ..) => true,
        _ => false,
    };
    !is_special
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    let is_special = match ip.segments() {
        // protocol assignments, Teredo, documentation; 2002::/16 (6to4) embeds any IPv4 address
        [0x2001, ..=0x01ff, ..] | [0x2001, 0x0db8, ..] | [0x2002, ..] => true,
        [0x3fff, ..=0x0fff, ..] => true,
        // outside 2000::/3, the global unicast range, are loopback, link-local, private, multicast
        // and IPv4-mapped addresses
        [first, ..] => first & 0xe000 != 0x2000,
    };
    !is_special
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_that_anybody_can_reach_are_public() {
        let public = [
            "1.1.1.1",
            "93.184.215.14",
            "172.15.0.1",
            "172.32.0.1",
            "100.63.0.1",
            "100.128.0.1",
            "192.0.1.1",
            "198.17.0.1",
            "223.255.255.255",
            "2606:4700::1111",
            "2001:4860:4860::8888",
            "2a00:1450::1",
        ];
        let special = [
            "0.0.0.0",
            "0.1.2.3",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "127.9.9.9",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.1",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::127.0.0.1",
            "::ffff:127.0.0.1",
            "::ffff:1.1.1.1",
            "64:ff9b::7f00:1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "3fff::1",
            "5f00::1",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ];
        let parsed = |text: &str| -> IpAddr { text.parse().expect("an address") };
        for text in public {
            assert!(is_public(parsed(text)), "{text}");
        }
        for text in special {
            assert!(!is_public(parsed(text)), "{text}");
        }
    }

    #[test]
    fn hosts_are_names_and_addresses_with_and_without_ports() {
        let names = |host: &str, url: &str| {
            let host: ImageHost = host.parse().expect("a host");
            host.names(&Url::parse(url).expect("a URL"))
        };
        for (host, url) in [
            ("example.org", "https://example.org/a.png"),
            ("Example.ORG", "http://example.org:8080/"),
            ("example.org:443", "https://example.org/"),
            ("10.0.0.5:8000", "http://10.0.0.5:8000/"),
            ("127.0.0.1", "http://0x7f.1/"),
            ("[::1]", "http://[0:0::1]:9/"),
            ("[::1]:9", "http://[::1]:9/"),
        ] {
            assert!(names(host, url), "{host} {url}");
        }
        for (host, url) in [
            ("example.org", "https://www.example.org/"),
            ("example.org", "https://example.org.evil.net/"),
            ("example.org", "https://evil.net/example.org"),
            ("example.org:443", "http://example.org/"),
            ("10.0.0.5:8000", "http://10.0.0.5/"),
            ("public", "http://public/"),
        ] {
            assert!(!names(host, url), "{host} {url}");
        }
        for wrong in [
            "", "a b", "http://a", "a:b", "a:99999", "::1", "a/b", "[::1",
        ] {
            let error = wrong.parse::<ImageHost>().expect_err(wrong);
            assert!(error.to_string().contains(&format!("{wrong:?}")), "{error}");
        }
    }
}

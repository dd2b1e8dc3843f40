//! Which requests are answered, and where a server can listen.

use std::net::{SocketAddr, TcpListener};

use zonal_live::serve::{ServeError, ServeOptions, Token};

use crate::client::{Running, machine, options};

#[test]
fn other_host_names_are_refused_with_help() {
    let server = Running::of(machine(), options());
    let answer = server.get_with("/", &["Host: evil.example"]);
    assert_eq!(answer.status, 421);
    assert!(answer.body.contains("evil.example") && answer.body.contains(&server.url), "{}", answer.body);
    assert_eq!(server.get_with("/snapshot.json", &["Host: evil.example:7070"]).status, 421);
    assert_eq!(server.get_with("/", &["Host: 127.0.0.1"]).status, 200);
    let other_site = ["Host: localhost", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: cors"];
    assert_eq!(server.get_with("/snapshot.json", &other_site).status, 403);
}

#[test]
fn a_request_has_one_host() {
    for server in [Running::of(machine(), options()), Running::with_token(Token::generate().unwrap())] {
        for headers in
            [&["Host: localhost", "Host: evil.example"][..], &["Host: localhost", "host: localhost"]]
        {
            let answer = server.get_with("/", headers);
            assert_eq!(
                (answer.status, answer.body.contains("2 Host headers")),
                (400, true),
                "{}",
                answer.body
            );
        }
    }
}

#[test]
fn a_token_is_needed_where_one_is_given() {
    let server = Running::with_token(Token::generate().unwrap());
    let token = server.url.split_once("/?token=").unwrap().1.to_owned();
    for path in ["/", "/events", "/metrics", "/snapshot.json", "/?token=wrong", "/nothing"] {
        let answer = server.get(path);
        assert_eq!((answer.status, answer.header("www-authenticate")), (401, "Bearer"), "{path}");
        assert!(answer.body.contains("Authorization: Bearer TOKEN"), "{}", answer.body);
    }
    let bearer = format!("Authorization: Bearer {token}");
    assert_eq!(server.get_with("/metrics", &["Host: any.example", &bearer]).status, 200);
    let welcome = server.get(&format!("/?token={token}"));
    assert_eq!((welcome.status, welcome.header("location")), (303, "/"));
    let cookie = welcome.header("set-cookie").split(';').next().unwrap();
    assert!(!cookie.contains(&token), "servers on other ports of the host receive the cookie: {cookie}");
    let page = server.get_with("/", &["Host: any.example", &format!("Cookie: {cookie}")]);
    assert_eq!(page.status, 200);
    assert!(!page.body.contains(&token), "the page does not repeat the token");
    let answers = [welcome.header("location"), welcome.header("referrer-policy")];
    assert_eq!(answers, ["/", "no-referrer"]);
}

fn error(listen: SocketAddr, token: Option<Token>) -> ServeError {
    let started = Running::start(machine(), ServeOptions { listen, token, ..options() });
    started.err().unwrap_or_else(|| panic!("{listen} is served"))
}

#[test]
fn addresses_that_cannot_be_used_are_named() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    let in_use = error(address, None);
    assert!(matches!(in_use, ServeError::PortInUse(_)) && in_use.is_bad_input());
    let text = in_use.to_string();
    assert!(text.contains(&address.port().to_string()) && text.contains("choose another port"), "{text}");
    let open = error("0.0.0.0:0".parse().unwrap(), None).to_string();
    assert!(open.contains("0.0.0.0:0") && open.contains("token"), "{open}");
    let elsewhere = error("192.0.2.1:0".parse().unwrap(), Some(Token::generate().unwrap())).to_string();
    assert!(elsewhere.contains("192.0.2.1 is not an address of this machine"), "{elsewhere}");
}

//! Which requests are answered, and the headers of all answers.
//!
//! Without a token, the `Host` must be a loopback name: a page of another site whose name resolves to the loopback
//! address (DNS rebinding) has its own name there. With a token, clients must know it. In both cases, other sites can
//! only lead a browser to the page itself.

use std::net::{IpAddr, SocketAddr};

use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{HeaderMap, Request, StatusCode, Uri};

use super::content::{Content, Response, response};
use super::routes::TEXT;
use super::token::Token;
use super::{ServeError, page};

/// Headers of all answers, besides the content security policy.
const HEADERS: [(HeaderName, &str); 7] = [
    (header::CACHE_CONTROL, "no-store"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-embedder-policy"), "require-corp"),
    (HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=()"),
];

/// What the server has.
pub(super) const PATHS: [&str; 4] = ["/", "/events", "/metrics", "/snapshot.json"];

/// What clients must know.
struct Secrets {
    token: Token,
    /// The value of the cookie, another one in each run. The token may be used elsewhere or later, and browsers also send
    /// the cookie to all other servers of the host.
    cookie: Token,
}

/// The rules of a server.
pub(crate) struct Guard {
    secrets: Option<Secrets>,
    address: SocketAddr,
    policy: HeaderValue,
}

/// Why a request is not answered.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Refusal {
    /// Several names of hosts.
    Hosts(usize),
    /// The name of another host.
    Host(String),
    /// A page of another site.
    OtherSite,
    /// No token, or a wrong one.
    Token,
}

impl Guard {
    /// Creates the rules of a run.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub(crate) fn new(token: Option<Token>, address: SocketAddr) -> Result<Self, ServeError> {
        let secrets = |token| Ok::<_, ServeError>(Secrets { token, cookie: Token::generate()? });
        let policy = HeaderValue::from_str(&page::policy()).expect("hashes in base64 are ASCII");
        Ok(Self { secrets: token.map(secrets).transpose()?, address, policy })
    }

    /// Answers a request by `answer` if the rules allow it.
    pub(super) fn check(&self, request: &Request<Incoming>, answer: impl FnOnce() -> Response) -> Response {
        let mut response = match self.decide(request.headers(), request.uri()) {
            Ok(None) => answer(),
            Ok(Some(response)) => response,
            Err(refusal) => self.refuse(&refusal),
        };
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_SECURITY_POLICY, self.policy.clone());
        headers.extend(HEADERS.map(|(name, value)| (name, HeaderValue::from_static(value))));
        response
    }

    /// Returns the name of the cookie. Servers on other ports of the host share its cookies.
    fn cookie_name(&self) -> String {
        format!("zonal-session-{}", self.address.port())
    }

    /// Decides about a request. Returns the answer that sets the cookie if the address has the token.
    fn decide(&self, headers: &HeaderMap, uri: &Uri) -> Result<Option<Response>, Refusal> {
        // A proxy and a server that choose different ones would disagree about the host.
        let hosts = headers.get_all(header::HOST).iter().count();
        if hosts > 1 {
            return Err(Refusal::Hosts(hosts));
        }
        if is_of_other_site(headers, uri.path()) {
            return Err(Refusal::OtherSite);
        }
        let Some(Secrets { token, cookie }) = &self.secrets else {
            let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
            let is_known = |authority: &str| self.is_own_name(authority);
            let target = uri.authority().map(hyper::http::uri::Authority::as_str);
            return match is_known(host) && target.is_none_or(is_known) {
                true => Ok(None),
                false => Err(Refusal::Host(target.unwrap_or(host).to_owned())),
            };
        };
        if let Some(given) = in_query(uri) {
            return match token.is(given) {
                true => Ok(Some(self.welcome(cookie, uri.path()))),
                false => Err(Refusal::Token),
            };
        }
        let name = self.cookie_name();
        let is_known = bearer(headers).is_some_and(|given| token.is(given))
            || cookies(headers, &name).any(|given| cookie.is(given));
        match is_known {
            true => Ok(None),
            false => Err(Refusal::Token),
        }
    }

    /// Whether an authority is a name of this server: a loopback name, or its address.
    fn is_own_name(&self, authority: &str) -> bool {
        let host = match authority.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
            _ => authority,
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let is_own = |ip: IpAddr| ip.is_loopback() || ip == self.address.ip();
        host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(is_own)
    }

    /// Returns an answer that sets the cookie, and leads to the address without the token.
    ///
    /// With `SameSite=Strict`, the browser would not send the cookie after a link on another site led to the address.
    fn welcome(&self, cookie: &Token, path: &str) -> Response {
        let value = cookie.generated().unwrap_or_default();
        let cookie = format!("{}={value}; Path=/; HttpOnly; SameSite=Lax", self.cookie_name());
        let path = PATHS.into_iter().find(|known| *known == path).unwrap_or("/");
        let mut response = Response::new(Content::from(""));
        *response.status_mut() = StatusCode::SEE_OTHER;
        let value = HeaderValue::from_str(&cookie).expect("tokens and ports are ASCII");
        response.headers_mut().insert(header::SET_COOKIE, value);
        response.headers_mut().insert(header::LOCATION, HeaderValue::from_static(path));
        response
    }

    fn refuse(&self, refusal: &Refusal) -> Response {
        let (status, text) = match refusal {
            Refusal::Hosts(count) => {
                let text = format!("The request has {count} Host headers; it may have one.\n");
                (StatusCode::BAD_REQUEST, text)
            }
            Refusal::Host(host) => {
                let host = zonal_machine::Excerpt::name(host).to_string();
                let text = format!(
                    "The name \"{host}\" is not a name of this server. Open http://{}/ instead.\n\
                     For other names, start zonal serve with --token-file.\n",
                    self.address
                );
                (StatusCode::MISDIRECTED_REQUEST, text)
            }
            Refusal::OtherSite => {
                (StatusCode::FORBIDDEN, "Pages of other sites cannot use this server.\n".to_owned())
            }
            Refusal::Token => {
                let text = "A token is needed. Open the address that zonal serve printed when it started, or \
                    add ?token=TOKEN to this one.\nPrograms send the header \"Authorization: Bearer TOKEN\".\n\
                    TOKEN is the contents of the file that was given with --token-file.\n";
                (StatusCode::UNAUTHORIZED, text.to_owned())
            }
        };
        let mut response = response(status, TEXT, text);
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Whether a browser says that a page of another site sends the request, except that a link there leads to the page.
fn is_of_other_site(headers: &HeaderMap, path: &str) -> bool {
    let value = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let is_other = value("sec-fetch-site").is_some_and(|site| site != "same-origin" && site != "none");
    let is_link = value("sec-fetch-mode") == Some("navigate") && value("sec-fetch-dest") == Some("document");
    is_other && !(is_link && path == "/")
}

fn in_query(uri: &Uri) -> Option<&str> {
    uri.query()?.split('&').find_map(|pair| pair.strip_prefix("token="))
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

fn cookies<'h>(headers: &'h HeaderMap, name: &'h str) -> impl Iterator<Item = &'h str> {
    let texts = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let pairs = texts.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.filter(move |(key, _)| *key == name).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(token: Option<Token>) -> Guard {
        Guard::new(token, "192.0.2.7:7070".parse().unwrap()).unwrap()
    }

    fn decide(
        guard: &Guard,
        headers: &[(&'static str, &str)],
        uri: &str,
    ) -> Result<Option<Response>, Refusal> {
        let pair = |&(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        };
        guard.decide(&headers.iter().map(pair).collect(), &uri.parse().unwrap())
    }

    #[test]
    fn only_loopback_names_and_the_own_address_are_hosts() {
        let guard = guard(None);
        for host in
            ["localhost", "LOCALHOST:7070", "127.0.0.1:1", "127.1.2.3", "[::1]:7070", "192.0.2.7:7070"]
        {
            assert!(decide(&guard, &[("host", host)], "/").unwrap().is_none(), "{host}");
        }
        for host in
            ["", "evil.example", "evil.example:7070", "localhost.evil.example", "192.0.2.8", "[::2]", ":"]
        {
            assert_eq!(decide(&guard, &[("host", host)], "/").err().unwrap(), Refusal::Host(host.to_owned()));
        }
        assert!(decide(&guard, &[], "/").is_err(), "no host");
        let target = decide(&guard, &[("host", "localhost")], "http://evil.example/");
        assert_eq!(target.err().unwrap(), Refusal::Host("evil.example".to_owned()));
    }

    #[test]
    fn other_sites_can_only_lead_to_the_page() {
        let guard = guard(None);
        let of = |site, mode, dest, path| {
            let headers = [
                ("host", "localhost"),
                ("sec-fetch-site", site),
                ("sec-fetch-mode", mode),
                ("sec-fetch-dest", dest),
            ];
            decide(&guard, &headers, path).err()
        };
        for site in ["cross-site", "same-site"] {
            assert_eq!(of(site, "cors", "empty", "/"), Some(Refusal::OtherSite));
            assert_eq!(of(site, "navigate", "iframe", "/"), Some(Refusal::OtherSite));
            assert_eq!(of(site, "navigate", "document", "/events"), Some(Refusal::OtherSite));
            assert_eq!(of(site, "navigate", "document", "/"), None);
        }
        assert_eq!(of("same-origin", "cors", "empty", "/events"), None);
        assert_eq!(of("none", "navigate", "document", "/metrics"), None);
    }

    #[test]
    fn a_token_is_accepted_in_two_places_and_leads_to_a_cookie() {
        let token = Token::generate().unwrap();
        let text = token.generated().unwrap().to_owned();
        let guard = guard(Some(token));
        let refused = |headers: &[(&'static str, &str)], uri: &str| decide(&guard, headers, uri).err();
        let wrong = text.replace(|_: char| true, "x");
        for (value, expected) in [(&text, None), (&wrong, Some(Refusal::Token))] {
            assert_eq!(refused(&[("authorization", &format!("Bearer {value}"))], "/metrics"), expected);
            assert_eq!(refused(&[], &format!("/?a=b&token={value}")), expected);
        }
        assert_eq!(refused(&[("authorization", "Basic eA==")], "/"), Some(Refusal::Token));
        assert_eq!(
            refused(&[("host", "any.example"), ("authorization", &format!("bearer {text}"))], "/"),
            None
        );
        let answer = decide(&guard, &[], &format!("//evil.example/?token={text}")).unwrap().unwrap();
        assert_eq!(answer.headers()["location"], "/", "never another host");
        let cookie = answer.headers()["set-cookie"].to_str().unwrap();
        let pair = cookie.strip_suffix("; Path=/; HttpOnly; SameSite=Lax").unwrap();
        let value = pair.strip_prefix("zonal-session-7070=").unwrap();
        assert!(value.len() == text.len() && value != text, "{cookie}");
        assert_eq!(refused(&[("cookie", &format!("a=b; {pair}; c=d"))], "/"), None);
        for other in [pair.replace("7070", "7071"), pair.replace(value, &text), pair.replace(value, &wrong)] {
            assert_eq!(refused(&[("cookie", &other)], "/"), Some(Refusal::Token), "{other}");
        }
        let elsewhere = [("authorization", &*format!("Bearer {value}"))];
        assert_eq!(refused(&elsewhere, "/"), Some(Refusal::Token), "the cookie is not the token");
    }
}

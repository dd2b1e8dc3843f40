//! A server with a source that reads when the test permits it, and a client of HTTP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::net::{self, AddressFamily, SocketType};
use tokio::sync::oneshot;
use zonal_live::serve::{MetricDetail, ServeError, ServeOptions, Server, Token};
use zonal_live::{Sample, SimulatedSource, Source, SourceError, Watch};

/// Time after which a test fails instead of waiting for ever.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the source does when it is read.
#[derive(Clone, Copy)]
pub(crate) enum Step {
    Succeed,
    Fail,
}

/// A source whose readings, after the first one, wait for steps.
pub(crate) struct Stepped {
    inner: Box<dyn Source>,
    steps: Receiver<Step>,
    reads: Arc<AtomicU64>,
}

impl Source for Stepped {
    fn title(&self) -> String {
        self.inner.title()
    }

    fn read(&mut self) -> Result<Sample, SourceError> {
        let step = match self.reads.fetch_add(1, Ordering::SeqCst) {
            0 => Step::Succeed,
            _ => self.steps.recv().unwrap_or(Step::Fail),
        };
        match step {
            Step::Succeed => self.inner.read(),
            Step::Fail => Err(SourceError::NoPool("/run/<pool>".into())),
        }
    }
}

/// A server that ends when it is dropped.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) url: String,
    steps: Sender<Step>,
    reads: Arc<AtomicU64>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.take();
        self.thread.take().unwrap().join().unwrap();
    }
}

pub(crate) fn options() -> ServeOptions {
    let listen = "127.0.0.1:0".parse().unwrap();
    let (interval, patience) = (Duration::from_millis(1), Duration::from_secs(3600));
    ServeOptions { listen, interval, patience, token: None, detail: MetricDetail::Zones }
}

pub(crate) fn machine() -> Box<dyn Source> {
    Box::new(SimulatedSource::new(2, 2))
}

impl Running {
    pub(crate) fn of(source: Box<dyn Source>, options: ServeOptions) -> Self {
        Self::start(source, options).unwrap()
    }

    pub(crate) fn start(source: Box<dyn Source>, options: ServeOptions) -> Result<Self, ServeError> {
        let (steps, received) = channel();
        let reads = Arc::default();
        let source = Stepped { inner: source, steps: received, reads: Arc::clone(&reads) };
        let server = Server::bind(Watch::start(Box::new(source)).unwrap(), options)?;
        let (stop, stopped) = oneshot::channel();
        let (address, url) = (server.address(), server.url());
        let thread = Some(thread::spawn(move || {
            let _ = server.run_until(stopped).unwrap();
        }));
        Ok(Self { address, url, steps, reads, stop: Some(stop), thread })
    }

    pub(crate) fn with_token(token: Token) -> Self {
        Self::of(machine(), ServeOptions { token: Some(token), ..options() })
    }

    /// Permits a reading, and waits until its result is served.
    pub(crate) fn step(&self, step: Step) {
        let reads = |answer: Answer| answer.json()["reads"].as_u64().unwrap();
        let before = reads(self.get("/snapshot.json"));
        self.permit(step);
        zonal_testing::eventually("the reading is served", || {
            reads(self.get("/snapshot.json")) == before + 1
        });
    }

    /// Permits a reading.
    pub(crate) fn permit(&self, step: Step) {
        self.steps.send(step).unwrap();
    }

    /// Returns how many readings have begun.
    pub(crate) fn reads(&self) -> u64 {
        self.reads.load(Ordering::SeqCst)
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.request(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n"))
    }

    pub(crate) fn get_with(&self, path: &str, headers: &[&str]) -> Answer {
        self.request(&format!("GET {path} HTTP/1.1\r\n{}\r\n", headers.join("\r\n")))
    }

    /// Sends a request, whose head lacks the last lines, on a connection of its own.
    pub(crate) fn request(&self, head: &str) -> Answer {
        let mut connection = self.connect();
        connection.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes()).unwrap();
        let mut bytes = Vec::new();
        connection.read_to_end(&mut bytes).unwrap();
        Answer::parse(&String::from_utf8(bytes).unwrap())
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let connection = TcpStream::connect(self.address).unwrap();
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        connection
    }

    /// Connects from another address of the loopback interface.
    pub(crate) fn connect_from(&self, address: [u8; 4]) -> TcpStream {
        let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        net::bind(&socket, &SocketAddr::from((address, 0))).unwrap();
        net::connect(&socket, &self.address).unwrap();
        let connection = TcpStream::from(socket);
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        connection
    }

    /// Opens a stream of updates.
    pub(crate) fn updates(&self) -> Updates {
        Updates::of(self.connect())
    }
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The lines of the headers, in lower case up to the colon.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Answer {
    fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {text}"));
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let header = |line: &str| {
            let (name, value) = line.split_once(": ").unwrap();
            (name.to_ascii_lowercase(), value.to_owned())
        };
        Self { status, headers: lines.map(header).collect(), body: body.to_owned() }
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(other, _)| other == name);
        found.map_or("", |(_, value)| value)
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

/// A stream of updates.
pub(crate) struct Updates {
    pub(crate) status: u16,
    lines: BufReader<TcpStream>,
}

impl Updates {
    /// Opens a stream on a connection.
    pub(crate) fn of(mut connection: TcpStream) -> Self {
        connection.write_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut lines = BufReader::new(connection);
        let mut status = String::new();
        lines.read_line(&mut status).unwrap();
        Self { status: status.split(' ').nth(1).unwrap().parse().unwrap(), lines }
    }

    /// Returns the first lines of the stream, without those of HTTP.
    pub(crate) fn lines(self, count: usize) -> Vec<String> {
        let lines = self.lines.lines().map(Result::unwrap).skip_while(|line| !line.starts_with("retry: "));
        lines.take(count).collect()
    }

    /// Waits for the next update. Returns its id, or `None` at the end of the stream.
    pub(crate) fn next(&mut self) -> Option<u64> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.lines.read_line(&mut line).unwrap_or(0) == 0 {
                return None;
            }
            if let Some(id) = line.strip_prefix("id: ") {
                return Some(id.trim().parse().unwrap());
            }
        }
    }
}

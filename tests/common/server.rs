//! A web server of a folder, with faults: what S3, Google Cloud Storage, Azure and plain web servers have in common for
//! those who read objects. Or the faults alone, before another server.

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::net::sockopt;

/// A request that came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    pub method: String,
    /// Below the server's folder.
    pub path: String,
    pub range: Option<(u64, u64)>,
    /// The access key that it was signed with.
    pub key: Option<String>,
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The right answer.
    Answer,
    /// A status and nothing else of use.
    Status(u16),
    /// A status, and a store's own name of what is wrong.
    Refuse(u16, &'static str),
    /// A redirect to a URL.
    Redirect(&'static str),
    /// The whole object, with status 200 and without a tag, whatever part was asked for.
    Whole,
    /// As that, of which half is sent.
    HalfOfWhole,
    /// Something else, with status 200.
    Page,
    /// The whole object without its size, in chunks.
    Chunked,
    /// A good header, half of the body, and the end of the connection.
    Truncate,
    /// A good header, half of the body, and a reset.
    Reset,
    /// A good answer in which one bit is wrong.
    WrongBit,
    /// No answer at all.
    Silence,
}

impl Fate {
    /// Whether it is that of a server without ranges, which have no tags either.
    fn is_plain(self) -> bool {
        matches!(self, Self::Whole | Self::HalfOfWhole | Self::Chunked)
    }
}

type Content = Arc<[u8]>;
type Judge = Box<dyn FnMut(&Asked) -> Fate + Send>;

/// Serves until it is dropped.
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
}

/// How fast a server is.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// From a request to the first byte of its answer.
    pub latency: Duration,
    /// On one connection.
    pub bytes_per_second: f64,
}

/// What is sent at a time.
const PIECE: usize = 64 << 10;

struct Shared {
    root: PathBuf,
    /// The server that answers in place of the folder.
    upstream: Option<SocketAddr>,
    pace: Option<Pace>,
    asked: Mutex<Vec<Asked>>,
    judge: Mutex<Judge>,
    contents: Mutex<HashMap<(u64, i64), Content>>,
    stopped: AtomicBool,
}

impl Server {
    pub fn new(root: &Path) -> Self {
        Self::at(root, "127.0.0.1:0")
    }

    /// At an address, with port 0 for any.
    pub fn at(root: &Path, address: &str) -> Self {
        Self::start(root, None, address, None)
    }

    /// One that is far away.
    pub fn paced(root: &Path, pace: Pace) -> Self {
        Self::start(root, None, "127.0.0.1:0", Some(pace))
    }

    /// One that passes requests on to the server at an address as they come, so that signatures stay good, and its answers back.
    pub fn before(upstream: SocketAddr) -> Self {
        Self::start(Path::new(""), Some(upstream), "127.0.0.1:0", None)
    }

    fn start(root: &Path, upstream: Option<SocketAddr>, address: &str, pace: Option<Pace>) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            root: root.to_owned(),
            upstream,
            pace,
            asked: Mutex::default(),
            judge: Mutex::new(Box::new(|_| Fate::Answer)),
            contents: Mutex::default(),
            stopped: AtomicBool::new(false),
        });
        let serving = shared.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                if serving.stopped.load(Ordering::Relaxed) {
                    break;
                }
                let serving = serving.clone();
                let Ok(stream) = stream else { continue };
                // A connection that breaks is one that somebody gave up.
                thread::spawn(move || drop(serving.converse(stream)));
            }
            Ok::<_, io::Error>(())
        });
        Self { address, shared }
    }

    /// Its address, without a slash at the end.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Decides from now on what becomes of requests.
    pub fn judge(&self, judge: impl FnMut(&Asked) -> Fate + Send + 'static) {
        *self.shared.judge.lock().unwrap() = Box::new(judge);
    }

    /// What was asked so far, and forgets it.
    pub fn take_asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.shared.asked.lock().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        // So that it notices.
        drop(TcpStream::connect(self.address));
    }
}

impl Shared {
    /// Requests and answers on one connection.
    fn converse(&self, mut stream: TcpStream) -> io::Result<()> {
        // An answer's body does not wait until its head was acknowledged.
        stream.set_nodelay(true)?;
        let mut lines = BufReader::new(stream.try_clone()?);
        loop {
            let head = read_head(&mut lines)?;
            if head.is_empty() || self.stopped.load(Ordering::Relaxed) {
                return Ok(());
            }
            let mut words = head.split_whitespace();
            let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
            let (method, target) = (method.to_owned(), target.to_owned());
            let headers = headers(&head);
            let path = decoded(target.split('?').next().unwrap_or(""))
                .trim_start_matches('/')
                .to_owned();
            let range = headers.get("range").and_then(|range| range.strip_prefix("bytes="));
            let range = range.and_then(|range| {
                let (first, last) = range.split_once('-')?;
                Some((first.parse().ok()?, last.parse::<u64>().ok()? + 1))
            });
            // AWS4-HMAC-SHA256 Credential=KEY/20260101/us-east-1/s3/aws4_request, ..
            let key = headers.get("authorization").and_then(|signed| {
                let (_, credential) = signed.split_once("Credential=")?;
                Some(credential.split('/').next()?.to_owned())
            });
            let asked = Asked {
                method,
                path,
                range,
                key,
            };
            self.asked.lock().unwrap().push(asked.clone());
            let fate = (self.judge.lock().unwrap())(&asked);
            if let Some(pace) = self.pace {
                thread::sleep(pace.latency);
            }
            let goes_on = match self.upstream {
                Some(server) if passes(fate) => {
                    let (answer, body) = forward(server, &head, &asked)?;
                    stream.write_all(answer.as_bytes())?;
                    self.send(&mut stream, &asked, &body, fate)?
                }
                _ => self.answer(&mut stream, &asked, headers.get("if-match"), fate)?,
            };
            if !goes_on {
                return Ok(());
            }
        }
    }

    /// What is in a file, read once for each state of it.
    fn content(&self, file: &Path, metadata: &Metadata) -> io::Result<Content> {
        let state = (metadata.ino(), metadata.mtime_nsec());
        let mut contents = self.contents.lock().unwrap();
        if let Some(content) = contents.get(&state) {
            return Ok(content.clone());
        }
        let content: Content = fs::read(file)?.into();
        contents.insert(state, content.clone());
        Ok(content)
    }

    /// Whether the connection goes on.
    fn answer(&self, stream: &mut TcpStream, asked: &Asked, if_match: Option<&String>, fate: Fate) -> io::Result<bool> {
        match fate {
            Fate::Redirect(url) => {
                let head = format!("HTTP/1.1 302 Found\r\nlocation: {url}\r\ncontent-length: 0\r\n\r\n");
                stream.write_all(head.as_bytes())?;
                return Ok(true);
            }
            Fate::Status(_) | Fate::Refuse(..) => {
                let (status, code) = match fate {
                    Fate::Status(status) => (status, "Made"),
                    Fate::Refuse(status, code) => (status, code),
                    _ => unreachable!(),
                };
                let body = format!("<Error><Code>{code}</Code><Message>made by the test</Message></Error>");
                let head = format!("HTTP/1.1 {status} Made\r\ncontent-length: {}\r\n\r\n", body.len());
                stream.write_all(head.as_bytes())?;
                if asked.method != "HEAD" {
                    stream.write_all(body.as_bytes())?;
                }
                return Ok(true);
            }
            Fate::Page => {
                let page = "<html>log in</html>";
                let head = format!("HTTP/1.1 200 OK\r\nlast-modified: {}\r\n", http_date(SystemTime::now()));
                write!(stream, "{head}content-length: {}\r\n\r\n{page}", page.len())?;
                return Ok(true);
            }
            Fate::Silence => {
                while !self.stopped.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(50));
                }
                return Ok(false);
            }
            _ => {}
        }
        let file = self.root.join(&asked.path);
        let Ok(metadata) = fs::metadata(&file).and_then(|m| {
            if m.is_file() {
                Ok(m)
            } else {
                Err(io::ErrorKind::NotFound.into())
            }
        }) else {
            stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")?;
            return Ok(true);
        };
        let bytes = self.content(&file, &metadata)?;
        let tag = format!("\"{}-{}\"", metadata.ino(), metadata.mtime_nsec());
        if if_match.is_some_and(|wanted| *wanted != tag) {
            stream.write_all(b"HTTP/1.1 412 Precondition Failed\r\ncontent-length: 0\r\n\r\n")?;
            return Ok(true);
        }
        let range = asked.range.filter(|_| !fate.is_plain());
        let (status, part) = match range {
            Some((first, end)) if first < end && end <= bytes.len() as u64 => (206, first as usize..end as usize),
            Some(_) => (416, 0..0),
            None => (200, 0..bytes.len()),
        };
        let modified = http_date(metadata.modified()?);
        let mut head = format!("HTTP/1.1 {status} Fine\r\nlast-modified: {modified}\r\n");
        head += &match fate {
            Fate::Chunked => "transfer-encoding: chunked\r\n".to_owned(),
            _ => format!("content-length: {}\r\n", part.len()),
        };
        if !fate.is_plain() {
            head += &format!("etag: {tag}\r\naccept-ranges: bytes\r\n");
        }
        if status == 206 {
            head += &format!(
                "content-range: bytes {}-{}/{}\r\n",
                part.start,
                part.end - 1,
                bytes.len()
            );
        }
        stream.write_all(format!("{head}\r\n").as_bytes())?;
        self.send(stream, asked, &bytes[part], fate)
    }

    /// The body that follows a good header. Whether the connection goes on.
    fn send(&self, stream: &mut TcpStream, asked: &Asked, body: &[u8], fate: Fate) -> io::Result<bool> {
        if asked.method == "HEAD" {
            return Ok(true);
        }
        let mut damaged = Vec::new();
        match fate {
            Fate::Truncate | Fate::Reset | Fate::HalfOfWhole => {
                stream.write_all(&body[..body.len() / 2])?;
                if fate == Fate::Reset {
                    sockopt::set_socket_linger(&*stream, Some(Duration::ZERO))?;
                }
                return Ok(false);
            }
            Fate::Chunked => {
                write!(stream, "{:x}\r\n", body.len())?;
                stream.write_all(body)?;
                stream.write_all(b"\r\n0\r\n\r\n")?;
                return Ok(true);
            }
            Fate::WrongBit => {
                damaged = body.to_vec();
                damaged[body.len() / 2] ^= 4;
            }
            _ => {}
        }
        let body = if damaged.is_empty() { body } else { &damaged };
        let started = Instant::now();
        for (number, piece) in body.chunks(PIECE).enumerate() {
            stream.write_all(piece)?;
            if let Some(pace) = self.pace {
                let due = ((number + 1) * PIECE).min(body.len()) as f64 / pace.bytes_per_second;
                thread::sleep(Duration::from_secs_f64(due).saturating_sub(started.elapsed()));
            }
        }
        Ok(true)
    }
}

/// Whether a request with this fate gets a good header, from wherever.
fn passes(fate: Fate) -> bool {
    matches!(fate, Fate::Answer | Fate::Truncate | Fate::Reset | Fate::WrongBit)
}

/// What another server answers, in which nothing is changed.
fn forward(server: SocketAddr, head: &str, asked: &Asked) -> io::Result<(String, Vec<u8>)> {
    let mut server = TcpStream::connect(server)?;
    server.write_all(head.as_bytes())?;
    let mut lines = BufReader::new(server);
    let head = read_head(&mut lines)?;
    let mut body = Vec::new();
    if asked.method != "HEAD" {
        let length = headers(&head)
            .get("content-length")
            .and_then(|length| length.parse().ok());
        body.resize(length.ok_or(io::ErrorKind::InvalidData)?, 0);
        lines.read_exact(&mut body)?;
    }
    Ok((head, body))
}

/// The lines of a request or an answer up to the empty one, with it; nothing where the connection ends.
fn read_head(lines: &mut impl BufRead) -> io::Result<String> {
    let mut head = String::new();
    while lines.read_line(&mut head)? > 0 && !head.ends_with("\r\n\r\n") {}
    Ok(head)
}

/// By their names in small letters.
fn headers(head: &str) -> HashMap<String, String> {
    let pairs = head.lines().filter_map(|line| line.split_once(':'));
    pairs
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect()
}

/// A path without its percent-encoding.
fn decoded(path: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = path.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let code = (first == b'%').then(|| after.get(..2)).flatten();
        match code.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A time as it stands in headers.
fn http_date(time: SystemTime) -> String {
    let seconds = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let (days, rest) = ((seconds / 86400) as i64, seconds % 86400);
    // Civil date of a day number, after Hinnant.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = (month + 2) % 12;
    let year = year_of_era + era * 400 + i64::from(month < 2);
    let weekday = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"][(days % 7) as usize];
    let months = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    format!(
        "{weekday}, {day:02} {} {year} {:02}:{:02}:{:02} GMT",
        months[month as usize],
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

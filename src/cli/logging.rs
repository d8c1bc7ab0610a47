//! Where the log goes: standard error, the journal behind it, syslog or a file; and that nobody can flood it.
//!
//! Knows nothing of what is logged.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use log::{Level, LevelFilter, Log, Metadata, Record};
use thiserror::Error;

/// Where every system has its syslog, if it has one.
const SYSLOG: &str = "/dev/log";
/// A message that was written is not written again for this long, only counted.
const QUIET: Duration = Duration::from_secs(60);
/// So many different messages are remembered. More at a time, and the oldest may be written again.
const REMEMBERED: usize = 256;

/// Why there is no log.
#[derive(Debug, Error)]
pub enum LogError {
    /// Writing to it would wait for the mount, and the mount for the writing.
    #[error("log file {} lies below the mountpoint {}; give a file elsewhere", path.display(), mountpoint.display())]
    BelowMountpoint { path: PathBuf, mountpoint: PathBuf },
    /// The file cannot be opened.
    #[error("cannot open log file {}: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    /// Somebody else logs in this process already.
    #[error("the log is set up already")]
    Twice(#[from] log::SetLoggerError),
}

/// Where the log goes.
#[derive(Debug)]
pub enum Destination {
    /// Standard error; with priorities for the journal where standard error leads there.
    Stderr,
    /// The system's log, where there is one.
    Syslog,
    /// A file.
    File(File),
}

impl Destination {
    /// Opens a log file for appending, and makes it when it is absent.
    ///
    /// `mountpoint` is absolute and free of symbolic links.
    ///
    /// # Errors
    /// It lies below `mountpoint`, or cannot be opened.
    pub fn file(path: &Path, mountpoint: &Path) -> Result<Self, LogError> {
        let fail = |source| LogError::Open {
            path: path.to_owned(),
            source,
        };
        let absolute = std::path::absolute(path).map_err(fail)?;
        let parent = absolute
            .parent()
            .unwrap_or(Path::new("/"))
            .canonicalize()
            .map_err(fail)?;
        // The file itself may be a link to somewhere else.
        let real = absolute.canonicalize().unwrap_or_else(|_| parent.clone());
        if parent.starts_with(mountpoint) || real.starts_with(mountpoint) {
            return Err(LogError::BelowMountpoint {
                path: path.to_owned(),
                mountpoint: mountpoint.to_owned(),
            });
        }
        let file = File::options()
            .append(true)
            .create(true)
            .mode(0o640)
            // A terminal must not become the daemon's.
            .custom_flags(libc::O_NOCTTY)
            .open(path)
            .map_err(fail)?;
        Ok(Self::File(file))
    }
}

/// Sends the messages of the `log` macros to `destination`, those of at least `level`; of the FUSE library only errors.
///
/// # Errors
/// [`LogError::Twice`].
pub fn init(destination: Destination, level: LevelFilter) -> Result<(), LogError> {
    let sink = match destination {
        Destination::Stderr if stderr_is_journal() => Sink::Journal,
        Destination::Stderr => Sink::Stderr,
        Destination::Syslog => Sink::Syslog(None),
        Destination::File(file) => Sink::File(file),
    };
    let logger = Logger {
        state: Mutex::new(State {
            sink,
            repeats: Repeats::default(),
        }),
    };
    log::set_boxed_logger(Box::new(logger))?;
    log::set_max_level(level);
    Ok(())
}

/// Whether standard error is the very stream that the journal gave this service, as `JOURNAL_STREAM` says by device and inode.
fn stderr_is_journal() -> bool {
    let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    fs::metadata("/proc/self/fd/2").is_ok_and(|metadata| stream == format!("{}:{}", metadata.dev(), metadata.ino()))
}

struct Logger {
    state: Mutex<State>,
}

struct State {
    sink: Sink,
    repeats: Repeats,
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let foreign = metadata.target() == "fuser" || metadata.target().starts_with("fuser::");
        !foreign || metadata.level() == Level::Error
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let text = printable(&record.args().to_string());
        // A panic while the lock was held leaves nothing half done that matters here.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(suppressed) = state.repeats.admit(record.level(), &text, Instant::now()) else {
            return;
        };
        let text = match suppressed {
            0 => text,
            times => format!("{text} (and {times} times before)"),
        };
        // There is nowhere left to report that the log cannot be written.
        state.sink.write(record.level(), &text).ok();
    }

    fn flush(&self) {}
}

/// The text with line ends and other control characters spelt out: names in a dataset must not forge lines of a log.
fn printable(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() {
            true => line.extend(c.escape_default()),
            false => line.push(c),
        }
    }
    line
}

/// Which messages were written lately, and how often they came again since.
#[derive(Default)]
struct Repeats {
    seen: HashMap<(Level, String), Seen>,
}

struct Seen {
    written: Instant,
    suppressed: u64,
}

impl Repeats {
    /// Whether to write a message now, and if so how many of its kind were kept back since it was last written.
    fn admit(&mut self, level: Level, text: &str, now: Instant) -> Option<u64> {
        let key = (level, text.to_owned());
        if let Some(seen) = self.seen.get_mut(&key) {
            if now.duration_since(seen.written) < QUIET {
                seen.suppressed += 1;
                return None;
            }
            seen.written = now;
            return Some(std::mem::take(&mut seen.suppressed));
        }
        if self.seen.len() >= REMEMBERED {
            self.forget_oldest();
        }
        let seen = Seen {
            written: now,
            suppressed: 0,
        };
        self.seen.insert(key, seen);
        Some(0)
    }

    fn forget_oldest(&mut self) {
        let oldest = self
            .seen
            .iter()
            .min_by_key(|(_, seen)| seen.written)
            .map(|(key, _)| key.clone());
        if let Some(oldest) = oldest {
            self.seen.remove(&oldest);
        }
    }
}

enum Sink {
    Stderr,
    Journal,
    Syslog(Option<UnixDatagram>),
    File(File),
}

impl Sink {
    fn write(&mut self, level: Level, text: &str) -> io::Result<()> {
        match self {
            Self::Stderr => io::stderr().write_all(format!("dcfs: {}: {text}\n", word(level)).as_bytes()),
            Self::Journal => io::stderr().write_all(format!("<{}>{text}\n", priority(level)).as_bytes()),
            Self::Syslog(socket) => write_syslog(socket, level, text),
            // One write for each line, so that lines of several processes do not mix.
            Self::File(file) => {
                let time = utc(SystemTime::now());
                file.write_all(format!("{time} dcfs[{}] {}: {text}\n", std::process::id(), word(level)).as_bytes())
            }
        }
    }
}

/// Sends one message, and connects anew when the system's logger was restarted.
fn write_syslog(socket: &mut Option<UnixDatagram>, level: Level, text: &str) -> io::Result<()> {
    const DAEMON: u8 = 3;
    let message = format!("<{}>dcfs[{}]: {text}", DAEMON * 8 + priority(level), std::process::id());
    if let Some(connected) = socket
        && connected.send(message.as_bytes()).is_ok()
    {
        return Ok(());
    }
    let fresh = UnixDatagram::unbound()?;
    fresh.connect(SYSLOG)?;
    // A logger that does not keep up must not hold up the file system.
    fresh.set_nonblocking(true)?;
    let sent = fresh.send(message.as_bytes());
    *socket = Some(fresh);
    sent.map(drop)
}

fn word(level: Level) -> &'static str {
    match level {
        Level::Error => "error",
        Level::Warn => "warning",
        Level::Info => "info",
        Level::Debug => "debug",
        Level::Trace => "trace",
    }
}

/// The priorities of syslog.
fn priority(level: Level) -> u8 {
    match level {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    }
}

/// A moment as ISO 8601 writes it, to the second.
fn utc(moment: SystemTime) -> String {
    let seconds = moment.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let mut text = String::new();
    write!(text, "{year:04}-{month:02}-{day:02}T{:02}:", second / 3600).ok();
    write!(text, "{:02}:{:02}Z", second / 60 % 60, second % 60).ok();
    text
}

/// Year, month and day of the Gregorian calendar, from days since 1970. Years are counted from March, so that the leap day comes last.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_written_once_and_then_counted() {
        let mut repeats = Repeats::default();
        let start = Instant::now();
        assert_eq!(repeats.admit(Level::Warn, "tile 3 is damaged", start), Some(0));
        assert_eq!(repeats.admit(Level::Warn, "tile 3 is damaged", start + QUIET / 2), None);
        assert_eq!(repeats.admit(Level::Warn, "tile 3 is damaged", start + QUIET / 2), None);
        assert_eq!(
            repeats.admit(Level::Warn, "tile 4 is damaged", start + QUIET / 2),
            Some(0)
        );
        assert_eq!(repeats.admit(Level::Warn, "tile 3 is damaged", start + QUIET), Some(2));
        assert_eq!(
            repeats.admit(Level::Warn, "tile 3 is damaged", start + QUIET * 3),
            Some(0)
        );
    }

    #[test]
    fn a_flood_of_different_messages_takes_no_more_memory() {
        let mut repeats = Repeats::default();
        let start = Instant::now();
        for number in 0..10_000 {
            let at = start + Duration::from_micros(number);
            assert_eq!(repeats.admit(Level::Warn, &number.to_string(), at), Some(0));
        }
        assert_eq!(repeats.seen.len(), REMEMBERED);
        assert_eq!(repeats.admit(Level::Warn, "9999", start), None);
    }

    #[test]
    fn a_name_cannot_forge_a_line() {
        assert_eq!(
            printable("column a\nerror: b\u{1b}[0mé"),
            "column a\\nerror: b\\u{1b}[0mé"
        );
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        let at = |seconds| utc(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_709_251_199), "2024-02-29T23:59:59Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
    }

    #[test]
    fn a_log_file_below_the_mountpoint_is_refused_even_through_a_link() {
        let folder = std::env::temp_dir()
            .canonicalize()
            .unwrap()
            .join(format!("dcfs-log-{}", std::process::id()));
        let mountpoint = folder.join("mnt");
        fs::create_dir_all(&mountpoint).unwrap();
        std::os::unix::fs::symlink("mnt", folder.join("link")).unwrap();
        for below in ["mnt/log", "link/log"] {
            let refused = Destination::file(&folder.join(below), &mountpoint);
            assert!(matches!(refused, Err(LogError::BelowMountpoint { .. })), "{below}");
        }
        assert!(matches!(
            Destination::file(&folder.join("absent/log"), &mountpoint),
            Err(LogError::Open { .. })
        ));
        assert!(!mountpoint.join("log").exists());
        Destination::file(&folder.join("mnt.log"), &mountpoint).unwrap();
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_log_file_is_appended_to() {
        let path = std::env::temp_dir().join(format!("dcfs-log-append-{}", std::process::id()));
        for text in ["first", "second"] {
            let Ok(Destination::File(file)) = Destination::file(&path, Path::new("/nonexistent")) else {
                panic!("not opened");
            };
            Sink::File(file).write(Level::Error, text).unwrap();
        }
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines.len() == 2 && lines[0].ends_with("error: first") && lines[1].ends_with("error: second"),
            "{text}"
        );
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn of_the_fuse_library_only_errors_are_kept() {
        let logger = Logger {
            state: Mutex::new(State {
                sink: Sink::Stderr,
                repeats: Repeats::default(),
            }),
        };
        let enabled = |target, level| logger.enabled(&Metadata::builder().target(target).level(level).build());
        assert!(enabled("fuser::session", Level::Error) && enabled("dcfs::fs", Level::Debug));
        assert!(!enabled("fuser::request", Level::Warn) && !enabled("fuser", Level::Debug));
    }
}

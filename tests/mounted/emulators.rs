//! Servers of other people's that speak as S3 and Google Cloud Storage do: their answers are not what the tests think of them, and the
//! first of them checks signatures.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::ci::is_ci;
use crate::data::{MadeUp, made_up, replace};
use crate::harness::{Folder, Io, Mount, dcfs, in_both_modes, not_mounted, run, wait_until};
use crate::remote::{assert_same_files, every_second_fails};
use crate::server::Server;
use crate::skip::skip;

in_both_modes!(
    a_bucket_shows_the_files_of_the_folder,
    every_second_request_may_fail,
    a_tile_that_was_replaced_is_stale_though_the_server_knows_no_conditions,
);

const BUCKET: &str = "atlases";
/// In which there is something to encode, and to sign as it is encoded.
const NAME: &str = "made up/v1+2.dc";
const ENCODED_NAME: &str = "made%20up/v1+2.dc";
const KEY: &str = "the-tests-key";
const SECRET: &str = "the-tests-secret";

#[derive(Clone, Copy)]
enum Kind {
    S3,
    Google,
}

const KINDS: [Kind; 2] = [Kind::S3, Kind::Google];

impl Kind {
    fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Google => "gs",
        }
    }

    /// The server's program: what an environment variable names, the one that `.ci/run` installs, or one of `PATH`. Says so when there is
    /// none.
    fn program(self) -> Option<PathBuf> {
        let (name, variable) = match self {
            Self::S3 => ("s3s-fs", "DCFS_TEST_S3S_FS"),
            Self::Google => ("fake-gcs-server", "DCFS_TEST_FAKE_GCS_SERVER"),
        };
        let installed = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("tools/bin");
        let named = std::env::var_os(variable).map(PathBuf::from);
        let candidates = named.into_iter().chain([installed.join(name), name.into()]);
        let starts = |program: &PathBuf| Command::new(program).arg("--help").output().is_ok();
        let found = candidates.into_iter().find(starts);
        if found.is_none() {
            let told = format!("{name} is missing: .ci/run installs it, or {variable} names it");
            assert!(!is_ci(), "{told}");
            skip(told);
        }
        found
    }

    /// Tells a server to show the folders of `root` as buckets. Returns what it says when it does.
    fn serve(self, server: &mut Command, root: &Path, port: u16) -> &'static str {
        let port = port.to_string();
        match self {
            Self::S3 => {
                server.args(["--host", "127.0.0.1", "--port", &port]);
                server.args(["--access-key", KEY, "--secret-key", SECRET]);
                server.arg(root).env("RUST_LOG", "s3s_fs=info");
                "server is running"
            }
            Self::Google => {
                server.args(["-scheme", "http", "-host", "127.0.0.1", "-port", &port]);
                // Whatever port was asked for, which may be that of a server in between.
                server.args(["-public-host", "127.0.0.1"]);
                server.args(["-backend", "memory", "-data"]).arg(root);
                "server started"
            }
        }
    }

    /// A command of the built program that asks a server for the dataset, with the right keys where there are any.
    fn command(self, command: &str, endpoint: &str) -> Command {
        let mut dcfs = dcfs();
        dcfs.args([command, "--allow-http", "--endpoint", endpoint]);
        match self {
            Self::S3 => dcfs
                .env("AWS_ACCESS_KEY_ID", KEY)
                .env("AWS_SECRET_ACCESS_KEY", SECRET)
                .env_remove("AWS_SESSION_TOKEN")
                .env_remove("AWS_PROFILE"),
            Self::Google => dcfs.arg("--anonymous"),
        };
        dcfs.arg(format!("{}://{BUCKET}/{ENCODED_NAME}", self.scheme()));
        dcfs
    }
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A server with the made-up dataset in a bucket.
struct Emulator {
    kind: Kind,
    address: SocketAddr,
    dataset: MadeUp,
    _process: Running,
}

impl Emulator {
    fn start(kind: Kind) -> Option<Self> {
        let program = kind.program()?;
        let mut dataset = made_up();
        let root = dataset.folder.subfolder("buckets");
        let place = root.join(BUCKET).join(NAME);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::rename(&dataset.path, &place).unwrap();
        dataset.path = place;
        let said = dataset.folder.join("said");
        // Somebody else may take the port that was free.
        for _ in 0..10 {
            let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let address = free.local_addr().unwrap();
            drop(free);
            let output = File::create(&said).unwrap();
            let mut server = Command::new(&program);
            server.stdin(Stdio::null());
            server.stdout(output.try_clone().unwrap()).stderr(output);
            let ready = kind.serve(&mut server, &root, address.port());
            let mut process = Running(server.spawn().unwrap());
            let mut runs = false;
            wait_until("the server runs", || {
                runs = fs::read_to_string(&said).unwrap().contains(ready);
                runs || process.0.try_wait().unwrap().is_some()
            });
            if runs {
                return Some(Self {
                    kind,
                    address,
                    dataset,
                    _process: process,
                });
            }
        }
        panic!("{program:?} does not run: {}", fs::read_to_string(&said).unwrap());
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn command(&self, command: &str) -> Command {
        self.kind.command(command, &self.url())
    }

    fn tile(&self, tile: usize) -> PathBuf {
        self.dataset.path.join(format!("tiles/tile_{tile:06}.dct"))
    }
}

/// With a cache of obs columns of its own.
fn mount(mut command: Command, cache: &Folder, io: Io) -> Mount {
    command.arg("--cache-dir").arg(cache.path());
    Mount::by(command, io)
}

fn a_bucket_shows_the_files_of_the_folder(io: Io) {
    for emulator in KINDS.into_iter().filter_map(Emulator::start) {
        let cache = Folder::new();
        let mount = mount(emulator.command("mount"), &cache, io);
        let local = Mount::new(&emulator.dataset.path, io);
        assert_same_files(mount.path(), local.path());
        assert_eq!(mount.complaints(), [""; 0]);
    }
}

fn every_second_request_may_fail(io: Io) {
    for emulator in KINDS.into_iter().filter_map(Emulator::start) {
        let between = Server::before(emulator.address);
        let cache = Folder::new();
        let mount = mount(emulator.kind.command("mount", &between.url()), &cache, io);
        let local = Mount::new(&emulator.dataset.path, io);
        between.take_asked();
        between.judge(every_second_fails());
        assert_same_files(mount.path(), local.path());
        assert_eq!(mount.complaints(), [""; 0]);
        let asked = between.take_asked();
        let tiles = asked.iter().filter(|asked| asked.path.ends_with(".dct"));
        assert!(tiles.count() > emulator.dataset.tiles, "some failed: {asked:?}");
    }
}

/// Other servers refuse a request for a state of an object that is no more; of this one, the answers tell.
fn a_tile_that_was_replaced_is_stale_though_the_server_knows_no_conditions(io: Io) {
    let Some(s3) = Emulator::start(Kind::S3) else { return };
    let mut command = s3.command("mount");
    command.args(["--fetch-memory", "1"]);
    let cache = Folder::new();
    let mount = mount(command, &cache, io);
    // The second one, so that nothing of the first is in memory.
    for tile in [1, 2] {
        fs::read(mount.join(format!("tile_{tile:06}/data.i32"))).unwrap();
    }
    replace(&s3.tile(1), &fs::read(s3.tile(3)).unwrap());
    let stale = fs::read(mount.join("tile_000001/indices.i32")).unwrap_err();
    assert_eq!(stale.raw_os_error(), Some(libc::ESTALE));
}

#[test]
fn info_and_verify_read_a_bucket() {
    for emulator in KINDS.into_iter().filter_map(Emulator::start) {
        let info = run(&mut emulator.command("info"));
        assert!(info.contains("900"), "{info}");
        let verdict = run(&mut emulator.command("verify"));
        assert!(verdict.starts_with("no faults in 5 tiles"), "{verdict}");
    }
}

#[test]
fn what_a_server_refuses_is_said_at_mount_in_its_words() {
    let Some(s3) = Emulator::start(Kind::S3) else { return };
    let point = Folder::new();
    let mut wrong = s3.command("mount");
    let wrong = not_mounted(wrong.env("AWS_SECRET_ACCESS_KEY", "wrong"), point.path());
    assert!(wrong.contains("SignatureDoesNotMatch"), "{wrong}");
    let unsigned = not_mounted(s3.command("mount").arg("--anonymous"), point.path());
    assert!(unsigned.contains("AccessDenied"), "{unsigned}");
    // This server has one word for a missing object and a missing bucket.
    fs::rename(
        s3.dataset.folder.join("buckets/atlases"),
        s3.dataset.folder.join("aside"),
    )
    .unwrap();
    let missing = not_mounted(&mut s3.command("mount"), point.path());
    assert!(missing.contains("NoSuch"), "{missing}");
}

//! A real S3 server, s3s-fs: it checks signatures, and its answers are not the tests' own.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::ci::is_ci;
use crate::data::{MadeUp, made_up, replace};
use crate::harness::{Folder, Io, Mount, dcfs, in_both_modes, not_mounted, run, wait_until};
use crate::remote::{assert_same_files, every_second_fails};
use crate::server::{Asked, Server};
use crate::skip::skip;

in_both_modes!(
    a_bucket_behind_signatures_shows_the_files_of_the_folder,
    every_second_request_to_a_real_server_may_fail,
    a_tile_that_was_replaced_is_stale_though_the_server_knows_no_conditions,
);

const BUCKET: &str = "atlases";
/// In which there is something to encode, and to sign as it is encoded.
const NAME: &str = "made up/v1+2.dc";
const URL: &str = "s3://atlases/made%20up/v1+2.dc";
const KEY: &str = "the-tests-key";
const SECRET: &str = "the-tests-secret";

/// The server with the made-up dataset in a bucket.
struct S3 {
    child: Child,
    address: SocketAddr,
    dataset: MadeUp,
}

impl S3 {
    fn start() -> Option<Self> {
        let program = program()?;
        let mut dataset = made_up();
        let root = dataset.folder.subfolder("buckets");
        let place = root.join(BUCKET).join(NAME);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::rename(&dataset.path, &place).unwrap();
        dataset.path = place;
        let log = dataset.folder.join("log");
        loop {
            let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let address = free.local_addr().unwrap();
            drop(free);
            let mut child = Command::new(&program)
                .args(["--host", "127.0.0.1", "--port", &address.port().to_string()])
                .args(["--access-key", KEY, "--secret-key", SECRET])
                .arg(&root)
                .env("RUST_LOG", "s3s_fs=info")
                .stdin(Stdio::null())
                .stdout(File::create(&log).unwrap())
                .spawn()
                .unwrap();
            let mut ended = false;
            wait_until("the S3 server runs", || {
                ended = child.try_wait().unwrap().is_some();
                ended || fs::read_to_string(&log).unwrap().contains("server is running")
            });
            // Somebody else may have taken the port meanwhile.
            if !ended {
                return Some(Self {
                    child,
                    address,
                    dataset,
                });
            }
        }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A command of the built program with the right keys, told of the dataset.
    fn command(&self, command: &str) -> Command {
        command_at(command, URL, &self.url())
    }

    fn mount(&self, io: Io, endpoint: &str, cache: &Folder) -> Mount {
        let mut command = command_at("mount", URL, endpoint);
        command.arg("--cache-dir").arg(cache.path());
        Mount::by(command, io)
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn command_at(command: &str, url: &str, endpoint: &str) -> Command {
    let mut dcfs = dcfs();
    dcfs.args([command, "--allow-http", "--endpoint", endpoint, url])
        .env("AWS_ACCESS_KEY_ID", KEY)
        .env("AWS_SECRET_ACCESS_KEY", SECRET)
        .env_remove("AWS_SESSION_TOKEN")
        .env_remove("AWS_PROFILE");
    dcfs
}

/// The server's program: what `DCFS_TEST_S3S_FS` names, the one that `.ci/run` builds, or one of `PATH`. Says so when there is none.
fn program() -> Option<PathBuf> {
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("tools/bin/s3s-fs");
    let named = std::env::var_os("DCFS_TEST_S3S_FS").map(PathBuf::from);
    let candidates = named.into_iter().chain([built, "s3s-fs".into()]);
    let works = |program: &PathBuf| Command::new(program).arg("--version").output().is_ok();
    let found = candidates.into_iter().find(works);
    if found.is_none() {
        let told = "s3s-fs is missing: cargo install s3s-fs --locked --features binary --root target/tools";
        assert!(!is_ci(), "{told}");
        skip(told);
    }
    found
}

fn a_bucket_behind_signatures_shows_the_files_of_the_folder(io: Io) {
    let Some(s3) = S3::start() else { return };
    let cache = Folder::new();
    let mount = s3.mount(io, &s3.url(), &cache);
    assert_same_files(mount.path(), Mount::new(&s3.dataset.path, io).path());
    assert_eq!(mount.complaints(), [""; 0]);
}

fn every_second_request_to_a_real_server_may_fail(io: Io) {
    let Some(s3) = S3::start() else { return };
    let between = Server::before(s3.address);
    let cache = Folder::new();
    let mount = s3.mount(io, &between.url(), &cache);
    between.take_asked();
    between.judge(every_second_fails());
    assert_same_files(mount.path(), Mount::new(&s3.dataset.path, io).path());
    assert_eq!(mount.complaints(), [""; 0]);
    let tile = |asked: &&Asked| asked.path.ends_with(".dct");
    let requests = between.take_asked().iter().filter(tile).count();
    assert!(requests > s3.dataset.tiles, "{requests}, of which some failed");
}

/// Other servers refuse a request for a state of an object that is no more; of this one, the answers tell.
fn a_tile_that_was_replaced_is_stale_though_the_server_knows_no_conditions(io: Io) {
    let Some(s3) = S3::start() else { return };
    let cache = Folder::new();
    let mut command = s3.command("mount");
    command.args(["--fetch-memory", "1", "--cache-dir"]).arg(cache.path());
    let mount = Mount::by(command, io);
    let tile = |tile: usize| s3.dataset.path.join(format!("tiles/tile_{tile:06}.dct"));
    for read in [1, 2] {
        fs::read(mount.join(format!("tile_{read:06}/data.i32"))).unwrap();
    }
    replace(&tile(1), &fs::read(tile(3)).unwrap());
    let stale = fs::read(mount.join("tile_000001/indices.i32")).unwrap_err();
    assert_eq!(stale.raw_os_error(), Some(libc::ESTALE));
}

#[test]
fn info_and_verify_sign_their_requests() {
    let Some(s3) = S3::start() else { return };
    let info = run(&mut s3.command("info"));
    assert!(info.contains("900"), "{info}");
    let verdict = run(&mut s3.command("verify"));
    assert!(verdict.starts_with("no faults in 5 tiles"), "{verdict}");
}

#[test]
fn what_the_server_refuses_is_said_at_mount_in_its_words() {
    let Some(s3) = S3::start() else { return };
    let point = Folder::new();
    let wrong = not_mounted(s3.command("mount").env("AWS_SECRET_ACCESS_KEY", "wrong"), point.path());
    assert!(wrong.contains("SignatureDoesNotMatch"), "{wrong}");
    let unsigned = not_mounted(s3.command("mount").arg("--anonymous"), point.path());
    assert!(unsigned.contains("AccessDenied"), "{unsigned}");
    // This server has one word for a missing object and a missing bucket.
    let missing = not_mounted(
        &mut command_at("mount", "s3://no-bucket/made-up.dc", &s3.url()),
        point.path(),
    );
    assert!(
        missing.contains("NoSuchKey") && missing.contains("no-bucket"),
        "{missing}"
    );
}

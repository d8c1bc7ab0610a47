//! What stores say and need before they give anything: credentials and their renewal, regions, redirects, plain web servers; and
//! what a person is told when they do not.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::data::{MadeUp, made_up, replace};
use crate::harness::{Folder, Io, Mount, can_mount, dcfs, failed_with, run, text, wait_until};
use crate::remote::assert_same_files;
use crate::server::{Fate, Server};

/// The program with nothing of who runs the tests, and a home of its own. Metadata services are not asked.
fn alone(home: &Folder) -> Command {
    let mut command = dcfs();
    let clouds = ["AWS_", "GOOGLE_", "GCE_", "AZURE_", "IDENTITY_", "MSI_", "CLOUDSDK_"];
    for (name, _) in std::env::vars_os() {
        if clouds.iter().any(|cloud| name.to_string_lossy().starts_with(cloud)) {
            command.env_remove(name);
        }
    }
    command
        .env("HOME", home.path())
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env("GCE_METADATA_HOST", NOBODY)
        .env("GCE_METADATA_IP", NOBODY)
        .env("IDENTITY_ENDPOINT", format!("http://{NOBODY}/"))
        .env("IDENTITY_HEADER", "none");
    command
}

/// An address of this machine where nobody listens.
const NOBODY: &str = "127.0.0.1:9";

/// The made-up dataset in `bucket` of a server.
struct Bucket {
    dataset: MadeUp,
    server: Server,
    home: Folder,
}

impl Bucket {
    fn new() -> Self {
        let dataset = made_up();
        let bucket = dataset.folder.path().join("bucket");
        fs::create_dir(&bucket).unwrap();
        fs::rename(&dataset.path, bucket.join("x.dc")).unwrap();
        let server = Server::new(dataset.folder.path());
        let home = Folder::new();
        Self { dataset, server, home }
    }

    /// A command and its subcommand, ready for the rest.
    fn command(&self, subcommand: &str) -> Command {
        let mut command = alone(&self.home);
        command
            .arg(subcommand)
            .args(["--allow-http", "--endpoint", &self.server.url()]);
        command
    }

    /// `info`, with keys in the environment.
    fn info(&self) -> Output {
        let mut info = self.command("info");
        info.env("AWS_ACCESS_KEY_ID", "K").env("AWS_SECRET_ACCESS_KEY", "S");
        info.arg("s3://bucket/x.dc").output().unwrap()
    }

    fn write_home(&self, file: &str, text: &str) {
        let path = self.home.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        replace(&path, text.as_bytes());
    }
}

/// A mount in the foreground by a command of a test.
struct Mounted {
    child: Child,
    point: PathBuf,
    stderr: PathBuf,
    _folder: Folder,
}

impl Mounted {
    fn new(mut mount: Command, dataset: impl AsRef<Path>) -> Self {
        let folder = Folder::new();
        let point = folder.subfolder("mount");
        let stderr = folder.join("stderr");
        let child = mount
            .args(["--foreground", "--cache-dir"])
            .arg(folder.join("obs"))
            .arg(dataset.as_ref())
            .arg(&point)
            .stderr(File::create(&stderr).unwrap())
            .spawn()
            .unwrap();
        let mut mounted = Self {
            child,
            point,
            stderr,
            _folder: folder,
        };
        wait_until("the mount answers", || {
            let ended = mounted.child.try_wait().unwrap();
            assert!(ended.is_none(), "{}", mounted.log());
            mounted.point.join("README.txt").exists()
        });
        mounted
    }

    fn read(&self, file: &str) -> std::io::Result<Vec<u8>> {
        fs::read(self.point.join(file))
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap()
    }

    fn complaints(&self) -> Vec<String> {
        let log = self.log();
        let complaints = log
            .lines()
            .filter(|line| line.contains("error: ") || line.contains("warning: "));
        complaints.map(str::to_owned).collect()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        run(dcfs().args(["umount", "--lazy"]).arg(&self.point));
        self.child.wait().unwrap();
    }
}

/// One line of `dcfs: ` for what happened, and perhaps one for what to do, without what the library says of itself.
fn assert_told(output: &Output, parts: &[&str]) {
    let told = failed_with(output, 1);
    assert!(
        told.lines().count() <= 2 && told.lines().all(|line| line.starts_with("dcfs: ")),
        "{told}"
    );
    for part in parts {
        assert_eq!(told.matches(part).count(), 1, "{part:?} in {told}");
    }
    for noise in [
        "Generic",
        "Error performing",
        "max_retries",
        "18446744073709551615",
        "<Error>",
        "error sending request",
    ] {
        assert!(!told.contains(noise), "{told}");
    }
}

#[test]
fn what_a_store_refuses_is_told_with_its_own_reason_and_what_to_do() {
    let bucket = Bucket::new();
    let cases = [
        (Fate::Refuse(400, "ExpiredToken"), "log in again"),
        (Fate::Refuse(403, "InvalidAccessKeyId"), "does not know the access key"),
        (
            Fate::Refuse(403, "SignatureDoesNotMatch"),
            "the secret is not the one of the access key",
        ),
        (Fate::Refuse(403, "RequestTimeTooSkewed"), "set this machine's clock"),
        (Fate::Refuse(403, "AccessDenied"), "Public buckets need --anonymous"),
        (Fate::Refuse(400, "AuthorizationHeaderMalformed"), "--region"),
        (Fate::Refuse(404, "NoSuchBucket"), "folder that holds manifest.json"),
    ];
    for (fate, advice) in cases {
        let Fate::Refuse(status, code) = fate else {
            unreachable!()
        };
        bucket.server.judge(move |_| fate);
        let status = status.to_string();
        let parts = [
            "s3://bucket/x.dc/manifest.json: ",
            &status,
            code,
            "made by the test",
            advice,
        ];
        assert_told(&bucket.info(), &parts);
    }
}

#[test]
fn regions_are_spoken_of_where_there_are_some() {
    let bucket = Bucket::new();
    bucket.server.judge(|_| Fate::Status(404));
    let web = format!("{}/bucket/x.dc", bucket.server.url());
    for url in ["s3://bucket/x.dc", "gs://bucket/x.dc", "az://bucket/x.dc", &web] {
        let mut info = bucket.command("info");
        info.env("AZURE_STORAGE_ACCOUNT_NAME", "account");
        let told = info.args(["--anonymous", url]).output().unwrap();
        assert_told(&told, &["manifest.json: ", "folder that holds manifest.json"]);
        assert_eq!(text(&told.stderr).contains("--region"), url.starts_with("s3:"), "{url}");
    }
}

#[test]
fn who_cannot_be_reached_is_named_with_the_reason() {
    let bucket = Bucket::new();
    let info = |url: &str| alone(&bucket.home).arg("info").arg(url).output().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let refused = format!("cannot connect to 127.0.0.1:{port}: connection refused");
    assert_told(
        &info(&format!("http://127.0.0.1:{port}/x.dc")),
        &[&refused, "/x.dc/manifest.json", "can this machine reach it?"],
    );
    // Longer than names can be, so that nobody is asked for it.
    let name = "n".repeat(64);
    assert_told(
        &info(&format!("http://{name}/x.dc")),
        &[&format!("the name {name} is not known")],
    );
    let no_tls = bucket.server.url().replace("http:", "https:");
    assert_told(&info(&no_tls), &["is it a server for http://?"]);
}

#[test]
fn a_reader_is_told_in_the_log_that_a_store_is_silent_or_overloaded() {
    if !can_mount() {
        return;
    }
    let bucket = Bucket::new();
    let mut mount = bucket.command("mount");
    mount.args(["--anonymous", "--request-timeout", "2"]);
    let mounted = Mounted::new(mount, "s3://bucket/x.dc");
    let cases = [
        (0, Fate::Silence, "did not answer in time ("),
        (
            1,
            Fate::Refuse(503, "SlowDown"),
            "503 Service Unavailable, SlowDown: made by the test (",
        ),
        (
            2,
            Fate::Refuse(403, "ExpiredToken"),
            "403 Forbidden, ExpiredToken: made by the test; the session",
        ),
    ];
    for (tile, fate, expected) in cases {
        bucket.server.judge(move |_| fate);
        let error = mounted.read(&format!("tile_{tile:06}/data.i32")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
        let object = format!("s3://bucket/x.dc/tiles/tile_{tile:06}.dct: ");
        let complaints = mounted.complaints();
        let line = complaints
            .iter()
            .find(|line| line.contains(&object))
            .expect("one about the tile");
        assert!(line.contains(expected), "{line}");
        assert_eq!(line.contains(" tries in "), tile != 2, "{line}");
    }
}

#[test]
fn who_has_no_credentials_is_told_where_they_were_looked_for() {
    let bucket = Bucket::new();
    let nowhere = bucket.command("info").arg("s3://bucket/x.dc").output().unwrap();
    assert_told(
        &nowhere,
        &[
            "no credentials",
            "AWS_ACCESS_KEY_ID",
            ".aws/credentials",
            "AWS_EC2_METADATA_DISABLED",
            "--anonymous",
        ],
    );
    // One that accepts and does not answer, as behind a firewall or one hop too many.
    let metadata = Server::new(bucket.home.path());
    metadata.judge(|_| Fate::Silence);
    let mut silent = bucket.command("info");
    silent
        .env_remove("AWS_EC2_METADATA_DISABLED")
        .env("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata.url());
    let silent = silent.arg("s3://bucket/x.dc").output().unwrap();
    assert_told(
        &silent,
        &[
            "no credentials",
            "did not answer in time (3 tries",
            "instance's metadata service",
            "--anonymous",
        ],
    );
    assert_eq!(metadata.take_asked().len(), 3);
    let google = bucket.command("info").arg("gs://bucket/x.dc").output().unwrap();
    assert_told(
        &google,
        &["no credentials", "gcloud auth application-default login", "--anonymous"],
    );
    let mut azure = bucket.command("info");
    azure.env("AZURE_STORAGE_ACCOUNT_NAME", "account");
    let azure = azure.arg("az://bucket/x.dc").output().unwrap();
    assert_told(&azure, &["no credentials", "AZURE_STORAGE_ACCOUNT_KEY", "--anonymous"]);
    assert_eq!(bucket.server.take_asked(), [], "the store was not asked");
}

/// A container's service of credentials, which has another key each time.
struct Service {
    server: Server,
    given: Arc<AtomicUsize>,
}

impl Service {
    /// Keys are good for so many seconds.
    fn new(home: &Folder, seconds: i64) -> Self {
        let server = Server::new(home.path());
        let given = Arc::new(AtomicUsize::new(0));
        let (count, file) = (given.clone(), home.join("keys"));
        fs::write(home.join("token"), "T").unwrap();
        server.judge(move |_| {
            let number = count.fetch_add(1, Ordering::SeqCst) + 1;
            replace(&file, keys(number, Some(seconds)).as_bytes());
            Fate::Answer
        });
        Self { server, given }
    }
}

/// Keys as services and programs give them.
fn keys(number: usize, seconds: Option<i64>) -> String {
    let mut keys = serde_json::json!({
        "Version": 1,
        "AccessKeyId": format!("K{number}"),
        "SecretAccessKey": "S",
        "Token": "T",
        "SessionToken": "T",
    });
    if let Some(seconds) = seconds {
        let end = chrono::Utc::now() + chrono::TimeDelta::seconds(seconds);
        keys["Expiration"] = end.format("%Y-%m-%dT%H:%M:%SZ").to_string().into();
    }
    keys.to_string()
}

/// Has the server take only the key of which `good` says the number.
fn take_only(server: &Server, good: impl Fn() -> usize + Send + 'static) {
    server.judge(move |asked| match asked.key == Some(format!("K{}", good())) {
        true => Fate::Answer,
        false => Fate::Refuse(403, "ExpiredToken"),
    });
}

/// Reads tiles, of which none is the next of another, so that none was fetched ahead.
fn assert_reads_tiles(mounted: &Mounted, tiles: impl IntoIterator<Item = usize>) {
    for tile in tiles {
        let read = mounted.read(&format!("tile_{tile:06}/data.i32"));
        assert!(read.is_ok(), "{read:?}\n{}", mounted.log());
    }
    assert_eq!(mounted.complaints(), [""; 0]);
}

/// Keys with which tiles were asked for since this was last looked at.
fn keys_for_tiles(server: &Server) -> Vec<String> {
    let mut keys: Vec<String> = server
        .take_asked()
        .into_iter()
        .filter(|asked| asked.path.ends_with(".dct"))
        .filter_map(|asked| asked.key)
        .collect();
    keys.dedup();
    keys
}

#[test]
fn credentials_of_a_service_are_renewed_before_they_expire_and_no_reader_sees_it() {
    if !can_mount() {
        return;
    }
    let bucket = Bucket::new();
    let service = Service::new(&bucket.home, 0);
    let given = service.given.clone();
    take_only(&bucket.server, move || given.load(Ordering::SeqCst));
    let mut mount = bucket.command("mount");
    // One request at a time: none is on its way with the key before the newest.
    mount
        .args(["--fetch-parallel", "1"])
        .env(
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            format!("{}/keys", service.server.url()),
        )
        .env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", bucket.home.join("token"));
    let mounted = Mounted::new(mount, "s3://bucket/x.dc");
    bucket.server.take_asked();
    assert_reads_tiles(&mounted, [0, 2, 4, 1, 3]);
    let keys = keys_for_tiles(&bucket.server);
    assert_eq!(keys.len(), 5, "each had expired when the next was needed: {keys:?}");
}

#[test]
fn credentials_that_a_store_takes_no_more_are_had_anew_and_no_reader_sees_it() {
    if !can_mount() {
        return;
    }
    let bucket = Bucket::new();
    let service = Service::new(&bucket.home, 3600);
    take_only(&bucket.server, || 1);
    let mut mount = bucket.command("mount");
    mount
        .env(
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            format!("{}/keys", service.server.url()),
        )
        .env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", bucket.home.join("token"));
    let mounted = Mounted::new(mount, "s3://bucket/x.dc");
    assert_reads_tiles(&mounted, [0]);
    take_only(&bucket.server, || 2);
    bucket.server.take_asked();
    assert_reads_tiles(&mounted, [2]);
    assert_eq!(keys_for_tiles(&bucket.server), ["K1", "K2"], "asked once more");
    assert_reads_tiles(&mounted, [4, 1]);
    assert_eq!(keys_for_tiles(&bucket.server), ["K2"]);
    assert_eq!(service.given.load(Ordering::SeqCst), 2);
    // Where new ones do not help, the reason is told; services are not asked for each request.
    bucket.server.judge(|_| Fate::Refuse(403, "InvalidAccessKeyId"));
    assert!(mounted.read("tile_000003/data.i32").is_err());
    assert!(
        mounted.log().contains("does not know the access key"),
        "{}",
        mounted.log()
    );
    assert!(service.given.load(Ordering::SeqCst) <= 3);
}

#[test]
fn keys_that_are_rewritten_in_a_profile_are_those_of_later_requests() {
    if !can_mount() {
        return;
    }
    let bucket = Bucket::new();
    let profile = |number: usize| format!("[default]\naws_access_key_id=K{number}\naws_secret_access_key=S\n");
    bucket.write_home(".aws/credentials", &profile(1));
    take_only(&bucket.server, || 1);
    let mounted = Mounted::new(bucket.command("mount"), "s3://bucket/x.dc");
    assert_reads_tiles(&mounted, [0, 3]);
    bucket.write_home(".aws/credentials", &profile(2));
    take_only(&bucket.server, || 2);
    bucket.server.take_asked();
    assert_reads_tiles(&mounted, [1]);
    assert_eq!(keys_for_tiles(&bucket.server), ["K2"], "none is refused");
    // While it is being rewritten, the keys before count.
    bucket.write_home(".aws/credentials", "");
    mounted.read("obs/cell_type.arrow").unwrap();
    let complaints = mounted.complaints();
    assert_eq!(complaints.len(), 1, "{complaints:?}");
    assert!(complaints[0].contains("the last ones are used"), "{complaints:?}");
}

#[test]
fn a_program_that_gives_keys_is_run_again_when_they_are_refused_or_expire() {
    if !can_mount() {
        return;
    }
    let bucket = Bucket::new();
    let (file, runs) = (bucket.home.join("keys"), bucket.home.join("runs"));
    let config = format!(
        "[default]\ncredential_process = echo run >> '{}'; cat '{}'\n",
        runs.display(),
        file.display()
    );
    bucket.write_home(".aws/config", &config);
    let runs = || fs::read_to_string(&runs).unwrap().lines().count();
    replace(&file, keys(1, Some(7200)).as_bytes());
    take_only(&bucket.server, || 1);
    let mounted = Mounted::new(bucket.command("mount"), "s3://bucket/x.dc");
    assert_reads_tiles(&mounted, [0]);
    assert_eq!(runs(), 1);
    replace(&file, keys(2, Some(0)).as_bytes());
    take_only(&bucket.server, || 2);
    assert_reads_tiles(&mounted, [2]);
    assert_eq!(runs(), 2);
    replace(&file, keys(3, None).as_bytes());
    take_only(&bucket.server, || 3);
    assert_reads_tiles(&mounted, [4, 1]);
    assert_eq!(runs(), 3, "these do not expire");
    drop(mounted);

    bucket.write_home(
        ".aws/config",
        "[default]\ncredential_process = echo your login is over >&2; exit 3\n",
    );
    let failed = bucket.command("info").arg("s3://bucket/x.dc").output().unwrap();
    assert_told(&failed, &["no credentials", "exit status: 3: your login is over"]);
    // One that hangs is not waited for, neither by the request nor at the end.
    bucket.write_home(".aws/config", "[default]\ncredential_process = exec sleep 1000000\n");
    let point = bucket.home.subfolder("mount");
    let mut hanging = bucket.command("mount");
    hanging.args(["--request-timeout", "1", "s3://bucket/x.dc"]).arg(&point);
    assert_told(
        &hanging.output().unwrap(),
        &["no credentials", "credential_process", "did not end within 0.45 s"],
    );
    bucket.write_home(".aws/config", "[default]\ncredential_process = echo secret-secret\n");
    let failed = bucket.command("info").arg("s3://bucket/x.dc").output().unwrap();
    let told = failed_with(&failed, 1);
    assert!(told.contains("does not write what it should"), "{told}");
}

#[test]
fn profiles_that_get_keys_elsewhere_are_refused_by_name() {
    let bucket = Bucket::new();
    for way in [
        "role_arn",
        "sso_session",
        "sso_start_url",
        "login_session",
        "web_identity_token_file",
    ] {
        bucket.write_home(
            ".aws/config",
            &format!("[profile lab]\n{way} = x\nsource_profile = y\n"),
        );
        let mut info = bucket.command("info");
        let refused = info.env("AWS_PROFILE", "lab").arg("s3://bucket/x.dc").output().unwrap();
        let told = failed_with(&refused, 1);
        assert!(
            told.contains(way) && told.contains("aws configure export-credentials --profile lab"),
            "{told}"
        );
    }
    let mut info = bucket.command("info");
    let uri = format!("http://{NOBODY}/keys");
    let refused = info
        .env("AWS_CONTAINER_CREDENTIALS_FULL_URI", uri)
        .arg("s3://bucket/x.dc")
        .output()
        .unwrap();
    assert_told(&refused, &["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"]);
    assert_eq!(bucket.server.take_asked(), []);
}

#[test]
fn a_redirect_is_followed_and_named() {
    if !can_mount() {
        return;
    }
    let bucket = Bucket::new();
    let front = Server::new(bucket.home.path());
    let url = format!("{}/old.dc", front.url());
    let target: &'static str = format!("http://{NOBODY}/bucket/x.dc/manifest.json?signature=secret").leak();
    front.judge(move |_| Fate::Redirect(target));
    let info = alone(&bucket.home).arg("info").arg(&url).output().unwrap();
    let redirects = format!("it redirects to http://{NOBODY}/bucket/x.dc/manifest.json: give the URL that it leads to");
    assert_told(&info, &[&format!("cannot connect to {NOBODY}"), &redirects]);

    // As it goes for datasets that were moved.
    let root = bucket.server.url();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = asked.clone();
    front.judge(move |request| {
        noted.lock().unwrap().push(request.path.clone());
        Fate::Redirect(format!("{root}/bucket/x.dc/{}", request.path.trim_start_matches("old.dc/")).leak())
    });
    let mut mount = alone(&bucket.home);
    mount.arg("mount");
    let mounted = Mounted::new(mount, &url);
    let tile = mounted.read("tile_000000/data.i32").unwrap();
    assert!(!tile.is_empty() && asked.lock().unwrap().iter().any(|path| path.ends_with(".dct")));
    let complaints = mounted.complaints();
    assert_eq!(complaints.len(), 1, "said once: {complaints:?}");
    assert!(
        complaints[0].contains("redirects to") && complaints[0].contains("give the URL that it leads to"),
        "{complaints:?}"
    );
}

#[test]
fn the_region_of_a_bucket_is_told_by_a_redirect_to_nowhere() {
    let bucket = Bucket::new();
    bucket.server.judge(|_| Fate::Status(301));
    assert_told(&bucket.info(), &["--region"]);
}

#[test]
fn a_url_with_a_query_or_fragment_is_refused() {
    let bucket = Bucket::new();
    for extra in ["?versionId=1", "#part"] {
        let info = alone(&bucket.home)
            .arg("info")
            .arg(format!("{}/bucket/x.dc{extra}", bucket.server.url()))
            .output()
            .unwrap();
        assert_told(&info, &[&format!("the URL of a dataset has no {}", &extra[..1])]);
    }
    assert_eq!(bucket.server.take_asked(), []);
}

#[test]
fn a_server_without_ranges_and_tags_shows_the_files_of_the_folder() {
    if !can_mount() {
        return;
    }
    let bucket = Bucket::new();
    let local = Mount::new(&bucket.dataset.folder.join("bucket/x.dc"), Io::Fuse);
    // Half of the answers break off, and nothing goes on from there.
    let mut number = 0;
    bucket.server.judge(move |_| {
        number += 1;
        match number % 2 {
            0 => Fate::Whole,
            _ => Fate::HalfOfWhole,
        }
    });
    let url = format!("{}/bucket/x.dc", bucket.server.url());
    let mut mount = alone(&bucket.home);
    mount.arg("mount");
    let mounted = Mounted::new(mount, &url);
    assert_same_files(&mounted.point, local.path());
    let complaints = mounted.complaints();
    assert!(
        complaints.len() == 1 && complaints[0].contains("no range requests"),
        "{complaints:?}"
    );
    let verdict = run(alone(&bucket.home).arg("verify").arg(&url));
    assert!(verdict.starts_with("no faults"), "{verdict}");
}

#[test]
fn a_server_that_does_not_tell_sizes_is_refused() {
    let bucket = Bucket::new();
    bucket.server.judge(|_| Fate::Chunked);
    let url = format!("{}/bucket/x.dc", bucket.server.url());
    let info = alone(&bucket.home).arg("info").arg(&url).output().unwrap();
    assert_told(
        &info,
        &["manifest.json: the server does not say how large the object is (Content-Length)"],
    );
    assert!(!text(&info.stderr).contains("ranges"));
}

#[test]
fn a_server_that_does_not_take_head_is_asked_for_first_bytes() {
    if !can_mount() {
        return;
    }
    let bucket = Bucket::new();
    let local = Mount::new(&bucket.dataset.folder.join("bucket/x.dc"), Io::Fuse);
    bucket.server.judge(|asked| match &*asked.method {
        "HEAD" => Fate::Status(405),
        _ => Fate::Answer,
    });
    let url = format!("{}/bucket/x.dc", bucket.server.url());
    let mut mount = alone(&bucket.home);
    mount.arg("mount");
    let mounted = Mounted::new(mount, &url);
    assert_same_files(&mounted.point, local.path());
    assert_eq!(mounted.complaints(), [""; 0]);
}

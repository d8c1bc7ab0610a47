use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let store = Arc::new(dcfs::store::Directory::open(args[1].as_ref()).unwrap());
    let dataset = Arc::new(dcfs::dataset::Dataset::open(store).unwrap());
    let view = dcfs::view::View::new(dataset).unwrap();
    let tmpfs = args
        .get(3)
        .is_none()
        .then(|| dcfs::cache::tmpfs::PrivateTmpfs::new(8 << 30).unwrap());
    let engine = dcfs::engine::Engine::new(
        view,
        dcfs::engine::Options {
            cache_bytes: 4 << 30,
            cache_blocks: 10000,
            threads: 2,
            tmpfs,
        },
    )
    .unwrap();
    let fs = dcfs::fs::DatasetFs::new(
        engine,
        dcfs::fs::Serve {
            ownership: Default::default(),
            request_timeout: std::time::Duration::from_secs(60),
        },
    )
    .unwrap();
    let dev: OwnedFd = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .unwrap()
        .into();
    let data = std::ffi::CString::new(format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other",
        dev.as_fd().as_raw_fd()
    ))
    .unwrap();
    rustix::mount::mount(
        "dcfs",
        args[2].as_str(),
        "fuse.dcfs",
        rustix::mount::MountFlags::RDONLY,
        Some(data.as_c_str()),
    )
    .unwrap();
    let mut config = fuser::Config::default();
    config.n_threads = Some(4);
    config.clone_fd = true;
    fuser::Session::from_fd(fs, dev, fuser::SessionACL::All, config)
        .unwrap()
        .run()
        .unwrap();
}

//! Two nodes of a cluster, in network namespaces of their own, that read one bucket.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::data::{assert_shows, made_up};
use crate::harness::{Folder, dcfs, is_root, run, skip_without, wait_until};
use crate::server::Server;
use crate::skip::skip;

/// A network namespace with one link to this one.
struct Node {
    name: String,
    link: String,
    number: u8,
}

impl Node {
    fn new(number: u8) -> Self {
        let pid = std::process::id() % 1_000_000;
        let node = Self {
            name: format!("dcfs-test-{pid}-{number}"),
            link: format!("dcfs{pid}-{number}"),
            number,
        };
        let (name, link, peer) = (&node.name, &node.link, format!("dcfsp{pid}-{number}"));
        let (here, there) = (format!("{}/30", node.address(1)), format!("{}/30", node.address(2)));
        ip(&["netns", "add", name]);
        ip(&[
            "link", "add", link, "type", "veth", "peer", "name", &peer, "netns", name,
        ]);
        ip(&["address", "add", &here, "dev", link]);
        ip(&["link", "set", link, "up"]);
        ip(&["-n", name, "address", "add", &there, "dev", &peer]);
        ip(&["-n", name, "link", "set", "lo", "up"]);
        ip(&["-n", name, "link", "set", &peer, "up"]);
        node
    }

    /// Of this side (1) or the node's (2). No two runs of this test at a time have the same.
    fn address(&self, side: u8) -> String {
        let run = std::process::id();
        format!(
            "10.{}.{}.{side}",
            200 + run % 50,
            (run / 50 % 120 * 2) as u8 + self.number
        )
    }

    fn mount(&self, url: &str, folder: &Folder) -> NodeMount {
        let point = folder.subfolder(&self.name);
        let cache = folder.join(format!("{}-cache", self.name));
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.name));
        command.args([
            env!("CARGO_BIN_EXE_dcfs"),
            "mount",
            "--request-timeout",
            "3",
            "--cache-dir",
        ]);
        run(command.arg(cache).arg(url).arg(&point));
        NodeMount(point)
    }

    fn set_link(&self, state: &str) {
        ip(&["link", "set", &self.link, state]);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Its end of the link goes with it, and so does ours.
        Command::new("ip").args(["netns", "delete", &self.name]).status().ok();
        Command::new("ip").args(["link", "delete", &self.link]).output().ok();
    }
}

struct NodeMount(PathBuf);

impl NodeMount {
    fn tile(&self, tile: usize) -> PathBuf {
        self.0.join(format!("tile_{tile:06}"))
    }
}

impl Drop for NodeMount {
    fn drop(&mut self) {
        dcfs().arg("umount").arg(&self.0).status().ok();
    }
}

fn ip(arguments: &[&str]) {
    run(Command::new("ip").args(arguments));
}

fn read(file: &Path) -> Result<Vec<u8>, Option<i32>> {
    fs::read(file).map_err(|error| error.raw_os_error())
}

#[test]
fn a_node_that_loses_its_network_loses_nothing_else_and_comes_back() {
    if !is_root() {
        return skip("network namespaces need root");
    }
    for (program, package) in [("ip", "iproute2"), ("nsenter", "util-linux")] {
        if Command::new(program).arg("--version").output().is_err() {
            return skip_without(program, package);
        }
    }
    let dataset = made_up();
    let server = Server::at(dataset.folder.path(), "0.0.0.0:0");
    let nodes = [Node::new(0), Node::new(1)];
    let [one, other] = [0, 1].map(|node: usize| {
        let url = format!("http://{}:{}/made-up.dc", nodes[node].address(1), server.port());
        nodes[node].mount(&url, &dataset.folder)
    });
    for mount in [&one, &other] {
        assert_shows(&mount.tile(0), &dataset.synthetic.tile(0));
    }
    nodes[1].set_link("down");
    assert_eq!(read(&other.tile(1).join("data.i32")), Err(Some(libc::EIO)));
    assert_shows(&other.tile(0), &dataset.synthetic.tile(0));
    assert_shows(&one.tile(1), &dataset.synthetic.tile(1));
    nodes[1].set_link("up");
    // For a moment nobody waits for what was just waited for in vain.
    wait_until("it reads again", || read(&other.tile(1).join("data.i32")).is_ok());
    assert_shows(&other.tile(1), &dataset.synthetic.tile(1));
}

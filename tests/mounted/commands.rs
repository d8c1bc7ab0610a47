//! The other commands: what they say, and the status with which they end.

use std::fs;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::data::{made_up, shared};
use crate::harness::{Folder, Io, Source, dcfs, failed_with, in_both_modes, run, types_at, wait_until};

in_both_modes!(
    the_demo_shows_itself_and_leaves_nothing,
    the_demo_stays_until_it_is_interrupted
);

#[test]
fn info_says_what_a_dataset_holds() {
    let dataset = made_up();
    for source in Source::both(&dataset.path) {
        let text = run(&mut source.command("info"));
        for word in [
            "900",
            "1,500",
            "5 of 200 cells",
            "9 columns",
            "cell_type",
            "category",
            "8 categories",
        ] {
            assert!(text.contains(word), "{word} is missing from {text}");
        }
        let json: Value = serde_json::from_str(&run(source.command("info").arg("--json"))).unwrap();
        let nnz: usize = (0..5).map(|tile| dataset.synthetic.tile(tile).counts.len()).sum();
        assert_eq!(json["n_cells"], 900);
        assert_eq!(json["nnz"], nnz);
        assert_eq!(json["obs"]["columns"][1]["categories"], 8);
        let bytes: u64 = (0..5)
            .map(|tile| {
                fs::metadata(dataset.path.join(format!("tiles/tile_{tile:06}.dct")))
                    .unwrap()
                    .len()
            })
            .sum();
        assert_eq!(json["tile_bytes"], bytes);
    }
}

#[test]
fn info_reads_small_files_only() {
    let dataset = made_up();
    fs::remove_dir_all(dataset.path.join("tiles")).unwrap();
    fs::remove_file(dataset.path.join("obs/obs_0000.parquet")).unwrap();
    for source in Source::both(&dataset.path) {
        run(&mut source.command("info"));
    }
}

#[test]
fn verify_finds_no_fault_where_there_is_none() {
    let dataset = made_up();
    for source in Source::both(&dataset.path) {
        let said = run(&mut source.command("verify"));
        assert!(said.starts_with("no faults in 5 tiles, 2 obs files"), "{said}");
    }
    for name in ["edge.dc", "real/celseq2.dc", "real/pbmc3k.dc", "real/pbmc_facs.dc"] {
        let Some(dataset) = shared(name) else { return };
        for source in Source::both(&dataset) {
            run(&mut source.command("verify"));
        }
    }
}

#[test]
fn what_is_no_dataset_is_refused_by_every_command() {
    let folder = Folder::new();
    for source in Source::both(folder.path()) {
        for command in ["info", "verify"] {
            let reason = failed_with(&source.command(command).output().unwrap(), 1);
            assert!(reason.contains("manifest.json"), "{reason}");
        }
    }
    assert_eq!(dcfs().output().unwrap().status.code(), Some(2), "no command");
    assert_eq!(
        dcfs()
            .args(["mount", "--io", "magic", "a", "b"])
            .output()
            .unwrap()
            .status
            .code(),
        Some(2)
    );
}

#[test]
fn help_and_completions_are_there_for_every_command() {
    let help = run(dcfs().arg("--help"));
    for command in ["mount", "umount", "info", "verify", "demo", "completions"] {
        assert!(help.contains(command), "{command} is missing from {help}");
        assert!(run(dcfs().args([command, "--help"])).contains("Usage: dcfs"));
    }
    for shell in ["bash", "zsh", "fish"] {
        assert!(run(dcfs().args(["completions", shell])).contains("umount"), "{shell}");
    }
}

fn the_demo_shows_itself_and_leaves_nothing(io: Io) {
    let folder = Folder::new();
    let said = run(dcfs()
        .args(["demo", "--exit", "--cells", "300", "--io", io.name()])
        .env("TMPDIR", folder.path()));
    assert!(said.contains("tile_000000 has ") && said.contains("nonzeros"), "{said}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

fn the_demo_stays_until_it_is_interrupted(io: Io) {
    let folder = Folder::new();
    let place = folder.join("demo");
    let mut demo = dcfs()
        .args(["demo", "--cells", "300", "--io", io.name(), "--folder"])
        .arg(&place)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let readme = place.join("mount/README.txt");
    wait_until("the demo is mounted", || {
        assert!(demo.try_wait().unwrap().is_none());
        readme.exists()
    });
    // Interrupted while it still shows itself, it would end all the same; here it is asked once it has.
    assert!(fs::read_to_string(&readme).unwrap().contains("300 cells"));
    kill_process(Pid::from_child(&demo), Signal::INT).unwrap();
    assert_eq!(demo.wait().unwrap().code(), Some(0));
    assert_eq!(types_at(&place.join("mount")), [""; 0]);
    assert!(
        place.join("demo.dc/manifest.json").exists(),
        "a folder of the user's stays"
    );
}

//! What `README.txt` in a mount tells strangers to type works as it stands there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::data::{MadeUp, made_up};
use crate::harness::{Folder, Io, Mount, in_every_mode, run, skip_without};
use crate::python;

in_every_mode!(
    the_readme_s_python_works_as_it_stands,
    every_line_of_python_in_the_readme_works_as_it_stands,
    the_readme_s_c_works_as_it_stands,
    the_readme_s_r_works_as_it_stands,
    the_readme_s_julia_works_as_it_stands,
);

/// Compiles a program of `tests/c` into `folder`; `None`, after a line that says why, without a compiler.
pub fn compiled(name: &str, folder: &Folder) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/c")
        .join(name)
        .with_extension("c");
    compile(&source, folder.join(name))
}

fn compile(source: &Path, program: PathBuf) -> Option<PathBuf> {
    if Command::new("cc").arg("--version").output().is_err() {
        skip_without("cc", "gcc");
        return None;
    }
    run(Command::new("cc")
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(source));
    Some(program)
}

/// The lines below a heading of the mount's README, up to the next empty one.
fn snippet(mount: &Mount, language: &str) -> String {
    let readme = fs::read_to_string(mount.join("README.txt")).unwrap();
    let below = readme.lines().skip_while(|line| *line != language).skip(1);
    let lines: Vec<&str> = below.take_while(|line| !line.is_empty()).collect();
    assert!(!lines.is_empty(), "nothing on {language} in {readme}");
    lines
        .iter()
        .flat_map(|line| [line.strip_prefix("  ").unwrap_or(line), "\n"])
        .collect()
}

/// The one-line example on columns.
fn column_snippet(mount: &Mount, language: &str) -> String {
    let readme = fs::read_to_string(mount.join("README.txt")).unwrap();
    let (_, below) = readme
        .split_once("Columns that describe cells\n")
        .expect("a part on columns");
    let line = below
        .lines()
        .find_map(|line| line.strip_prefix("  ")?.strip_prefix(language));
    line.expect("a line on the language").trim().to_owned()
}

/// What a reader of tile 0 should find: cells, genes, nonzeros, sum of counts, sum of count times gene, sum of cell 7.
fn facts(dataset: &MadeUp) -> [i64; 6] {
    let tile = dataset.synthetic.tile(0);
    let nonzeros = || tile.indices.iter().zip(&tile.counts);
    let row = tile.indptr[7] as usize..tile.indptr[8] as usize;
    [
        tile.indptr.len() as i64 - 1,
        tile.n_genes.into(),
        tile.counts.len() as i64,
        nonzeros().map(|(_, &count)| i64::from(count)).sum(),
        nonzeros()
            .map(|(&gene, &count)| i64::from(gene) * i64::from(count))
            .sum(),
        tile.counts[row].iter().map(|&count| i64::from(count)).sum(),
    ]
}

fn numbers(said: &str) -> Vec<i64> {
    said.split_whitespace()
        .map(|word| word.parse().unwrap_or_else(|_| panic!("{word:?} in {said}")))
        .collect()
}

fn the_readme_s_python_works_as_it_stands(io: Io) {
    let dataset = made_up();
    let mount = Mount::new(&dataset.path, io);
    let Some(mut python) = python::python() else { return };
    let print = "genes = np.arange(X.shape[1])\n\
                 print(*X.shape, X.nnz, X.sum(), (X @ genes).sum(), X[7].sum())\n";
    let said = run(python
        .arg("-c")
        .arg(snippet(&mount, "Python") + print)
        .current_dir(mount.path()));
    assert_eq!(numbers(&said), facts(&dataset));

    let column = column_snippet(&mount, "Python");
    let (import, expression) = column.split_once("; ").unwrap();
    let code = format!("{import}\nframe = {expression}\nprint(len(frame))\n");
    let said = run(python::python().unwrap().arg("-c").arg(code).current_dir(mount.path()));
    assert_eq!(numbers(&said), [900]);
}

fn every_line_of_python_in_the_readme_works_as_it_stands(io: Io) {
    let dataset = made_up();
    let mount = Mount::new(&dataset.path, io);
    let readme = fs::read_to_string(mount.join("README.txt")).unwrap();
    let lines: Vec<&str> = readme
        .lines()
        .filter_map(|line| line.strip_prefix("  Python   "))
        .collect();
    for view in ["dataset.h5ad", "dataset.zarr", "X/data.npy", "obs.arrow", "obs/"] {
        assert!(
            lines.iter().any(|line| line.contains(view)),
            "nothing on {view} in {readme}"
        );
    }
    for line in lines {
        let Some(mut python) = python::python() else { return };
        run(python.args(["-c", line]).current_dir(mount.path()));
    }
}

fn the_readme_s_c_works_as_it_stands(io: Io) {
    let dataset = made_up();
    let mount = Mount::new(&dataset.path, io);
    let source = mount.folder().join("readme.c");
    let code = format!(
        "#include <fcntl.h>\n#include <inttypes.h>\n#include <stdio.h>\n#include <sys/mman.h>\n#include <sys/stat.h>\n\
         int main(void)\n{{\n{}\
         int64_t sum = 0;\n\
         for (off_t i = 0; i < s.st_size / 4; i++) sum += data[i];\n\
         printf(\"%jd %\" PRId64 \"\\n\", (intmax_t)(s.st_size / 4), sum);\nreturn 0;\n}}\n",
        snippet(&mount, "C")
    );
    fs::write(&source, code).unwrap();
    let Some(program) = compile(&source, mount.folder().join("readme")) else {
        return;
    };
    let said = run(Command::new(program).current_dir(mount.path()));
    assert_eq!(numbers(&said), facts(&dataset)[2..4]);
}

/// Nobody is asked to install a language for this: without it, a line says that it was not tried.
fn has(program: &str) -> bool {
    let there = Command::new(program).arg("--version").output().is_ok();
    if !there {
        crate::skip::skip(format_args!("{program} is not installed"));
    }
    there
}

fn the_readme_s_r_works_as_it_stands(io: Io) {
    if !has("Rscript") {
        return;
    }
    let dataset = made_up();
    let mount = Mount::new(&dataset.path, io);
    let print = "genes <- seq_len(ncol(X)) - 1\n\
                 cat(dim(X), length(X@x), sum(X), sum(X %*% genes), sum(X[8, ]), '\\n')\n";
    let script = mount.folder().join("readme.R");
    fs::write(&script, snippet(&mount, "R") + "options(scipen = 100)\n" + print).unwrap();
    let said = run(Command::new("Rscript")
        .arg("--vanilla")
        .arg(script)
        .current_dir(mount.path()));
    assert_eq!(numbers(&said), facts(&dataset));
}

fn the_readme_s_julia_works_as_it_stands(io: Io) {
    if !has("julia") {
        return;
    }
    let dataset = made_up();
    let mount = Mount::new(&dataset.path, io);
    let print = "genes = 0:size(Xt, 1)-1\n\
                 println(join((size(Xt, 2), size(Xt, 1), nnz(Xt), sum(Xt), sum(Xt' * genes), sum(Xt[:, 8])), ' '))\n";
    let script = mount.folder().join("readme.jl");
    fs::write(&script, snippet(&mount, "Julia") + print).unwrap();
    let said = run(Command::new("julia")
        .args(["--startup-file=no"])
        .arg(script)
        .current_dir(mount.path()));
    assert_eq!(numbers(&said), facts(&dataset));
}

//! The folder that a conversion writes to: whether it may, whether there is room, and what an unfinished one has left.
//! Knows nothing of inputs.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, FlockOperation};

use super::error::{ConvertError, Result};
use crate::write::WriteError;

/// The file that tells what an unfinished dataset is made from. While it is written, it is locked.
const RECORD: &str = ".dcfs-convert.json";
/// What a dataset has in its folder.
const FILES: [&str; 5] = [
    "manifest.json",
    RECORD,
    "gene_order.npy",
    "var_names.txt",
    "var.parquet",
];
const FOLDERS: [&str; 2] = ["tiles", "obs"];

/// What becomes of a folder that is not empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Existing {
    /// It is refused.
    #[default]
    Refuse,
    /// The dataset in it is replaced.
    Overwrite,
    /// The conversion that began in it is continued.
    Resume,
}

/// A folder in which a conversion is under way. No other can be while this is there.
pub(super) struct Output {
    root: PathBuf,
    record: File,
}

/// Refuses an output that could not be written, as far as can be known before inputs are read.
///
/// # Errors
/// When `out` is no folder, cannot be written to, or holds something that `existing` does not allow for.
pub fn check(out: &Path, existing: Existing) -> Result<()> {
    let refuse = |fault: String| Err(ConvertError::Plan(format!("{}: {fault}", out.display())));
    let nearest = nearest_existing(out);
    if !nearest.is_dir() {
        return refuse(format!("{} is a file, expected a folder", nearest.display()));
    }
    rustix::fs::access(&nearest, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|error| ConvertError::io(&nearest, "write in")(error.into()))?;
    let names = names(out)?;
    if names.is_empty() {
        return Ok(());
    }
    let has = |name: &str| names.iter().any(|found| found == name);
    match existing {
        Existing::Refuse if has(RECORD) => refuse(
            "holds a conversion that was not finished; --resume continues it, --overwrite begins it again".into(),
        ),
        Existing::Refuse => refuse("is not empty; --overwrite replaces a dataset in it".into()),
        Existing::Resume if has("manifest.json") => refuse("is finished: there is nothing to resume".into()),
        Existing::Resume if !has(RECORD) => refuse("is no unfinished conversion that could be resumed".into()),
        Existing::Resume => Ok(()),
        Existing::Overwrite if !has("manifest.json") && !has(RECORD) => {
            refuse("is not empty and holds no dataset; --overwrite replaces only datasets".into())
        }
        Existing::Overwrite => {
            let known = |name: &&String| FILES.contains(&name.as_str()) || FOLDERS.contains(&name.as_str());
            match names.iter().find(|name| !known(name)) {
                Some(other) => refuse(format!(
                    "holds {other:?}, which is no part of a dataset; --overwrite replaces only datasets"
                )),
                None => Ok(()),
            }
        }
    }
}

/// Bytes that are free for `out`, counting those that it holds and that will be given back or are written already.
/// Nothing where that cannot be known.
pub(super) fn room(out: &Path, existing: Existing) -> Option<u64> {
    let free = rustix::fs::statvfs(nearest_existing(out)).ok()?;
    let free = free.f_bavail.saturating_mul(free.f_frsize);
    let held = match existing {
        Existing::Refuse => 0,
        Existing::Overwrite | Existing::Resume => folder_bytes(out).unwrap_or(0),
    };
    Some(free.saturating_add(held))
}

impl Output {
    /// Makes the folder ready; `record` says what is converted and how.
    ///
    /// # Errors
    /// As [`check`]; also when the conversion to be continued was another one, or is under way.
    pub(super) fn start(out: &Path, existing: Existing, record: &str) -> Result<Self> {
        check(out, existing)?;
        fs::create_dir_all(out).map_err(ConvertError::io(out, "create"))?;
        let path = out.join(RECORD);
        let begun = fs::File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path);
        let mut file = begun.map_err(ConvertError::io(&path, "create"))?;
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(rustix::io::Errno::WOULDBLOCK) {
            let fault = "is being written by another conversion";
            return Err(ConvertError::Plan(format!("{}: {fault}", out.display())));
        }
        // With the record there, a removal that is cut short can be done again.
        if existing == Existing::Overwrite {
            remove_dataset(out)?;
            file.set_len(0).map_err(ConvertError::io(&path, "write"))?;
        }
        let mut found = String::new();
        file.read_to_string(&mut found)
            .map_err(ConvertError::io(&path, "read"))?;
        // A record that is cut short is from before anything was written.
        if found.is_empty() || record.starts_with(&found) && found != record {
            if names(out)?.iter().any(|name| name != RECORD) {
                return Err(WriteError::NotEmpty(out.to_owned()).into());
            }
            let written = file
                .rewind()
                .and_then(|()| file.set_len(0))
                .and_then(|()| file.write_all(record.as_bytes()))
                .and_then(|()| file.sync_all());
            written.map_err(ConvertError::io(&path, "write"))?;
        } else if found != record {
            return Err(ConvertError::Plan(format!(
                "{}: was begun with other inputs or other options than these: it cannot be resumed; --overwrite begins it again",
                out.display()
            )));
        }
        Ok(Self {
            root: out.to_owned(),
            record: file,
        })
    }

    /// Takes away what is not part of a dataset; its size then, in bytes.
    pub(super) fn finish(self) -> Result<u64> {
        let path = self.root.join(RECORD);
        fs::remove_file(&path).map_err(ConvertError::io(&path, "remove"))?;
        drop(self.record);
        folder_bytes(&self.root).map_err(ConvertError::io(&self.root, "read"))
    }
}

/// The folder itself, or the nearest above it that there is.
fn nearest_existing(out: &Path) -> PathBuf {
    let absolute = std::path::absolute(out).unwrap_or_else(|_| out.to_path_buf());
    let existing = absolute.ancestors().find(|path| path.exists());
    existing.unwrap_or(&absolute).to_path_buf()
}

/// What the folder holds; nothing when there is no folder.
fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(ConvertError::io(folder, "read")(error)),
    };
    entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<std::io::Result<_>>()
        .map_err(ConvertError::io(folder, "read"))
}

/// Removes a dataset, finished or not, but for the record.
fn remove_dataset(root: &Path) -> Result<()> {
    // The manifest first: what is left of a dataset is none.
    for file in FILES.into_iter().filter(|file| *file != RECORD) {
        match fs::remove_file(root.join(file)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(ConvertError::io(&root.join(file), "remove")(error));
            }
            _ => {}
        }
    }
    for folder in FOLDERS {
        let path = root.join(folder);
        if path.is_dir() {
            fs::remove_dir_all(&path).map_err(ConvertError::io(&path, "remove"))?;
        }
    }
    Ok(())
}

fn folder_bytes(folder: &Path) -> std::io::Result<u64> {
    let mut bytes = 0;
    let mut folders: Vec<PathBuf> = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => folders.push(entry.path()),
                false => bytes += entry.metadata()?.len(),
            }
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_datasets_are_replaced_and_nothing_is_lost_by_a_refusal() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path();
        fs::write(out.join("manifest.json"), "{}").unwrap();
        fs::write(out.join("notes.txt"), "mine").unwrap();
        let refused = Output::start(out, Existing::Overwrite, "record").err().unwrap();
        assert!(refused.to_string().contains("\"notes.txt\""), "{refused}");
        assert!(out.join("manifest.json").exists());
        fs::remove_file(out.join("notes.txt")).unwrap();
        assert!(check(out, Existing::Refuse).is_err());
        Output::start(out, Existing::Overwrite, "record").unwrap();
        assert_eq!(names(out).unwrap(), [RECORD]);
    }

    #[test]
    fn a_conversion_is_continued_as_it_was_begun_and_by_one_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("new/dataset");
        let first = Output::start(&out, Existing::Refuse, "record").unwrap();
        let busy = Output::start(&out, Existing::Resume, "record").err().unwrap();
        assert!(busy.to_string().contains("another conversion"), "{busy}");
        drop(first);
        assert!(Output::start(&out, Existing::Refuse, "record").is_err());
        assert!(Output::start(&out, Existing::Resume, "other").is_err());
        let resumed = Output::start(&out, Existing::Resume, "record").unwrap();
        resumed.finish().unwrap();
        assert!(names(&out).unwrap().is_empty());
    }

    #[test]
    fn a_record_that_was_cut_short_is_written_again() {
        let folder = tempfile::tempdir().unwrap();
        for cut in ["", "rec"] {
            fs::write(folder.path().join(RECORD), cut).unwrap();
            drop(Output::start(folder.path(), Existing::Resume, "record").unwrap());
            assert_eq!(fs::read_to_string(folder.path().join(RECORD)).unwrap(), "record");
        }
    }

    #[test]
    fn an_output_below_a_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        for out in [file.clone(), file.join("dataset")] {
            assert!(check(&out, Existing::Refuse).is_err());
        }
    }
}

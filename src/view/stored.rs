//! Files of the dataset that appear as they are.

use super::Node;
use crate::dataset::Dataset;
use crate::store::{Attributes, Held, Store, StoreError, Version};

/// A file of a server is fetched at mounting up to this size, so that it is there whatever becomes of the server.
const FETCHED: u64 = 16 << 20;

/// A file of the dataset that appears unchanged.
#[derive(Debug, Clone)]
pub struct Stored {
    /// Path below the dataset's root.
    pub path: &'static str,
    /// The folder of the mount it appears in.
    pub folder: Node,
    /// Its name there.
    pub name: &'static str,
    /// Its size in bytes when the dataset was mounted.
    pub bytes: u64,
    /// Its state then.
    pub version: Version,
    /// Its bytes, if they were fetched.
    #[allow(dead_code, reason = "what counts is that it is there")]
    held: Option<Held>,
}

impl Stored {
    /// The files that the manifest promises, with their sizes.
    pub(super) fn all(dataset: &Dataset) -> Result<Vec<Self>, StoreError> {
        let manifest = dataset.manifest();
        let files = [
            ("manifest.json", Node::Root, "manifest.json", true),
            ("var.parquet", Node::Root, "var.parquet", manifest.has_var_table),
            ("var_names.txt", Node::Root, "var_names.txt", manifest.has_var_names),
            ("gene_order.npy", Node::Root, "gene_order.npy", manifest.has_gene_order),
            ("obs/schema.json", Node::Obs, "schema.json", manifest.obs.is_some()),
        ];
        let stored = files.into_iter().filter(|&(.., promised)| promised);
        stored
            .map(|(path, folder, name, _)| {
                let (attributes, held) = look(&**dataset.store(), path)?;
                Ok(Self {
                    path,
                    folder,
                    name,
                    bytes: attributes.size,
                    version: attributes.version,
                    held,
                })
            })
            .collect()
    }
}

fn look(store: &dyn Store, path: &str) -> Result<(Attributes, Option<Held>), StoreError> {
    if !store.is_remote() {
        return Ok((store.attributes(path)?, None));
    }
    match store.open_whole(path, FETCHED) {
        Ok(object) => Ok((store.shown(path)?, object.hold(&(0..object.size())))),
        Err(error) if error.source.kind() == std::io::ErrorKind::FileTooLarge => Ok((store.attributes(path)?, None)),
        Err(error) => Err(error),
    }
}

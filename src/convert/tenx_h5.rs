//! 10x Genomics HDF5 matrices of Cell Ranger 2 and 3 and later (`filtered_feature_bc_matrix.h5`).
//!
//! Version 3 has one group `matrix`, whose features are of several types; version 2 has a group for each genome. Both
//! store features by barcodes, compressed by barcode.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, StringArray};

use super::error::{ConvertError, Result};
use super::genes::{GeneColumn, Genes};
use super::hdf5::{H5Dataset, H5File, Node};
use super::matrix::Matrix;
use super::source::{MatrixError, Reading, RowStream, Scan, Source, SourceColumn};

/// The feature type that is read unless another is asked for.
pub const GENE_EXPRESSION: &str = "Gene Expression";

/// A 10x Genomics HDF5 file.
pub struct TenxH5 {
    file: Arc<H5File>,
    group: String,
    matrix: Matrix,
    barcodes: H5Dataset,
    /// All genes of the matrix.
    genes: Genes,
    selected: Option<Selected>,
    notes: Vec<String>,
}

/// Genes of which not all are wanted.
pub(crate) struct Selected {
    /// The new number of each gene that is wanted.
    pub(crate) renumber: Vec<Option<u32>>,
    pub(crate) genes: Genes,
}

impl Selected {
    /// The genes for which `wanted` is true.
    pub(crate) fn new(genes: &Genes, wanted: &[bool]) -> Self {
        let places: Vec<u32> = (0..)
            .zip(wanted)
            .filter(|&(_, &wanted)| wanted)
            .map(|(place, _)| place)
            .collect();
        let mut renumber = vec![None; wanted.len()];
        for (&place, new) in places.iter().zip(0..) {
            renumber[place as usize] = Some(new);
        }
        Self {
            renumber,
            genes: genes.take(&places),
        }
    }

    /// What a scan of all genes says of the wanted ones.
    pub(crate) fn scan(&self, scan: &Scan) -> Scan {
        let wanted = |of_all: &[u64]| -> Vec<u64> {
            let wanted = of_all.iter().zip(&self.renumber).filter(|(_, new)| new.is_some());
            wanted.map(|(&number, _)| number).collect()
        };
        Scan {
            totals: wanted(&scan.totals),
            nonzeros: wanted(&scan.nonzeros),
        }
    }
}

/// Chooses features by their type, and says in `notes` which others there are.
///
/// # Errors
/// When there are none of that type: the message then says which types there are.
pub(crate) fn select_type(
    genes: &Genes,
    types: &[String],
    wanted: &str,
    notes: &mut Vec<String>,
) -> std::result::Result<Option<Selected>, String> {
    let mut counts = BTreeMap::new();
    for name in types {
        *counts.entry(name.as_str()).or_insert(0_u64) += 1;
    }
    let others: Vec<String> = counts
        .iter()
        .filter(|(name, _)| **name != wanted)
        .map(|(name, count)| format!("{name:?} ({count})"))
        .collect();
    if !counts.contains_key(wanted) && !types.is_empty() {
        return Err(format!(
            "has no features of the type {wanted:?}; it has {}: choose with --feature-type",
            others.join(", ")
        ));
    }
    if others.is_empty() {
        return Ok(None);
    }
    notes.push(format!(
        "features of other types than {wanted:?} are left out: {}",
        others.join(", ")
    ));
    let wanted: Vec<bool> = types.iter().map(|name| name == wanted).collect();
    Ok(Some(Selected::new(genes, &wanted)))
}

impl TenxH5 {
    /// Whether the file looks like one.
    pub(crate) fn is_one(file: &H5File) -> Result<bool> {
        Ok(!genome_groups(file)?.is_empty())
    }

    /// Opens a 10x HDF5 file.
    ///
    /// `feature_type` chooses among the feature types of a version 3 file, `genome` among the genomes of either.
    ///
    /// # Errors
    /// When the file is not one, is damaged, or does not have what was chosen; the message then says what there is.
    pub fn open(path: &Path, feature_type: &str, genome: Option<&str>) -> Result<Self> {
        let file = Arc::new(H5File::open(path)?);
        let groups = genome_groups(&file)?;
        let group = match (groups.as_slice(), genome) {
            ([], _) => return Err(file.fault("HDF5 root", "has no group with barcodes: not a 10x Genomics matrix")),
            ([one], None) => one.clone(),
            ([one], Some(_)) if one == "matrix" => one.clone(),
            (many, Some(genome)) if many.iter().any(|group| group == genome) => genome.to_owned(),
            (many, _) => {
                let fault = format!("has the genomes {}: choose one with --genome", many.join(", "));
                return Err(file.fault("HDF5 root", fault));
            }
        };
        let part = |part: &str| file.dataset(&format!("{group}/{part}"));
        let shape = part("shape")?;
        let &[n_features, n_barcodes] = shape.offsets(0..shape.rows().min(3))?.as_slice() else {
            return Err(shape.fault("has not two entries"));
        };
        let n_genes = u32::try_from(n_features).map_err(|_| shape.fault(format!("has {n_features} features")))?;
        let matrix = Matrix::rows(part("data")?, part("indices")?, part("indptr")?, n_barcodes, n_genes)?;
        let barcodes = part("barcodes")?;
        if barcodes.rows() != n_barcodes {
            return Err(barcodes.fault(format!("has {} entries, expected {n_barcodes}", barcodes.rows())));
        }
        let mut notes = Vec::new();
        let (genes, selected) = match file.is_group(&format!("{group}/features"))? {
            true => {
                let genes = read_features(&file, &group, n_features)?;
                let types = genes.text("feature_types").unwrap_or_default();
                let selected = select_type(&genes, &types, feature_type, &mut notes)
                    .map_err(|fault| file.fault(&format!("{group}/features/feature_type"), fault))?;
                let selected = select_genome(&file, &genes, selected, genome)?;
                (genes, selected)
            }
            false => (read_genes(&file, &group, n_features)?, None),
        };
        Ok(Self {
            file,
            group,
            matrix,
            barcodes,
            genes,
            selected,
            notes,
        })
    }
}

/// Narrows a choice of features to those of one genome.
fn select_genome(
    file: &H5File,
    genes: &Genes,
    selected: Option<Selected>,
    genome: Option<&str>,
) -> Result<Option<Selected>> {
    let Some(genome) = genome else {
        return Ok(selected);
    };
    let genomes = genes.text("genome").unwrap_or_default();
    let mut wanted: Vec<bool> = genomes.iter().map(|name| name == genome).collect();
    if let Some(selected) = &selected {
        for (wanted, new) in wanted.iter_mut().zip(&selected.renumber) {
            *wanted &= new.is_some();
        }
    }
    if !wanted.contains(&true) {
        let mut known = genomes;
        known.sort();
        known.dedup();
        let fault = format!(
            "has no such features of the genome {genome:?}; it has {}",
            known.join(", ")
        );
        return Err(file.fault("matrix/features/genome", fault));
    }
    Ok(Some(Selected::new(genes, &wanted)))
}

/// The groups that hold a matrix.
fn genome_groups(file: &H5File) -> Result<Vec<String>> {
    let mut groups = Vec::new();
    for name in file.members("")? {
        let is_matrix = file.is_group(&name)?
            && matches!(file.node(&format!("{name}/barcodes"))?, Node::Dataset(_))
            && matches!(file.node(&format!("{name}/indptr"))?, Node::Dataset(_));
        if is_matrix {
            groups.push(name);
        }
    }
    Ok(groups)
}

/// The text of a dataset with an entry for each feature.
fn read_text(file: &H5File, place: &str, expected: u64) -> Result<Vec<String>> {
    let stored = file.dataset(place)?;
    if stored.rows() != expected {
        return Err(stored.fault(format!(
            "has {} entries, expected {expected}, the features",
            stored.rows()
        )));
    }
    let text = stored.strings(0..expected, None)?;
    Ok(text.iter().map(|text| text.unwrap_or_default().to_owned()).collect())
}

fn column(name: &str, values: &[String]) -> GeneColumn {
    GeneColumn {
        name: name.to_owned(),
        values: Arc::new(StringArray::from_iter_values(values)),
    }
}

/// Version 3; the columns are named as scanpy names them.
fn read_features(file: &H5File, group: &str, expected: u64) -> Result<Genes> {
    let features = format!("{group}/features");
    let mut columns = Vec::new();
    for (stored, name) in [
        ("id", "gene_ids"),
        ("feature_type", "feature_types"),
        ("genome", "genome"),
    ] {
        if let Node::Dataset(_) = file.node(&format!("{features}/{stored}"))? {
            columns.push(column(
                name,
                &read_text(file, &format!("{features}/{stored}"), expected)?,
            ));
        }
    }
    for name in file.members(&features)? {
        // What else Cell Ranger tells of features, such as the pattern and sequence of an antibody's barcode.
        let known = ["id", "name", "feature_type", "genome"].contains(&name.as_str()) || name.starts_with('_');
        let Node::Dataset(stored) = file.node(&format!("{features}/{name}"))? else {
            continue;
        };
        if !known && stored.shape() == [expected] && stored.number().is_err() {
            columns.push(column(
                &name,
                &read_text(file, &format!("{features}/{name}"), expected)?,
            ));
        }
    }
    Ok(Genes {
        names: Arc::new(read_text(file, &format!("{features}/name"), expected)?),
        index_name: None,
        columns,
    })
}

/// Version 2.
fn read_genes(file: &H5File, group: &str, expected: u64) -> Result<Genes> {
    let ids = read_text(file, &format!("{group}/genes"), expected)?;
    Ok(Genes {
        names: Arc::new(read_text(file, &format!("{group}/gene_names"), expected)?),
        index_name: None,
        columns: vec![column("gene_ids", &ids)],
    })
}

impl Source for TenxH5 {
    fn path(&self) -> &Path {
        self.file.path()
    }

    fn format(&self) -> &'static str {
        "10x_h5"
    }

    fn bytes(&self) -> u64 {
        self.file.bytes()
    }

    fn n_cells(&self) -> u64 {
        self.matrix.n_cells()
    }

    fn entries(&self) -> Option<u64> {
        self.matrix.entries()
    }

    fn genes(&self) -> &Genes {
        self.selected.as_ref().map_or(&self.genes, |selected| &selected.genes)
    }

    fn columns(&self) -> &[SourceColumn] {
        &[]
    }

    fn column(&self, column: usize, _cells: Range<u64>) -> Result<ArrayRef> {
        Err(self
            .file
            .fault(&self.group, format!("has no column {column} for barcodes")))
    }

    fn cell_names(&self, cells: Range<u64>) -> Result<StringArray> {
        self.barcodes.strings(cells, None)
    }

    fn scan(&self, reading: &Reading) -> Result<Scan> {
        let scan = self.matrix.scan(reading).map_err(|error| self.named(error))?;
        Ok(match &self.selected {
            Some(selected) => selected.scan(&scan),
            None => scan,
        })
    }

    fn rows<'a>(&'a self, reading: &Reading) -> Result<RowStream<'a>> {
        let blocks = self.matrix.blocks(reading).map_err(|error| self.named(error))?;
        Ok(Box::new(blocks.map(move |block| {
            let block = block.map_err(|error| self.named(error))?;
            Ok(match &self.selected {
                Some(selected) => block.select(&selected.renumber),
                None => block,
            })
        })))
    }

    fn gene_tables(&mut self) -> Vec<&mut Genes> {
        let selected = self.selected.iter_mut().map(|selected| &mut selected.genes);
        selected.chain([&mut self.genes]).collect()
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}

impl TenxH5 {
    fn named(&self, error: MatrixError) -> ConvertError {
        error.named(self, &self.genes, &self.group, None)
    }
}
